"""What a killed save leaves is swept, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from engine.sessions import leftovers

HASH = "0123456789abcdef" * 4


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_files_of_writers_that_died_are_removed(tmp_path: Path) -> None:
    dead = dead_pid()
    left = [
        tmp_path / f"{HASH}.{dead}-0.tmp",
        tmp_path / f"{HASH}.{dead}.tmp",
        tmp_path / f"{HASH}.{os.getpid()}-3.tmp",
    ]
    for path in left:
        path.write_bytes(b"x" * 5000)
    assert leftovers.sweep(tmp_path) >= 15_000
    assert list(tmp_path.iterdir()) == []


def test_all_else_stays(tmp_path: Path) -> None:
    dead = dead_pid()
    others = [
        f"{HASH}.safetensors",
        f"{HASH}.{os.getpid()}.tmp",  # by a version that took no lock, in a process that lives
        f"{HASH[:-1]}.{dead}.tmp",
        f"{HASH}.tmp",
        f"notes.{dead}.tmp",
        f"{HASH}.{dead}.tmp.txt",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / f"{HASH}.{dead}-1.tmp").mkdir()
    (tmp_path / f"{HASH}.{dead}-2.tmp").symlink_to(tmp_path / others[0])
    before = sorted(tmp_path.iterdir())
    assert leftovers.sweep(tmp_path) == 0
    assert sorted(tmp_path.iterdir()) == before


def test_the_file_of_a_writer_that_lives_elsewhere_stays(tmp_path: Path) -> None:
    """In another container, say, where its process id is one that nobody has here."""
    path = tmp_path / f"{HASH}.{dead_pid()}-0.tmp"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert leftovers.sweep(tmp_path) == 0
        assert path.exists()
    leftovers.sweep(tmp_path)
    assert not path.exists()


def test_a_folder_that_is_not_there_is_no_problem(tmp_path: Path) -> None:
    assert leftovers.sweep(tmp_path / "nowhere") == 0


def test_names_of_several_saves_at_once_differ(tmp_path: Path) -> None:
    path = tmp_path / f"{HASH}.safetensors"
    first, second = leftovers.temporary(path), leftovers.temporary(path)
    assert first != second
    assert first.parent == tmp_path
