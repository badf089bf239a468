"""What every test gets: folders of its own, not the user's; the default model; a look for processes left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import MARK, processes_of_the_tests

FOLDERS = {
    "PAGECHAT_RUN_DIR": "run",
    "PAGECHAT_DATA_DIR": "data",
    "XDG_RUNTIME_DIR": "xdg-run",
    "XDG_DATA_HOME": "xdg-data",
    "XDG_STATE_HOME": "xdg-state",
    "XDG_CONFIG_HOME": "xdg-config",
}
"""Variables that lead to a user's own files, and the folder each is given here. The model cache stays."""


def _fresh_folders() -> Path:
    """Short, because a path of an ipc socket has at most 107 bytes."""
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    for folder in FOLDERS.values():
        (base / folder).mkdir(mode=0o700)
    return base


def pytest_configure(config: pytest.Config) -> None:
    """Before any fixture, so that those of wider scope stay off the user's files too."""
    base = _fresh_folders()
    config.add_cleanup(lambda: shutil.rmtree(base, ignore_errors=True))
    os.environ.update({name: str(base / folder) for name, folder in FOLDERS.items()})
    os.environ[MARK] = base.name
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}  # whatever runs the tests: themes differ
    os.environ.pop("NO_COLOR", None)
    os.environ["PAGECHAT_HTTP"] = "off"  # nobody takes port 8008 of this machine; tests of HTTP ask for a free one
    for name in [name for name in os.environ if name.startswith("PAGECHAT_")]:
        if name not in {
            *FOLDERS,
            MARK,
            "PAGECHAT_CACHE_DIR",
            "PAGECHAT_MODEL",
            "PAGECHAT_HTTP",
            "PAGECHAT_FUZZ_EXAMPLES",
            "PAGECHAT_ENDURANCE_REQUESTS",
        }:
            del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that holds this test's run, data and settings folders; the environment points to them."""
    base = _fresh_folders()
    for name, folder in FOLDERS.items():
        monkeypatch.setenv(name, str(base / folder))
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Directory of the default model, fetched and converted by the first test that needs it."""
    from engine.models import resolve

    return resolve("smollm2", lambda _: None)


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Every process that a test started, directly or not, has ended when the last test has."""
    yield
    deadline = time.monotonic() + 10
    while (left := processes_of_the_tests()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind by the tests: {left}"
