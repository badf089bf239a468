"""Compiles source/ for this machine, once, and keeps the library; where no compiler can, there is none.

```
<cache>/<key>.so      the library; it only ever appears whole, by a rename
       <key>.sha256   of the library, written before it
       <key>.failed   why this compiler makes none, in words; written once another has made one
       .lock          held by whoever compiles
```

The key is of the source, the compiler, the flags and the CPU, so a library never meets a machine it is not made for.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.cpp import compilers, library, trial
from kernels.cpp.compilers import Compiler
from kernels.cpp.library import Library

_log = logging.getLogger(__name__)

_SOURCE = Path(__file__).parent / "source"
_COMPILE_S = 300.0
_TRIAL_S = 120.0


class BuildError(Exception):
    """No library; the message says why."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library, and how it came to be."""

    library: Library
    compiler: Compiler
    failures: tuple[str, ...] = ()
    """What other compilers, which would have come first, failed with."""

    @property
    def detail(self) -> str:
        """For people: the instructions used, the compiler, and what failed before it."""
        words = f"{self.library.instructions}, compiled by {self.compiler.version}"
        return "; ".join((words, *self.failures))


_built: Built | None = None


def start(cache: Path, tell: Callable[[str], None]) -> str | None:
    """Puts the library in `cache` into use, compiling it first where it must be, which `tell` is told in a word.

    Returns None when there is one, else why there is not: then the operations are torch's.
    """
    global _built
    if library.in_use():
        return None
    try:
        _built = _ready(cache, tell)
    except (BuildError, OSError) as error:
        _log.warning("The CPU kernels are torch's, which are slower: %s", error)
        return str(error)
    library.use(_built.library)
    _log.info("The CPU kernels are in C++: %s", _built.detail)
    tell(_built.detail)
    return None


def detail() -> str:
    """Which library is in use, for people; "" before `start` has found one."""
    return _built.detail if _built is not None else ""


def _ready(cache: Path, tell: Callable[[str], None]) -> Built:
    """The library of the first compiler that makes one. Raises BuildError with what each of them failed with."""
    failures: dict[Path, str] = {}
    for compiler, path in _candidates(cache, failures):
        try:
            found = _tried(path) or _made(compiler, path, tell)
        except BuildError as error:
            failures[path] = f"{compiler.version} failed: {error}"
            _log.warning("%s", failures[path])
            continue
        failures.pop(path, None)  # it had failed once
        with contextlib.suppress(OSError):  # a cache that others have filled may be read only
            path.with_suffix(".failed").unlink(missing_ok=True)
            for failed, reason in failures.items():
                failed.with_suffix(".failed").write_text(reason)
        return Built(found, compiler, tuple(failures.values()))
    raise BuildError("; ".join((*failures.values(), compilers.install_hint())) if failures else compilers.missing())


def _candidates(cache: Path, failures: dict[Path, str]) -> Iterator[tuple[Compiler, Path]]:
    """Each compiler and where its library belongs. Those that failed before come last; `failures` is told of them."""
    later = []
    for compiler in compilers.compilers():
        path = cache / f"{_key(compiler)}.so"
        try:
            failures[path] = path.with_suffix(".failed").read_text()
        except OSError:
            yield compiler, path
        else:
            later.append((compiler, path))
    yield from later


def _key(compiler: Compiler) -> str:
    digest = hashlib.sha256()
    parts = [path.read_bytes() for path in sorted(_SOURCE.iterdir()) if path.suffix in (".h", ".cpp")]
    for part in (*parts, repr((compiler, compilers.flags(), compilers.ways())).encode(), compilers.cpu()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:24]


def _made(compiler: Compiler, path: Path, tell: Callable[[str], None]) -> Library:
    """Raises BuildError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is in it gets executed
    with _locked(path.parent / ".lock", tell):
        found = _tried(path)  # another process may have made it meanwhile
        if found is None:
            tell(f"compiling for this CPU, once, with {compiler.version}")
            _compile(compiler, path)
            found = _tried(path)
    if found is None:
        raise BuildError("what it makes does not compute what it should")
    return found


def _compile(compiler: Compiler, path: Path) -> None:
    """Raises BuildError, with what the last way to compile failed with."""
    failure = BuildError("there is no way to compile")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        for number, way in enumerate(compilers.ways()):
            made = Path(folder) / f"kernels{number}.so"
            try:
                _build(compiler, way, made)
                _try_apart(made)
            except BuildError as error:
                _log.info("%s %s: %s", compiler.version, way, error)
                failure = error
                continue
            path.with_suffix(".sha256").write_bytes(hashlib.sha256(made.read_bytes()).digest())
            made.replace(path)
            return
    raise failure


def _build(compiler: Compiler, way: compilers.Way, made: Path) -> None:
    """Raises BuildError."""
    unit = made.with_name("".join(way.compiling) + ".o")
    if not unit.exists():  # another way has compiled it the same
        source = str(_SOURCE / "kernels.cpp")
        _run([*compiler.command, *compilers.flags(), *way.compiling, "-c", source, "-o", str(unit)])
    _run([*compiler.command, "-shared", str(unit), *way.linking, "-o", str(made)])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"it took more than {_COMPILE_S:.0f} s") from None
    except OSError as error:
        raise BuildError(str(error)) from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if "error" in line.lower() or "cannot find" in line]
        hint = " (its OpenMP is not installed: libomp-dev or libomp-devel)" if "-lomp" in " ".join(told) else ""
        raise BuildError((told or lines or ["it does not say why"])[0][:300] + hint)


def _try_apart(made: Path) -> None:
    """Runs the trial in a process of its own: a library that crashes must not take this one with it.

    Raises BuildError.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    code = "import sys; from kernels.cpp.trial import main; sys.exit(main(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(made.resolve())]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"what it makes took more than {_TRIAL_S:.0f} s to try") from None
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            raise BuildError(f"what it makes crashes ({signal.Signals(-done.returncode).name})")
        raise BuildError(f"what it makes crashes (signal {-done.returncode})")
    if done.returncode:
        lines = (done.stdout or done.stderr).decode(errors="replace").strip().splitlines()
        raise BuildError(f"what it makes does not work: {(lines or ['it does not say why'])[-1][:300]}")


def _tried(path: Path) -> Library | None:
    """The library at `path`, if it is whole and computes what it should; what is not is removed."""
    digest = path.with_suffix(".sha256")
    try:
        whole = hashlib.sha256(path.read_bytes()).digest() == digest.read_bytes()
    except FileNotFoundError:
        return None
    if whole:
        with contextlib.suppress(OSError):
            found = load(path)
            wrong = trial.problem(found)
            if wrong is None:
                return found
            _log.warning("%s: %s", path, wrong)
    _log.warning("%s is damaged or wrong, and is made again", path)
    path.unlink(missing_ok=True)
    return None


def load(path: Path) -> Library:
    """Raises OSError for what is no library of ours, or cannot be loaded here."""
    if sys.platform == "darwin" and compilers.torch_openmp().exists():
        ctypes.CDLL(str(compilers.torch_openmp()), mode=ctypes.RTLD_GLOBAL)  # so that its functions are found
    return Library(path)


@contextlib.contextmanager
def _locked(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock file, after whoever holds it already. The kernel lets go of it when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is compiling the CPU kernels; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
