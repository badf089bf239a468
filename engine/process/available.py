"""How much memory can still be taken. Imports torch for a GPU only."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes(device: str) -> int:
    """Returns the bytes of the GPU, or of this machine or container, that can be taken without pushing others out."""
    if device != "cpu":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_system_available(), *_cgroup_available(Path("/sys/fs/cgroup"))]
    return max(0, min(limits))


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # without Linux it is half of all there is


def _cgroup_available(root: Path) -> list[int]:
    """Returns what the container's limit leaves, for cgroup 2 and 1; an empty list without a limit."""
    found = []
    for limit, usage in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(limit.read_text()) - int(usage.read_text()))
        except (OSError, ValueError):  # the file is absent, or says "max"
            continue
    return found


def mib(nbytes: float) -> str:
    """Returns a number of bytes as people read it."""
    return f"{nbytes / (1 << 20):,.1f} MiB"
