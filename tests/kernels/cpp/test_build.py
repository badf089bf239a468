"""How the library comes to be: compiled once, kept, tried before it is used, and done without where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.models.loading.names import cache_dir
from kernels.cpp import build


@pytest.fixture
def library() -> bytes:
    """One that works, as the compiler leaves it."""
    newest = max((cache_dir() / "kernels").glob("*.so"), key=lambda path: path.stat().st_mtime)
    return newest.read_bytes()[: -build._DIGEST_BYTES]


@pytest.fixture
def compiler(tmp_path: Path, library: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A "compiler" that takes a moment, notes that it ran, and makes that library."""
    made = tmp_path / "made.so"
    made.write_bytes(library)
    script = tmp_path / "compiler"
    script.write_text(
        f"""#!/bin/sh
        [ "$1" = --version ] && echo 1.0 && exit
        for last; do :; done
        case "$*" in *-shared*) cp {made} "$last";; *) echo >> {tmp_path}/runs; sleep 0.3; touch "$last";; esac
        """
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return script


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def test_it_is_compiled_once_and_kept(tmp_path: Path, compiler: Path) -> None:
    told: list[str] = []
    build._ready(tmp_path / "cache", told.append)
    build._ready(tmp_path / "cache", told.append)

    assert told == ["compiling for this CPU, once"]
    assert runs(tmp_path) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.name != ".lock"] == [".so"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_library_is_made_again(tmp_path: Path, compiler: Path, damage: str) -> None:
    build._ready(tmp_path / "cache", print)
    (path,) = (tmp_path / "cache").glob("*.so")
    content = path.read_bytes()
    path.unlink()  # this process has mapped it
    path.write_bytes({"cut": content[: len(content) // 2], "garbage": b"x" * 5000, "empty": b""}[damage])

    build._ready(tmp_path / "cache", print)

    assert runs(tmp_path) == 2
    assert path.read_bytes() == content


def test_two_processes_compile_it_once(tmp_path: Path, compiler: Path) -> None:
    code = "import sys; from pathlib import Path; from kernels.cpp import build; build._ready(Path(sys.argv[1]), print)"
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache")]) for _ in range(2)]

    assert [process.wait(60) for process in both] == [0, 0]
    assert runs(tmp_path) == 1


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.library, "_current", None)
    monkeypatch.setenv("CXX", "no-such-compiler")

    assert build.start(tmp_path, print) == (
        "there is no C++ compiler (no-such-compiler); install g++ for faster answers"
    )


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho 'kernels.cpp:1: error: out of luck' >&2; exit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(build.library, "_current", None)
    monkeypatch.setenv("CXX", str(script))

    assert "out of luck" in (build.start(tmp_path / "cache", print) or "")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_library_that_computes_wrongly_is_not_used(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.trial, "passes", lambda library: False)

    with pytest.raises(build.BuildError, match="does not compute what it should"):
        build._ready(tmp_path / "cache", print)
    assert not list((tmp_path / "cache").glob("*.so"))
