"""A daemon for a program that found none: one of two at most, and never longer than that program."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagechat import rundir
from pagechat.client import EngineClient
from pagechat.daemon.launch import Launched, LaunchError, ensure_daemon
from tests.daemons import ROOT, serving, socket_files, wait_until
from tests.processes import processes_of_the_tests

pytestmark = pytest.mark.usefixtures("fake_engine")


@pytest.fixture(autouse=True)
def nothing_stays(fake_engine: Path) -> Iterator[None]:
    before = set(processes_of_the_tests())
    yield
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of every process")


def test_a_daemon_is_started_answers_and_is_stopped() -> None:
    launched = ensure_daemon(None, ["--num-blocks", "12"])
    assert launched is not None
    with EngineClient() as client:
        assert client.welcome.pid == launched.pid
        assert client.snapshot().num_blocks == 12
    launched.stop()
    assert launched.ended
    assert socket_files() == set()


def test_one_that_runs_is_used() -> None:
    with serving() as daemon:
        assert ensure_daemon(None, []) is None
        with EngineClient() as client:
            assert client.welcome.pid == daemon.process.pid


def test_two_programs_that_start_together_use_one_daemon() -> None:
    results: list[Launched | None] = []
    threads = [threading.Thread(target=lambda: results.append(ensure_daemon(None, []))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [result for result in results if result is not None]
    with EngineClient() as client:
        assert client.welcome.pid == winner.pid
    winner.stop()


def test_it_ends_with_a_program_that_is_killed() -> None:
    script = (
        "import time; from pagechat.daemon.launch import *\n"
        "launched = ensure_daemon(None, []); print(launched.pid, flush=True); time.sleep(99)"
    )
    program = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert program.stdout is not None
    daemon = int(program.stdout.readline())
    assert daemon in processes_of_the_tests()
    program.send_signal(signal.SIGKILL)
    program.communicate()
    wait_until(lambda: daemon not in processes_of_the_tests(), "end of the daemon")
    assert socket_files() == set()


def test_one_that_cannot_start_is_told_with_its_last_word() -> None:
    with pytest.raises(LaunchError, match="--block-size must be one of"):
        ensure_daemon(None, ["--block-size", "7"])


def test_a_model_that_cannot_be_loaded_is_told_by_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    launched = ensure_daemon(None, [])
    assert launched is not None
    with EngineClient() as client:
        wait_until(lambda: client.status().state == "failed", "failure")
        assert "no such model" in (client.status().error or "")
    launched.stop()


def test_a_folder_named_engine_where_the_user_stands_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine", "pagechat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH")
    launched = ensure_daemon(rundir.run_dir(), [])
    assert launched is not None
    launched.stop()
