"""The commands as processes, with a fake engine: what they print, how they exit, what they leave behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import pytest

from engine.protocol import StepReport
from pagechat import __version__, rundir
from pagechat.cli import daemon_main
from pagechat.client import EngineClient
from pagechat.recording import load
from pagechat.store import Store
from tests.daemons import ROOT, command, notes, serving, socket_files, user, wait_until
from tests.processes import processes_of_the_tests

pytestmark = pytest.mark.usefixtures("fake_engine")


@pytest.fixture(autouse=True)
def nothing_stays(fake_engine: Path, folders: Path) -> Iterator[None]:
    """However a test ends its daemon: no process and no socket file stays."""
    before = set(processes_of_the_tests())
    yield
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of every process")
    assert socket_files(folders / "run") == set()


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a `pagechat-daemon` command in this process."""

    def run(*arguments: str, text: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["pagechat-daemon", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        with pytest.raises(SystemExit) as ended:
            daemon_main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err)

    return run


Main = Callable[..., Result]


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pagechat.commands", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what a test has not read stays in the pipe
        **options,
    )


def running(pid: int) -> bool:
    return pid in processes_of_the_tests()


# -- help and mistakes -----------------------------------------------------------------------------


def test_help_and_version_are_quick_and_import_little() -> None:
    code = (
        "import sys\nfrom pagechat.cli import daemon_main, app_main, bench_main\n"
        "for main in (daemon_main, app_main, bench_main):\n"
        "    for option in ('--help', '--version'):\n"
        "        sys.argv[1:] = [option]\n"
        "        try: main()\n"
        "        except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'textual', 'zmq', 'transformers', 'tokenizers', 'numpy', 'rich', 'jinja2'}\n"
        "print(heavy & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "set()"
    assert result.stdout.count(f"pagechat {__version__}") == 3
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--block-size", "7"),
        ("serve", "--kv-memory", "plenty"),
        ("serve", "--dtype", "float3"),
        ("serve", "--max-running", "0"),
        ("serve", "--max-running", "99999"),
        ("serve", "--step-tokens", "-1"),
        ("serve", "--threads", "10000"),
        ("serve", "--max-context", "1"),
        ("serve", "--num-blocks", "1000000000000"),
        ("serve", "--swap-memory", "-1"),
        ("serve", "--kv-memory", "0"),
        ("serve", "--hang-timeout", "nan"),
        ("serve", "--drain", "nan"),
        ("ask",),
        ("ask", "--temperature", "9", "x"),
        ("ask", "--top-p", "0", "x"),
        ("ask", "--seed", "-1", "x"),
        ("ask", "--stop", "", "x"),
        ("ask", "-"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], main: Main) -> None:
    result = main(*arguments)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), result.stderr


def test_stdin_that_is_no_text_is_refused(main: Main) -> None:
    result = main("ask", "-", text=b"\xff\xfe\x00")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.usefixtures("shared_daemon")
def test_an_argument_that_is_no_text_is_refused(main: Main) -> None:
    result = main("ask", os.fsdecode(b"caf\xe9"))
    assert result.returncode == 1
    assert "surrogates not allowed" in result.stderr


def test_flags_go_before_the_environment_before_the_file(
    folders: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = folders / "xdg-config" / "pagechat" / "config.toml"
    config.parent.mkdir()
    config.write_text('num-blocks = 10\nblock-size = 32\nmodel = "from-file"\ncolour = "red"\n')
    monkeypatch.setenv("PAGECHAT_BLOCK_SIZE", "64")
    monkeypatch.setenv("PAGECHAT_MODEL", "from-environment")
    with serving("--model", "from-flag"), EngineClient() as client:
        snapshot = client.snapshot()
        status = client.status()
        found = main("status")
    assert status.model is not None
    assert (status.model.name, snapshot.block_size, snapshot.num_blocks) == ("from-flag", 64, 10)
    # and what nobody knows is reported, not obeyed and not fatal
    assert found.returncode == 0
    assert "unknown key 'colour'" in found.stderr


# -- serve -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_daemon_with_what_it_has_started(number: signal.Signals) -> None:
    with serving() as daemon:
        with EngineClient() as client:
            client.snapshot()
        daemon.signal(number)
        assert daemon.process.wait(10) == 0
        assert "ready in" in daemon.said()


def test_a_second_signal_does_not_break_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as daemon:
        with EngineClient() as client:
            stream = client.chat(user("x"), session="hang")  # an engine that will not end by itself
            next(stream)
            wait_until(lambda: "AddRequest hang" in notes(), "request")
            daemon.signal(signal.SIGTERM)
            for _ in range(30):
                time.sleep(0.01)
                daemon.signal(signal.SIGTERM)
            daemon.signal(signal.SIGINT)
            assert list(stream)[-1].finish_reason == "abort"  # type: ignore[union-attr]
        assert daemon.process.wait(10) == 0
        assert socket_files() == set()


def test_an_answer_under_way_keeps_its_text_when_the_daemon_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    with serving() as daemon:
        child = start("ask", "--session", "story", "once")
        wait_until(lambda: any(note.startswith("AddRequest") for note in notes()), "request")
        assert child.stdout is not None
        first = child.stdout.read(1)
        daemon.signal(signal.SIGTERM)
        out, complaint = child.communicate(timeout=30)
    assert child.returncode == 1
    assert b"stopped before the answer was complete" in complaint
    store = Store()
    question, answer = store.messages("story")
    store.close()
    assert question.content == "once"
    assert answer.status == "stopped"
    assert answer.content.strip() == (first + out).decode().strip()


def test_the_engine_ends_with_a_killed_front() -> None:
    with serving() as daemon:
        with EngineClient() as client:
            client.snapshot()
            engine = client.status().engine_pid
        assert engine is not None
        daemon.signal(signal.SIGKILL)
        wait_until(lambda: not running(engine), "end of the engine", 5)
    # and what the front left lying does not keep the next daemon from starting
    assert socket_files() != set()
    with serving(), EngineClient() as client:
        assert client.snapshot().num_blocks == 64


def test_a_second_daemon_says_which_one_runs() -> None:
    with serving() as daemon:
        result = command("serve")
        assert result.returncode == 1
        assert f"process {daemon.process.pid}" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        with EngineClient() as client:  # which goes on
            client.snapshot()


def test_a_model_that_cannot_be_loaded_ends_serve_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    result = command("serve")
    assert result.returncode == 1
    assert "no such model: [bold]nope[/bold]" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_ephemeral_daemon_ends_with_its_parent_and_lets_others_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    with serving("--ephemeral", stdin=subprocess.PIPE) as daemon, EngineClient() as client:
        stream = client.chat(user("of another client"), session="s")
        next(stream)
        # when the parent goes
        assert daemon.process.stdin is not None
        daemon.process.stdin.close()
        # then the other client's answer is finished first
        assert list(stream)[-1].finish_reason == "stop"  # type: ignore[union-attr]
        assert daemon.process.wait(10) == 0


def test_the_bar_is_for_terminals_and_text_from_elsewhere_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    child = pexpect.spawn(sys.executable, ["-m", "pagechat.commands", "serve"], cwd=str(ROOT), timeout=20)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
    assert b"[bold]nope[/bold]" in child.before


# -- ask -------------------------------------------------------------------------------------------


def test_ask_without_a_daemon_starts_one_and_stops_it(main: Main) -> None:
    result = main("ask", "hello", "world")
    assert (result.returncode, result.stdout) == (0, "user\nhello world\nassistant\n")
    assert notes()[-1] == "Shutdown"


@pytest.mark.usefixtures("shared_daemon")
def test_ask_uses_the_daemon_that_runs_and_lets_it_run(main: Main) -> None:
    for _ in range(2):
        assert main("ask", "-", text=b"from stdin\n").stdout == "user\nfrom stdin\nassistant\n"
    assert main("status").returncode == 0
    assert notes().count("start") == 1


@pytest.mark.usefixtures("shared_daemon")
def test_ask_as_json_gives_these_fields(main: Main) -> None:
    result = json.loads(main("ask", "--json", "--max-tokens", "4", "héllo 🌶").stdout)
    assert set(result) == {"text", "finish_reason", "session", "usage", "timing", "cache_miss"}
    assert result["text"].startswith("user\nh")
    assert result["finish_reason"] == "length"
    assert set(result["usage"]) == {"prompt_tokens", "cached_tokens", "completion_tokens"}
    assert result["usage"]["completion_tokens"] == 4
    assert set(result["timing"]) == {"ttft_s", "total_s"}
    assert result["session"]


@pytest.mark.usefixtures("shared_daemon")
def test_a_session_goes_on_from_call_to_call(main: Main) -> None:
    main("ask", "--session", "notes", "--system", "be kind", "first")
    result = json.loads(main("ask", "--session", "notes", "--json", "second").stdout)
    # the fake engine echoes its prompt: the whole chat so far, with the system message
    assert result["text"].startswith("system\nbe kind\nuser\nfirst\nassistant\nsystem\nbe kind\nuser\nfirst\n")
    assert result["text"].endswith("user\nsecond\nassistant\n")
    assert result["session"] == "notes"
    store = Store()
    assert [(message.role, message.status) for message in store.messages("notes")] == [
        ("system", "complete"),
        ("user", "complete"),
        ("assistant", "complete"),
        ("user", "complete"),
        ("assistant", "complete"),
    ]
    store.close()


def test_a_question_without_an_answer_does_not_come_back(main: Main) -> None:
    with serving():
        failed = main("ask", "--session", "die-and-rise", "--max-tokens", "9", "unanswered")
        assert failed.returncode == 1
        again = json.loads(main("ask", "--json", "--session", "die-and-rise", "--max-tokens", "3", "next").stdout)
    assert "engine" in failed.stderr
    assert again["finish_reason"] == "length"
    store = Store()
    messages = store.messages("die-and-rise")
    store.close()
    assert [(message.role, message.status) for message in messages] == [
        ("user", "complete"),
        ("assistant", "error"),
        ("user", "complete"),
        ("assistant", "complete"),
    ]


@pytest.mark.usefixtures("shared_daemon")
def test_the_model_that_was_asked_for_must_be_the_one_that_answers(main: Main) -> None:
    assert main("ask", "--model", "smollm2", "hello").returncode == 0
    result = main("ask", "--model", "other", "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert "serves smollm2, not other" in result.stderr


def test_a_model_that_cannot_be_loaded_fails_the_question_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    result = main("ask", "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert "no such model" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_answer_keeps_what_was_printed(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    with serving():
        child = start("ask", "--session", "long one", "go on")
        assert child.stdout is not None
        first = child.stdout.read(2)
        child.send_signal(number)
        out, complaint = child.communicate(timeout=30)
        assert child.returncode == 130
        assert b"Traceback" not in complaint
        wait_until(lambda: "AbortRequest" in notes(), "abort")
    store = Store()
    answer = store.messages("long one")[-1]
    store.close()
    assert answer.status == "stopped"
    assert answer.content.strip() == (first + out).decode().strip()


def test_an_interruption_while_its_own_daemon_loads_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    child = start("ask", "hello")
    wait_until(lambda: "start" in notes(), "engine")
    child.send_signal(signal.SIGINT)
    _, complaint = child.communicate(timeout=30)
    assert child.returncode == 130
    assert b"Traceback" not in complaint


def test_a_killed_ask_takes_its_own_daemon_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    child = start("ask", "--session", "long", "hello")
    assert child.stdout is not None
    child.stdout.read(1)
    child.kill()
    child.communicate()
    # (fixture) the daemon it had started ends, and its engine


def test_a_reader_that_leaves_early_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    with serving():
        child = start("ask", "--session", "long", "go on")
        assert child.stdout is not None
        child.stdout.read(1)
        child.stdout.close()
        assert child.wait(10) == 141
        assert child.stderr is not None
        assert b"Traceback" not in child.stderr.read()
        child.stderr.close()
        wait_until(lambda: "AbortRequest" in notes(), "abort")


@pytest.mark.usefixtures("shared_daemon")
def test_control_characters_reach_a_pipe_as_they_are_and_a_terminal_as_marks(main: Main) -> None:
    text = "\x1b]0;title\x07 red \x1b[31m \x9b"
    child = pexpect.spawn(sys.executable, ["-m", "pagechat.commands", "ask", text], cwd=str(ROOT), timeout=20)
    child.expect(pexpect.EOF)
    child.close()
    assert text in main("ask", text).stdout
    assert b"\x1b]0;" not in child.before
    assert "␛]0;title".encode() in child.before


# -- status, watch, stop ---------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("status",), ("watch",), ("stop",)])
def test_without_a_daemon_that_is_said_with_exit_code_3(arguments: tuple[str, ...], main: Main) -> None:
    result = main(*arguments)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (3, "", 1)


def test_status_as_json_without_a_daemon_is_an_object_too(main: Main) -> None:
    result = main("status", "--json")
    assert (result.returncode, json.loads(result.stdout)) == (3, {"state": "stopped"})


@pytest.mark.usefixtures("shared_daemon")
def test_status_as_json_gives_these_fields(main: Main) -> None:
    main("ask", "hello")
    result = json.loads(main("status", "--json").stdout)
    assert result["state"] == "ready"
    assert result["model"] == "smollm2"
    assert result["device"] == "cpu"
    assert result["uptime_s"] > 0
    assert {
        "num_blocks",
        "block_size",
        "free",
        "cached",
        "active",
        "shared",
        "slots_used",
        "internal_waste",
        "largest_free_run",
    } <= set(result["pool"])
    assert set(result["scheduler"]) == {"running", "waiting", "preemptions", "compilations"}
    assert set(result["throughput"]) == {"prompt_tokens_per_s", "generated_tokens_per_s"}


def test_status_for_people_tells_what_the_engine_does(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "slow")
    with serving():
        wait_until(lambda: "slowly" in main("status").stdout, "loading")
        with EngineClient() as client:
            client.snapshot()
        lines = main("status").stdout.splitlines()
    starts = {line.split("  ")[0] for line in lines}
    assert {"state", "model", "pool", "blocks", "requests"} <= starts


def test_watch_gives_a_snapshot_then_the_steps_and_ends_with_the_daemon() -> None:
    with serving() as daemon:
        watching = start("watch")
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert first["type"] == "Snapshot"
        command("ask", "hello")
        step = json.loads(watching.stdout.readline())
        assert step["type"] in ("StepReport", "Snapshot")  # a snapshot more when it came before the first report
        daemon.signal(signal.SIGTERM)
        lines, complaint = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert b"the daemon has ended" in complaint
    kinds = [json.loads(line)["type"] for line in lines.splitlines()]
    assert kinds.count("StepReport") > 3


def test_watch_ends_by_ctrl_c_and_by_a_closed_pipe() -> None:
    with serving():
        watching = start("watch")
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=30)
        assert (watching.returncode, complaint) == (0, b"")
        watching = start("watch")
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        command("ask", "hello")
        assert watching.wait(10) == 141
        assert watching.stderr is not None
        assert watching.stderr.read() == b""
        watching.stderr.close()


def test_record_ends_by_ctrl_c_pressed_twice_with_a_file_that_plays(tmp_path: Path) -> None:
    file = tmp_path / "pool.rec"
    with serving():
        recording = start("record", str(file))
        assert recording.stderr is not None
        assert b"Ctrl-C ends it" in recording.stderr.readline()
        command("ask", "hello")
        wait_until(lambda: file.stat().st_size > 1000, "frames in the file")
        recording.send_signal(signal.SIGINT)
        recording.send_signal(signal.SIGINT)
        _, told = recording.communicate(timeout=30)
        assert (recording.returncode, b"Traceback" in told) == (0, False)
        assert b"frames" in told
        again = command("record", str(file))
    assert again.returncode == 1
    assert "cannot be made: File exists" in again.stderr
    steps = [frame.content for frame in load(file).frames if isinstance(frame.content, StepReport)]
    assert sum(step.generated_tokens for step in steps) > 0


def test_stop_ends_the_daemon_and_returns_when_it_has_gone() -> None:
    with serving() as daemon:
        result = command("stop")
        assert result.returncode == 0
        assert not rundir.daemon_lives(rundir.run_dir())
        assert daemon.process.wait(1) == 0


# -- the app's command -----------------------------------------------------------------------------


def test_the_app_without_a_terminal_names_the_other_command_and_imports_no_screen() -> None:
    code = "import sys\nfrom pagechat.cli import app_main\ntry: app_main()\nfinally: print('textual' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, input="")
    assert (result.returncode, result.stdout) == (2, "False\n")
    assert "pagechat-daemon ask" in result.stderr
    assert len(result.stderr.splitlines()) == 1
