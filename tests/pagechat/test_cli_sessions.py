"""Sessions, usage and several answers on the command line, with a daemon that has a fake engine, or the real one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.blocks import POLICIES
from engine.process.config import EngineConfig
from pagechat.cli import daemon_main
from pagechat.commands.exits import CommandError
from pagechat.commands.options import engine_config
from pagechat.store import Store
from tests.daemons import Daemon, serving
from tests.models import tiny_llama

Main = Callable[..., tuple[int, str, str]]


@pytest.fixture
def daemon(fake_engine: Path) -> Iterator[Daemon]:
    with serving() as daemon:
        yield daemon


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    """Runs a `pagechat-daemon` command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pagechat-daemon", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        with pytest.raises(SystemExit) as ended:
            daemon_main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


def data(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


# -- options ---------------------------------------------------------------------------------------


def test_policy_and_swap_memory_reach_the_engine() -> None:
    config = engine_config(policy="contiguous-max", swap_memory="2MiB", model=None)
    assert config == EngineConfig(policy="contiguous-max", swap_memory=2 * 2**20)


@pytest.mark.parametrize(("said", "tokens"), [("8", 8), ("128", 128), ("auto", 16), (None, 16)])
def test_block_size_is_a_number_or_auto(said: str | None, tokens: int) -> None:
    assert engine_config(block_size=said).block_size == tokens


@pytest.mark.parametrize("said", ["7", "0", "-8", "16.0", "", "many"])
def test_no_other_block_size_is_taken(said: str) -> None:
    with pytest.raises(CommandError, match="8, 16, 32, 64, 128, or auto"):
        engine_config(block_size=said)


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--policy", "best-fit"),
        ("serve", "--swap-memory", "some"),
        ("ask", "-n", "17", "x"),
        ("ask", "--beams", "1", "x"),
        ("ask", "--length-penalty", "2", "x"),
        ("ask", "--beams", "2", "--length-penalty", "1e300", "x"),
        ("ask", "--beams", "2", "-n", "3", "x"),
        ("sessions", "explode"),
        ("sessions", "pin"),
        ("sessions", "fork", "one"),
        ("sessions", "list", "this"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], main: Main) -> None:
    code, out, err = main(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err


@pytest.mark.parametrize("arguments", [("sessions",), ("usage",), ("sessions", "pin", "x")])
def test_without_a_daemon_the_exit_code_is_3(arguments: tuple[str, ...], main: Main) -> None:
    assert main(*arguments)[0] == 3


# -- sessions and usage ----------------------------------------------------------------------------


@pytest.mark.usefixtures("daemon")
def test_a_session_is_listed_by_the_name_the_user_typed(main: Main) -> None:
    assert main("sessions")[1] == ""
    data(main("ask", "--json", "--session", "my chat", "hello there"))
    header, row = main("sessions")[1].splitlines()
    assert header.split() == ["session", "state", "tokens", "blocks", "pinned", "priority"]
    assert row.startswith("my chat  resident")
    # and a question that stands alone leaves nothing
    data(main("ask", "--json", "hello"))
    assert [one["session"] for one in data(main("sessions", "--json"))["sessions"]] == ["my chat"]


@pytest.mark.usefixtures("daemon")
def test_sessions_are_pinned_saved_closed_and_restored_by_name(main: Main) -> None:
    data(main("ask", "--json", "--session", "chat", "hello there"))
    assert main("sessions", "pin", "chat")[:2] == (0, "'chat' is never reclaimed\n")
    assert main("sessions")[1].splitlines()[1].split()[-1] == "yes"
    saved = data(main("sessions", "save", "chat", "--json"))
    assert main("sessions", "close", "chat")[0] == 0
    code, out, err = main("sessions", "unpin", "chat")
    assert (code, out, err) == (1, "", "pagechat-daemon: no session 'chat' here\n")
    assert data(main("sessions", "restore", "chat", "--json"))["tokens"] == saved["tokens"] > 0


@pytest.mark.usefixtures("daemon")
def test_a_fork_takes_the_chat_along_and_both_go_on(main: Main) -> None:
    data(main("ask", "--json", "--session", "chat", "a question that fills some blocks, " * 3))
    assert main("sessions", "fork", "chat", "branch")[0] == 0
    forked = Store().messages("branch")
    assert [message.content for message in forked] == [message.content for message in Store().messages("chat")]
    branch = data(main("ask", "--json", "--session", "branch", "and then?"))
    assert branch["usage"]["cached_tokens"] > 32
    assert branch["cache_miss"] is None
    # a name that is taken is not overwritten
    assert main("sessions", "fork", "chat", "branch")[0] == 1
    assert len(Store().messages("branch")) == 4


@pytest.mark.usefixtures("daemon")
def test_control_characters_in_a_name_do_not_reach_the_terminal(main: Main) -> None:
    data(main("ask", "--json", "--session", "bad\x1b[2Jname\nnext", "hello"))
    for arguments in (("sessions",), ("usage",), ("sessions", "pin", "bad\x1b[2Jname\nnext")):
        out = main(*arguments)[1]
        assert "\x1b" not in out
        assert "\nnext" not in out


@pytest.mark.usefixtures("daemon")
def test_usage_adds_up(main: Main) -> None:
    asked = data(main("ask", "--json", "--session", "chat", "hello there"))
    report = data(main("usage", "--json"))
    (owner,) = report["sessions"]
    assert owner["name"] == "chat"
    assert owner["generated_tokens"] == asked["usage"]["completion_tokens"]
    total = owner["block_seconds"] + report["unowned_block_seconds"]
    assert total == pytest.approx(report["num_blocks"] * report["seconds"])
    text = main("usage")[1]
    assert text.splitlines()[1].startswith("chat ")
    assert "= 64 blocks x" in text.splitlines()[-1]


@pytest.mark.usefixtures("daemon")
def test_status_says_what_each_policy_would_hold(main: Main) -> None:
    data(main("ask", "--json", "hello"))
    assert len(data(main("status", "--json"))["shadows"]) == 4
    table = main("status")[1].split("\n\n")[1].splitlines()
    assert table[0].startswith("would hold")
    assert len({len(line) for line in table}) == 1
    assert [line.split()[0] for line in table[1:]] == list(POLICIES)


# -- several answers -------------------------------------------------------------------------------


@pytest.mark.usefixtures("daemon")
def test_a_chat_that_was_changed_is_told_why_it_missed(main: Main) -> None:
    assert data(main("ask", "--json", "--session", "chat", "--system", "one", "hello"))["cache_miss"] is None
    missed = data(main("ask", "--json", "--session", "chat", "--system", "two", "hello"))["cache_miss"]
    assert missed.startswith("the prompt differs from the last turn at token")


@pytest.mark.usefixtures("daemon")
def test_several_answers_stand_one_after_the_other(main: Main) -> None:
    code, out, err = main("ask", "-n", "2", "--session", "chat", "hello")
    first, second = out.split("\n\n")
    assert (code, first) == (0, "user\nhello\nassistant")
    assert first.endswith(second.rstrip("\n"))
    assert [line for line in err.splitlines() if line.startswith("---")] == [
        "--- answer 1 of 2 ---",
        "--- answer 2 of 2 ---",
    ]
    # the chat goes on with the first
    assert Store().messages("chat")[-1].content == "user\nhello\nassistant\n"


@pytest.mark.usefixtures("daemon")
def test_json_has_all_answers_beside_the_first(main: Main) -> None:
    answer = data(main("ask", "--json", "-n", "3", "hello"))
    assert [one["index"] for one in answer["answers"]] == [0, 1, 2]
    assert answer["answers"][0] == {"index": 0, "text": answer["text"], "finish_reason": "stop"}
    searched = data(main("ask", "--json", "--beams", "3", "-n", "2", "hello"))
    scores = [one["score"] for one in searched["answers"]]
    assert scores == sorted(scores, reverse=True)
    assert "answers" not in data(main("ask", "--json", "hello"))


# -- with the real engine --------------------------------------------------------------------------


def test_the_real_engine_forks_saves_and_searches(tmp_path: Path, main: Main) -> None:
    def asked(*arguments: str) -> Any:
        return data(main("ask", "--json", "--max-tokens", "20", "--temperature", "0", *arguments))

    options = ("--model", str(tiny_llama(tmp_path)), "--num-blocks", "64", "--threads", "1", "--swap-memory", "1MiB")
    with serving(*options):
        first = asked("--session", "chat", "what is a page table, and who needs one?")
        assert main("sessions", "fork", "chat", "branch")[0] == 0
        assert main("sessions", "save", "chat")[0] == 0
        assert asked("--session", "branch", "go on")["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
        several = asked("-n", "2", "--beams", "2", "hello")["answers"]
        assert several[0]["score"] >= several[1]["score"]
        report = data(main("usage", "--json"))
        owned = sum(owner["block_seconds"] for owner in report["sessions"])
        assert owned + report["unowned_block_seconds"] == pytest.approx(report["num_blocks"] * report["seconds"])
    # when the daemon is started again, the saved session needs no prefill
    with serving(*options):
        assert main("sessions", "restore", "chat")[0] == 0
        again = asked("--session", "chat", "go on")
        assert again["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
