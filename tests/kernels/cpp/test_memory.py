"""Slabs: each part is zeroed, begins with a cache line, and overlaps no other."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

from kernels.cpp import memory
from kernels.cpp.memory import Slabs


@pytest.fixture
def cpu_kernels() -> None:
    """None are needed here."""


def test_parts_are_zeroed_aligned_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SLAB", 1 << 12)
    slabs, sizes = Slabs(), [1, 64, 65, 1000, 4096, 5000, 3, 2000, 0, 7]
    parts = [slabs.zeros(size) for size in sizes]

    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert len(part) == size
        assert not part.any()
        assert part.data_ptr() % 64 == 0 or not size
        part.fill_(number + 1)
    for number, part in enumerate(parts):
        assert (part == number + 1).all()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_goes_back_with_its_last_part() -> None:
    slabs = Slabs()
    before = resident()
    parts = [slabs.zeros(48 << 20).fill_(1) for _ in range(4)]
    held = resident()
    parts.clear()
    slabs.zeros(64 << 20)  # another slab becomes the current one
    gc.collect()

    assert held - before > 180 << 20
    assert resident() - before < 60 << 20


def resident() -> int:
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024
