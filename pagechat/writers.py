"""Names for processes that write: a name says for ever whether the process that had it still lives."""

from __future__ import annotations

import os
from pathlib import Path


def own_name() -> str:
    """The name of this process."""
    return _name(os.getpid()) or str(os.getpid())


def alive(writer: str) -> bool:
    """The process of that name still runs."""
    pid = writer.partition(":")[0]
    return pid.isdigit() and _name(int(pid)) == writer


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
