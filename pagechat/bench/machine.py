"""What a figure was measured on, in a few words."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    processor: str
    cores: int
    """Processors this process may use."""
    python: str

    def line(self) -> str:
        cores = f"{self.cores} core" + "s" * (self.cores != 1)
        return f"on {self.processor}, {cores}, Python {self.python}"


def this_machine() -> Machine:
    """The machine this runs on."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = found.group(1) if found else name
    return Machine(processor=name, cores=len(os.sched_getaffinity(0)), python=platform.python_version())
