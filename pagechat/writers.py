"""Names for processes that write: a name says for ever whether the process that had it still lives."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

_PART = "#"


def own_name() -> str:
    """The name of this process."""
    return _name(os.getpid()) or str(os.getpid())


def part_of_own() -> str:
    """A new name for one of several that write in this process; alive as long as the process is."""
    return f"{own_name()}{_PART}{uuid.uuid4().hex[:8]}"


def alive(writer: str) -> bool:
    """The process of that name, or the one that it is part of, still runs."""
    process = writer.partition(_PART)[0]
    pid = process.partition(":")[0]
    return pid.isdigit() and _name(int(pid)) == process


def _name(pid: int) -> str | None:
    """Names a process for ever: pid, start time and boot, so a later process with the same pid is another one.

    None when there is no such process. Without /proc (not Linux) the pid alone has to do.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return str(pid)
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    if fields[0] in "ZX":
        return None
    return f"{pid}:{fields[19]}:{boot}"  # field 22 of stat(5), counted from the third
