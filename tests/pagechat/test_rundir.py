"""The run directory is private, and its lock says whether a daemon lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagechat import rundir
from pagechat.rundir import AlreadyRunning, DaemonInfo, DaemonLock, RunDirError
from tests.daemons import ROOT

INFO = DaemonInfo(pid=4711, version="0.0", started=1.0)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PAGECHAT_RUN_DIR", str(tmp_path / "chosen"))
    assert rundir.default_path() == tmp_path / "chosen"
    monkeypatch.delenv("PAGECHAT_RUN_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert rundir.default_path() == tmp_path / "pagechat"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert rundir.default_path() == Path(f"/tmp/pagechat-{os.getuid()}")


def test_it_is_made_for_this_user_alone(folders: Path) -> None:
    os.umask(0)
    made = rundir.run_dir(folders / "new")
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.mkdir() or path.chmod(0o755), "open to other users"),
        (lambda path: path.mkdir() or path.chmod(0o710), "open to other users"),
        (lambda path: path.symlink_to("/tmp"), "symbolic link"),
        (lambda path: path.symlink_to("/nonexistent"), "cannot create|symbolic link"),
        (lambda path: path.write_text(""), "cannot create|not a directory"),
    ],
    ids=["world", "group", "link", "dangling link", "file"],
)
def test_one_that_is_not_private_is_refused(folders: Path, spoil: object, words: str) -> None:
    spoil(folders / "bad")  # type: ignore[operator]
    with pytest.raises(RunDirError, match=words):
        rundir.run_dir(folders / "bad")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_is_refused(folders: Path) -> None:
    (folders / "theirs").mkdir(mode=0o700)
    os.chown(folders / "theirs", 12345, -1)
    with pytest.raises(RunDirError, match="belongs to user 12345"):
        rundir.run_dir(folders / "theirs")


def test_a_path_too_long_for_a_socket_is_refused_with_the_numbers(folders: Path) -> None:
    # LMCache pull 3530: cut off silently by the kernel
    fitting = folders / ("x" * (rundir.MAX_IPC_PATH - len(os.fsencode(folders)) - len("//telemetry.sock")))
    assert rundir.run_dir(fitting) == fitting
    with pytest.raises(RunDirError, match=r"108 bytes.*107"):
        rundir.run_dir(Path(f"{fitting}y"))


def test_the_lock_tells_of_a_living_daemon(folders: Path) -> None:
    directory = rundir.run_dir()
    assert not rundir.daemon_lives(directory)
    lock = DaemonLock(directory, INFO)
    assert rundir.daemon_lives(directory)
    assert rundir.daemon_info(directory) == INFO
    with pytest.raises(AlreadyRunning, match="process 4711"):
        DaemonLock(directory, INFO)
    lock.release()
    lock.release()
    assert not rundir.daemon_lives(directory)
    assert {path.name for path in directory.iterdir()} == {"daemon.lock"}


def test_a_killed_daemons_leftovers_are_swept_by_the_next(folders: Path) -> None:
    directory = rundir.run_dir()
    script = (
        "import os; from pagechat.rundir import *\n"
        "DaemonLock(run_dir(), DaemonInfo(pid=1, version='', started=0)); print(flush=True); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    (directory / "clients.sock").touch()
    assert (directory / "daemon.json").exists()
    assert not rundir.daemon_lives(directory)
    lock = DaemonLock(directory, INFO)
    assert not (directory / "clients.sock").exists()
    lock.release()


def test_a_look_at_the_lock_does_not_keep_a_daemon_from_starting(folders: Path) -> None:
    # given somebody who looks all the time
    script = "from pagechat.rundir import *\nd = run_dir()\nprint(flush=True)\nwhile True: daemon_lives(d)"
    directory = rundir.run_dir()
    DaemonLock(directory, INFO).release()
    looking = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert looking.stdout is not None
        looking.stdout.readline()
        for _ in range(20):
            DaemonLock(directory, INFO).release()
    finally:
        looking.kill()
        looking.communicate()


def test_a_lock_that_is_a_link_is_refused(folders: Path) -> None:
    (rundir.run_dir() / "daemon.lock").symlink_to(folders / "elsewhere")
    with pytest.raises(RunDirError, match=r"daemon\.lock"):
        DaemonLock(rundir.run_dir(), INFO)
