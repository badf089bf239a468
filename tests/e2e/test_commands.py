"""The installed commands, as a script uses them: real processes, real sockets, the real default model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.terminal import command
from tests.processes import processes_of_the_tests

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("smollm2")]


def run(name: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command(name), *arguments], input=text or "", capture_output=True, encoding="utf-8", timeout=120
    )


def output(*arguments: str, text: str | None = None) -> str:
    """stdout of a `pagechat-daemon` command that succeeds."""
    result = run("pagechat-daemon", *arguments, text=text)
    assert result.returncode == 0, result.stderr
    return result.stdout


def wait_until(predicate: Callable[[], Any], what: str, timeout: float = 60) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := predicate()):
        assert time.monotonic() < deadline, f"no {what} after {timeout} s"
        time.sleep(0.05)
    return found


def run_files(folders: Path) -> set[str]:
    """What in the run directory tells of a living daemon."""
    return {file.name for file in (folders / "run").iterdir()} - {"daemon.lock", "engine.log"}


@pytest.fixture(autouse=True)
def nothing_stays(folders: Path) -> Iterator[None]:
    """However a test ends its daemon: no process and no socket file of it stays."""
    before = set(processes_of_the_tests())
    yield
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of the processes this test started", 20)
    assert run_files(folders) == set()


@pytest.fixture
def daemon(nothing_stays: None, folders: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A served daemon whose model is ready."""
    with (folders / "serve.log").open("wb") as log:
        process = subprocess.Popen([command("pagechat-daemon"), "serve"], stdin=subprocess.DEVNULL, stderr=log)
    try:
        wait_until(lambda: ready(process, folders), "daemon that is ready", 90)
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)


def ready(process: subprocess.Popen[bytes], folders: Path) -> bool:
    assert process.poll() is None, (folders / "serve.log").read_text()
    status = run("pagechat-daemon", "status", "--json")
    return status.returncode == 0 and json.loads(status.stdout)["state"] == "ready"


def engine_pid() -> int:
    (pid,) = [pid for pid, line in processes_of_the_tests().items() if "-m engine" in line]
    return pid


def test_ask_without_a_daemon_answers_and_leaves_none(folders: Path) -> None:
    # given no daemon; when a script asks one question
    answer = json.loads(output("ask", "--json", "--max-tokens", "24", "--temperature", "0", "What is a page table?"))
    # then the real model answers, with what it took
    assert answer["text"].strip()
    assert answer["finish_reason"] in {"stop", "length"}
    assert answer["usage"]["prompt_tokens"] > answer["usage"]["cached_tokens"] == 0
    assert 1 <= answer["usage"]["completion_tokens"] <= 24
    assert 0 < answer["timing"]["ttft_s"] <= answer["timing"]["total_s"]
    assert answer["session"]
    # and (fixture) the daemon that ask started is gone


@pytest.mark.usefixtures("daemon")
def test_one_daemon_answers_reports_and_stops(daemon: subprocess.Popen[bytes]) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "20")
    # given two questions that start alike; when both are asked of a running daemon, one through stdin
    first = output("ask", *greedy, "Name three colours of the rainbow, please.")
    again = json.loads(output("ask", "--json", *greedy, "-", text="Name three colours of the rainbow, please."))
    # then greedy answers agree, and the second found the first one's blocks
    assert first.strip() == again["text"].strip()
    assert again["usage"]["cached_tokens"] >= 16  # one full block of the default size
    # then status tells of an idle pool that adds up and remembers the prompts
    status = json.loads(output("status", "--json"))
    pool = status["pool"]
    assert pool["free"] + pool["cached"] + pool["active"] + pool["shared"] == pool["num_blocks"]
    assert (pool["active"], pool["shared"], pool["slots_used"], pool["internal_waste"]) == (0, 0, 0, 0)
    assert pool["cached"] >= 1
    assert status["scheduler"] == {"running": 0, "waiting": 0, "preemptions": 0, "compilations": 0}
    # then stop ends it, with exit code 0 on both sides
    output("stop")
    assert daemon.wait(30) == 0


@pytest.mark.usefixtures("daemon")
def test_watch_tells_each_step_and_each_block_as_json_lines() -> None:
    # given somebody who watches
    watch = subprocess.Popen([command("pagechat-daemon"), "watch"], stdout=subprocess.PIPE, encoding="utf-8")
    assert watch.stdout is not None
    try:
        # when a question is asked, again and again until the watcher is there
        asking = subprocess.Popen(
            ["/bin/sh", "-c", f"for i in 1 2 3 4 5; do {command('pagechat-daemon')} ask --max-tokens 8 hello $i; done"],
            stdout=subprocess.DEVNULL,
        )
        # then each line is a JSON object, and some step takes a block
        for line in watch.stdout:
            if "allocate" in line:
                assert isinstance(json.loads(line), dict)
                break
        else:
            pytest.fail("watch ended without a block taken")
        asking.wait(240)
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait(20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_daemon_cleanly(daemon: subprocess.Popen[bytes], number: signal.Signals) -> None:
    daemon.send_signal(number)
    assert daemon.wait(30) in {0, 130, 143}


def test_a_killed_front_takes_its_engine_along(daemon: subprocess.Popen[bytes], folders: Path) -> None:
    engine = engine_pid()
    # when the front has no chance to say goodbye
    daemon.kill()
    # then the engine ends too
    wait_until(lambda: engine not in processes_of_the_tests(), "end of the engine", 20)
    # and the next daemon is not kept from working by what was left in the run directory
    assert output("ask", "--max-tokens", "4", "hello").strip()


@pytest.mark.usefixtures("daemon")
def test_a_killed_engine_fails_its_request_and_is_replaced() -> None:
    # given a long answer under way
    asking = subprocess.Popen(
        [command("pagechat-daemon"), "ask", "--max-tokens", "4000", "Tell a very long story about the sea."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert asking.stdout is not None
    assert asking.stdout.read(1)
    dead = engine_pid()
    # when the engine dies
    os.kill(dead, signal.SIGKILL)
    # then the request fails instead of hanging
    _, complaint = asking.communicate(timeout=60)
    assert asking.returncode != 0
    assert b"engine" in complaint
    # and a new engine answers the next one
    assert output("ask", "--max-tokens", "4", "hello").strip()
    assert engine_pid() != dead


@pytest.mark.parametrize("arguments", [("status",), ("watch",), ("stop",)])
def test_a_command_that_needs_a_daemon_says_that_there_is_none(arguments: tuple[str, ...]) -> None:
    result = run("pagechat-daemon", *arguments)
    assert result.returncode != 0
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_status_for_scripts_says_stopped_without_a_daemon() -> None:
    result = run("pagechat-daemon", "status", "--json")
    assert (result.returncode, json.loads(result.stdout)) == (3, {"state": "stopped"})


def test_the_app_without_a_terminal_names_the_command_for_scripts() -> None:
    result = run("pagechat")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "pagechat-daemon ask" in line


def test_capacity_gives_the_worked_example() -> None:
    example = "capacity --model llama-2-13b --memory 80GiB --weights 26GiB --reserve 2048 --used 256 --json"
    result = json.loads(run("pagechat-bench", *example.split()).stdout)
    assert (result["contiguous"]["requests"], result["paged"]["requests"], result["ratio"]) == (34, 276, 8.0)


def test_bench_refuses_in_one_line_with_exit_code_2() -> None:
    result = run("pagechat-bench", "capacity", "--model", "nope", "--memory", "1GiB", "--used", "1")
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
