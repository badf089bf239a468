"""How the library comes to be: compiled once, kept, tried before it is used, and done without where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpp import build, compilers, trial

BROKEN = """#!/bin/sh
    [ "$1" = --version ] && echo broken 1.0 && exit
    echo 'kernels.cpp:1: error: out of luck' >&2; exit 1
"""


@pytest.fixture(scope="session")
def library(cpu_kernels: None) -> bytes:
    """One that works, as the compiler leaves it."""
    return Path(build.library.library()._name).read_bytes()


@pytest.fixture(autouse=True)
def nothing_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.library, "_current", None)
    monkeypatch.setattr(build, "_built", None)


@pytest.fixture
def programs(tmp_path: Path, library: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PATH: a folder in which `install` puts compilers. What they make is not tried in a process of its own, which
    takes seconds."""
    (tmp_path / "made.so").write_bytes(library)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cp", "sleep", "touch"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "_try_apart", lambda made: None)
    return folder


def install(programs: Path, name: str, script: str = "") -> None:
    """A "compiler": by default one that takes a moment, notes that it ran, and makes the library."""
    tmp_path = programs.parent
    working = f"""#!/bin/sh
        [ "$1" = --version ] && echo {name} 1.0 && exit
        for last; do :; done
        case "$*" in *-shared*) cp {tmp_path}/made.so "$last";;
                     *) echo {name} >> {tmp_path}/runs; sleep 0.3; touch "$last";; esac
        """
    (programs / name).write_text(script or working)
    (programs / name).chmod(0o755)


def runs(tmp_path: Path) -> list[str]:
    return (tmp_path / "runs").read_text().split()


def test_it_is_compiled_once_and_kept(tmp_path: Path, programs: Path) -> None:
    install(programs, "g++")
    told: list[str] = []
    build._ready(tmp_path / "cache", told.append)
    built = build._ready(tmp_path / "cache", told.append)

    assert told == ["compiling for this CPU, once, with g++ 1.0"]
    assert runs(tmp_path) == ["g++"]
    assert {path.suffix for path in (tmp_path / "cache").iterdir() if path.name != ".lock"} == {".so", ".sha256"}
    assert built.detail == f"{built.library.instructions}, compiled by g++ 1.0"


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "another digest"])
def test_a_damaged_library_is_made_again(tmp_path: Path, programs: Path, damage: str) -> None:
    install(programs, "g++")
    build._ready(tmp_path / "cache", print)
    (path,) = (tmp_path / "cache").glob("*.so")
    content = path.read_bytes()
    path.unlink()  # this process has mapped it
    path.write_bytes({"cut": content[: len(content) // 2], "garbage": b"x" * 5000, "empty": b""}.get(damage, content))
    if damage == "another digest":
        path.with_suffix(".sha256").write_bytes(bytes(32))

    build._ready(tmp_path / "cache", print)

    assert len(runs(tmp_path)) == 2
    assert path.read_bytes() == content


def test_two_processes_compile_it_once(tmp_path: Path, programs: Path) -> None:
    install(programs, "g++")
    code = (
        "import sys; from pathlib import Path; from kernels.cpp import build; build._try_apart = lambda made: None;"
        "build._ready(Path(sys.argv[1]), print)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache")]) for _ in range(2)]

    assert [process.wait(120) for process in both] == [0, 0]
    assert runs(tmp_path) == ["g++"]


def test_when_a_compiler_fails_the_next_one_is_tried_and_the_reason_is_kept(tmp_path: Path, programs: Path) -> None:
    install(programs, "c++", BROKEN)
    install(programs, "g++-10")
    told: list[str] = []

    assert build.start(tmp_path / "cache", told.append) is None

    reason = "broken 1.0 failed: kernels.cpp:1: error: out of luck"
    assert build.detail().endswith(f"compiled by g++-10 1.0; {reason}")
    assert told[-1] == build.detail()


def test_a_compiler_that_failed_is_not_tried_at_every_start(tmp_path: Path, programs: Path) -> None:
    install(programs, "c++", BROKEN.replace("echo 'kernels", f"echo c++ >> {tmp_path}/runs; echo 'kernels"))
    install(programs, "clang++")
    first = build._ready(tmp_path / "cache", print)
    again = build._ready(tmp_path / "cache", print)

    assert runs(tmp_path).count("c++") == len(compilers.ways())
    assert again.detail == first.detail
    assert "out of luck" in again.detail


def test_a_compiler_that_failed_is_tried_again_when_no_other_is_left(tmp_path: Path, programs: Path) -> None:
    install(programs, "c++", BROKEN)
    install(programs, "clang++")
    build._ready(tmp_path / "cache", print)
    (programs / "clang++").unlink()
    compiler = next(compilers.compilers())

    with pytest.raises(build.BuildError, match="out of luck"):
        build._ready(tmp_path / "cache", print)

    install(programs, "c++")
    assert build._ready(tmp_path / "cache", print).failures == ()
    assert next(compilers.compilers()) != compiler  # it says another version of itself, so it is another one


def test_what_every_compiler_failed_with_is_told_and_what_to_install(tmp_path: Path, programs: Path) -> None:
    install(programs, "c++", BROKEN)
    install(programs, "clang++", BROKEN.replace("out of luck", "no such header").replace("broken", "old"))

    problem = build.start(tmp_path / "cache", print) or ""

    assert "broken 1.0 failed: kernels.cpp:1: error: out of luck" in problem
    assert "old 1.0 failed: kernels.cpp:1: error: no such header" in problem
    assert compilers.install_hint() in problem
    assert not list((tmp_path / "cache").glob("*.so"))


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    problem = build.start(tmp_path / "cache", print) or ""

    assert "there is no C++ compiler (tried CXX=no-such-compiler, c++, g++ and clang++)" in problem
    assert "install" in problem
    assert not (tmp_path / "cache").exists()


def test_the_compilers_own_name_is_asked_first_and_each_program_once(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g++", "clang++", "clang++-14", "mine"):
        install(programs, name)
    (programs / "c++").symlink_to(programs / "g++")
    monkeypatch.setenv("CXX", "mine -fsome-flag")

    found = list(compilers.compilers())

    assert [(Path(one.command[0]).name, *one.command[1:]) for one in found] == [
        ("mine", "-fsome-flag"), ("c++",), ("clang++",), ("clang++-14",),
    ]  # fmt: skip


def test_a_library_that_computes_wrongly_is_not_used(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, "g++")
    monkeypatch.setattr(build.trial, "problem", lambda library: "attention is off")

    with pytest.raises(build.BuildError, match="does not compute what it should"):
        build._ready(tmp_path / "cache", print)
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_library_that_crashes_takes_nothing_with_it(tmp_path: Path) -> None:
    source, made = tmp_path / "crash.cpp", tmp_path / "crash.so"
    source.write_text("#include <cstdlib>\n__attribute__((constructor)) static void begin() { abort(); }\n")
    compiler = next(compilers.compilers())
    subprocess.run([*compiler.command, "-shared", "-fPIC", str(source), "-o", str(made)], check=True)

    with pytest.raises(build.BuildError, match=r"crashes \(SIGABRT\)"):
        build._try_apart(made)


# -- the trial ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(library: bytes, tmp_path: Path) -> build.Library:
    path = tmp_path / "kernels.so"
    path.write_bytes(library)
    return build.load(path)


def test_a_right_library_passes_its_trial(loaded: build.Library) -> None:
    assert trial.problem(loaded) is None


@pytest.mark.parametrize(
    ("function", "found"),
    [
        ("linear", "a product of 1 rows with float32 weights"),
        ("rope_and_cache", "the rotation of heads"),
        ("attention", "attention with heads"),
        ("layers", "a layer with float32 weights and a float32 pool"),
    ],
)
def test_the_trial_finds_an_operation_that_computes_wrongly(loaded: build.Library, function: str, found: str) -> None:
    setattr(loaded, f"pagechat_{function}", lambda *_: None)

    assert found in (trial.problem(loaded) or "")


@pytest.mark.parametrize("form", ["float32", "bf16", "int8", "int4"])
def test_the_trial_finds_one_form_that_computes_wrongly(loaded: build.Library, form: str) -> None:
    right = loaded.pagechat_linear
    number = ["float32", "bf16", "int8", "int4"].index(form)
    loaded.pagechat_linear = lambda packed, *rest: None if packed.form == number else right(packed, *rest)

    assert f"with {form} weights" in (trial.problem(loaded) or "")


def test_the_trial_finds_an_error_in_a_bfloat16_pool_alone(loaded: build.Library) -> None:
    right = loaded.pagechat_attention
    loaded.pagechat_attention = lambda plan, pool, *rest: None if pool.is_bf16 else right(plan, pool, *rest)

    assert "in a bfloat16 pool" in (trial.problem(loaded) or "")


# -- flags -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("Features : fp asimd evtstrm crc32 cpuid", "-march=armv8-a"),  # Raspberry Pi 4
        ("Features : fp asimd fphp asimdhp asimddp", "-march=armv8.2-a+dotprod"),  # Graviton 2, Raspberry Pi 5
        ("Features : fp asimd asimddp sve i8mm bf16", "-march=armv8.2-a+dotprod+bf16+i8mm"),  # Graviton 3
    ],
)
def test_an_arm_cpu_under_linux_gets_the_instructions_it_has(
    words: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(compilers, "cpu", words.encode)

    assert compilers.flags()[-1] == flag


@pytest.mark.parametrize(
    ("lines", "flag"),
    [
        ("hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 0", "-march=armv8.2-a+dotprod"),  # M1
        (
            "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1",  # M2
            "-march=armv8.2-a+dotprod+bf16+i8mm",
        ),
    ],
)
def test_a_mac_gets_the_instructions_it_has_and_the_flags_that_apples_compiler_knows(
    lines: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers.sys, "platform", "darwin")
    monkeypatch.setattr(compilers.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(compilers, "cpu", lines.encode)

    assert compilers.flags()[-1] == flag
    assert compilers.ways()[0].compiling == ("-Xclang", "-fopenmp")


def test_other_machines_get_what_the_compiler_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers.platform, "machine", lambda: "x86_64")

    assert compilers.flags()[-1] == "-march=native"
