"""The C++ compilers of this machine, and the flags with which each makes a library for its CPU."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_FLAGS = ("-O3", "-std=c++17", "-fPIC")
_NAMES = (
    *("c++", "g++", "clang++"),
    *(f"g++-{version}" for version in range(16, 9, -1)),
    *(f"clang++-{version}" for version in range(22, 10, -1)),
)
"""The versioned names serve machines whose own compiler is too old."""
_VERSION_S = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to get threads (OpenMP): flags to compile with, and flags to link with."""

    compiling: tuple[str, ...]
    linking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    command: tuple[str, ...]
    """The program by its whole path, and arguments that $CXX gives it."""
    version: str
    """The first line of what it says of itself: "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"."""


def compilers() -> Iterator[Compiler]:
    """Those on the PATH: $CXX, then the usual names, each program once."""
    seen: set[str] = set()
    for words in (_wanted(), *((name,) for name in _NAMES)):
        path = shutil.which(words[0]) if words else None
        if path is None:
            continue
        program = os.path.realpath(path)
        if Path(program).stem == "ccache":  # it runs the compiler that it is called as
            program = path
        if program in seen:
            continue
        seen.add(program)
        command = (path, *words[1:])
        yield Compiler(command, _version(command))


def missing() -> str:
    """Why there is no compiler, and what to install, for people."""
    wanted = os.environ.get("CXX")
    tried = f"CXX={wanted}, c++, g++ and clang++" if wanted else "c++, g++ and clang++"
    return f"there is no C++ compiler (tried {tried}); {install_hint()}"


def install_hint() -> str:
    if sys.platform == "darwin":
        return "for faster answers install Apple's: xcode-select --install"
    return "for faster answers install g++ 10 or newer (Debian and Ubuntu: g++, Fedora and RHEL: gcc-c++)"


def flags() -> tuple[str, ...]:
    """For all compilers: for this CPU, and with sums in the order in which the source has them."""
    return (*_FLAGS, *_target())


def ways() -> tuple[Way, ...]:
    """In the order to try.

    torch's own OpenMP comes first, which is in the process already: a second one would bring threads of its own. On
    Linux it is GCC's, which Clang's code cannot use; on a Mac it is Clang's, for which Apple's compiler has no flag of
    its own.
    """
    if sys.platform != "darwin":
        return Way(("-fopenmp",), ()), Way(("-fopenmp",), ("-fopenmp",))
    apple, runtime = ("-Xclang", "-fopenmp"), torch_openmp()
    linked = [Way(apple, (str(runtime), f"-Wl,-rpath,{runtime.parent}"))] if runtime.exists() else []
    return Way(apple, ("-undefined", "dynamic_lookup")), *linked, Way(("-fopenmp",), ("-fopenmp",))


def torch_openmp() -> Path:
    """Where torch's package for Macs has its OpenMP."""
    return Path(torch.__file__).parent / "lib" / "libomp.dylib"


def _wanted() -> tuple[str, ...]:
    try:
        return tuple(shlex.split(os.environ.get("CXX", "")))
    except ValueError:  # an open quote
        return ()


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Path(command[0]).name
    lines = done.stdout.decode(errors="replace").splitlines()
    return lines[0].strip() if lines and lines[0].strip() else Path(command[0]).name


def _target() -> tuple[str, ...]:
    """The instructions to use. Of ARM CPUs compilers know a few by name, so they are told what this one has."""
    if platform.machine() not in ("aarch64", "arm64"):
        return ("-march=native",)
    has = arm_features()
    if "dotprod" not in has:
        return ("-march=armv8-a",)
    return ("-march=armv8.2-a+dotprod" + "".join(f"+{name}" for name in ("bf16", "i8mm") if name in has),)


def arm_features() -> frozenset[str]:
    """Those of "dotprod", "bf16" and "i8mm" that this ARM CPU has."""
    if sys.platform == "darwin":
        known = {"dotprod": "FEAT_DotProd", "bf16": "FEAT_BF16", "i8mm": "FEAT_I8MM"}
        lines = cpu().decode(errors="replace").splitlines()
        return frozenset(name for name, key in known.items() if f"hw.optional.arm.{key}: 1" in lines)
    known = {"dotprod": "asimddp", "bf16": "bf16", "i8mm": "i8mm"}
    words = {word for line in cpu().decode(errors="replace").splitlines() for word in line.split()}
    return frozenset(name for name, word in known.items() if word in words)


def cpu() -> bytes:
    """What instructions this CPU has, and which it is."""
    if sys.platform == "darwin":
        command = ["sysctl", "machdep.cpu", "hw.optional"]
        try:
            return subprocess.run(command, capture_output=True, timeout=_VERSION_S, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return platform.processor().encode()
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    kept = ("flags", "Features", "model name", "vendor_id", "CPU part")
    return "\n".join(line for line in lines if line.startswith(kept)).encode()
