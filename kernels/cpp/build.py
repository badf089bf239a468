"""Compiles source/ for this machine, once, and keeps the library; without a compiler there is none.

```
<cache>/<key>.so   the library, followed by its SHA-256; it only ever appears whole, by a rename
       .lock       held by whoever compiles
```

The key is of the source, the compiler, the flags and the CPU, so a library never meets a machine it is not made for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kernels.cpp import library, trial
from kernels.cpp.library import Library

_log = logging.getLogger(__name__)

_SOURCE = Path(__file__).parent / "source"
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp")
_LINKS = ((), ("-fopenmp",))
"""First with torch's own OpenMP, which is in the process already: a second one would bring threads of its own."""
_COMPILERS = ("g++", "clang++", "c++")
_COMPILE_S = 300.0
_DIGEST_BYTES = 32


class BuildError(Exception):
    """No library; the message says why."""


def start(cache: Path, tell: Callable[[str], None]) -> str | None:
    """Puts the library in `cache` into use, compiling it first where it must be, which `tell` is told in a word.

    Returns None when there is one, else why there is not: then the operations are torch's.
    """
    if library.in_use():
        return None
    try:
        library.use(_ready(cache, tell))
    except (BuildError, OSError) as error:
        _log.warning("The CPU kernels are torch's, which are slower: %s", error)
        return str(error)
    return None


def _ready(cache: Path, tell: Callable[[str], None]) -> Library:
    compiler = _compiler()
    path = cache / f"{_key(compiler)}.so"
    found = _tried(path)
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)  # what is in it gets executed
    with _locked(cache / ".lock", tell):
        found = _tried(path)  # another process may have made it meanwhile
        if found is None:
            tell("compiling for this CPU, once")
            _compile(compiler, path)
            found = _tried(path)
    if found is None:
        raise BuildError(f"what {compiler} made of {_SOURCE} does not compute what it should")
    return found


def _compiler() -> str:
    """Raises BuildError when there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise BuildError(f"there is no C++ compiler ({wanted or ', '.join(_COMPILERS)}); install g++ for faster answers")


def _key(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=60, check=False).stdout
    digest = hashlib.sha256()
    for part in (*(path.read_bytes() for path in sorted(_SOURCE.iterdir())), compiler.encode(), version, _cpu()):
        digest.update(hashlib.sha256(part).digest())
    digest.update(repr((_FLAGS, _LINKS)).encode())
    return digest.hexdigest()[:24]


def _cpu() -> bytes:
    """What instructions this CPU has, and which it is."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    kept = ("flags", "Features", "model name", "vendor_id", "CPU part")
    return "\n".join(line for line in lines if line.startswith(kept)).encode()


def _compile(compiler: str, path: Path) -> None:
    """Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        scratch = Path(folder)
        _run([compiler, *_FLAGS, "-c", str(_SOURCE / "kernels.cpp"), "-o", str(scratch / "kernels.o")])
        for link in _LINKS:
            made = scratch / f"kernels{len(link)}.so"
            _run([compiler, "-shared", *link, str(scratch / "kernels.o"), "-o", str(made)])
            try:
                Library(made)
            except OSError as error:  # this torch has another OpenMP than the compiler
                _log.info("%s %s: %s", compiler, " ".join(link), error)
                continue
            content = made.read_bytes()
            whole = scratch / "whole.so"  # another file: this process has mapped the one it has just loaded
            whole.write_bytes(content + hashlib.sha256(content).digest())
            whole.replace(path)
            return
    raise BuildError(f"what {compiler} makes cannot be loaded")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took more than {_COMPILE_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if "error" in line.lower()]
        raise BuildError(f"{command[0]} failed: {(lines or ['it does not say why'])[0][:300]}")


def _tried(path: Path) -> Library | None:
    """The library at `path`, if it is whole and computes what it should; what is not is removed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]:
        with contextlib.suppress(OSError):
            found = Library(path)
            if trial.passes(found):
                return found
    _log.warning("%s is damaged or wrong, and is made again", path)
    path.unlink(missing_ok=True)
    return None


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
