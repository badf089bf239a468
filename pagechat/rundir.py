"""The private directory where a user's daemon keeps its lock and its sockets.

Anybody who can open these sockets can talk to the model, so the directory must belong to this user alone:
mode 0700, not a symbolic link, not made by somebody else beforehand. The lock, not a file's presence, says
whether a daemon lives: the kernel drops it however the daemon ends. Nothing here knows what is said on a socket.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

import msgspec

MAX_IPC_PATH = 107
"""Bytes of a UNIX socket path (sun_path less its terminator on Linux)."""

LOCK_PATIENCE_S = 0.5
"""A client that looks whether a daemon lives holds the lock for microseconds; a starting daemon waits that out."""

DAEMON_LOG = "daemon.log"
"""What a daemon that was started by another program says; it has no terminal. Gone after a normal end."""

_LONGEST_NAME = "telemetry.sock"


class RunDirError(RuntimeError):
    """The run directory cannot be used; the message says which and why."""


class AlreadyRunning(RunDirError):
    """Another daemon holds the lock."""


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """daemon.json: who holds the lock. For people and messages; the lock itself decides."""

    pid: int
    version: str
    started: float
    """Unix time, seconds."""


def default_path() -> Path:
    """$PAGECHAT_RUN_DIR, else $XDG_RUNTIME_DIR/pagechat, else /tmp/pagechat-<uid>."""
    if chosen := os.environ.get("PAGECHAT_RUN_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "pagechat"
    return Path(f"/tmp/pagechat-{os.getuid()}")  # noqa: S108  ownership and mode are verified below


def run_dir(path: Path | None = None) -> Path:
    """The run directory, absolute, created if missing and verified. Raises RunDirError."""
    chosen = Path(os.path.abspath(path or default_path()))
    length = len(os.fsencode(chosen / _LONGEST_NAME))
    if length > MAX_IPC_PATH:
        raise RunDirError(
            f"run directory {chosen} is too long: its socket paths would take {length} bytes, and {MAX_IPC_PATH} is "
            "the limit; set PAGECHAT_RUN_DIR to a shorter path"
        )
    try:
        chosen.parent.mkdir(parents=True, exist_ok=True)
        chosen.mkdir(mode=0o700, exist_ok=True)
        found = chosen.lstat()
    except OSError as error:
        raise RunDirError(f"cannot create the run directory {chosen}: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise RunDirError(f"run directory {chosen} is not a directory of its own (a symbolic link or a file)")
    if found.st_uid != os.getuid():
        raise RunDirError(f"run directory {chosen} belongs to user {found.st_uid}, not to you ({os.getuid()})")
    if mode := stat.S_IMODE(found.st_mode) & 0o077:
        raise RunDirError(
            f"run directory {chosen} is open to other users (mode {stat.S_IMODE(found.st_mode):04o}, "
            f"{mode:04o} too much); make it private with: chmod 700 {chosen}"
        )
    return chosen


def endpoint(run_dir: Path, name: str) -> str:
    """The ZeroMQ endpoint of a socket in the run directory: "clients", "telemetry", "engine" or "events"."""
    return f"ipc://{run_dir / name}.sock"


def daemon_info(run_dir: Path) -> DaemonInfo | None:
    """Who runs here, as the daemon wrote it; None when it wrote nothing readable."""
    try:
        return msgspec.json.decode((run_dir / "daemon.json").read_bytes(), type=DaemonInfo)
    except (OSError, msgspec.DecodeError):
        return None


def daemon_lives(run_dir: Path) -> bool:
    """True while a daemon holds the lock of this directory."""
    try:
        lock = os.open(run_dir / "daemon.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


class DaemonLock:
    """The right to be the daemon of a run directory, held until `release` or the process's end."""

    def __init__(self, run_dir: Path, info: DaemonInfo) -> None:
        """Takes the lock, sweeps what a killed daemon left behind, writes daemon.json. Raises AlreadyRunning."""
        self.run_dir = run_dir
        path = run_dir / "daemon.lock"
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise RunDirError(f"cannot open {path}: {error.strerror}") from None
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK or time.monotonic() > deadline:
                    os.close(self._lock)
                    raise _already_running(run_dir) from None
                time.sleep(0.02)
        sweep(run_dir)
        (run_dir / "daemon.json").write_bytes(msgspec.json.encode(info))

    def release(self) -> None:
        """Leaves no socket file and no daemon.json behind, then lets go. A second call does nothing."""
        if self._lock >= 0:
            sweep(self.run_dir)
            (self.run_dir / DAEMON_LOG).unlink(missing_ok=True)  # it ended well: nobody needs to read why
            os.close(self._lock)
            self._lock = -1


def sweep(run_dir: Path) -> None:
    """Removes socket files and daemon.json. Only for the holder of the lock."""
    for path in (*run_dir.glob("*.sock"), run_dir / "daemon.json"):
        path.unlink(missing_ok=True)


def _already_running(run_dir: Path) -> AlreadyRunning:
    info = daemon_info(run_dir)
    who = f"process {info.pid}, pagechat {info.version}" if info else "it has not said who it is yet"
    return AlreadyRunning(f"a daemon already runs in {run_dir} ({who})")
