"""The installed app in a real pseudo-terminal, with the real default model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from pagechat.client import EngineClient
from pagechat.store import Store, StoredMessage
from tests.e2e.terminal import Terminal, command
from tests.e2e.test_commands import run_files, wait_until
from tests.processes import processes_of_the_tests

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("smollm2")]

CTRL_Q = "\x11"
ENTER = "\r"
ESCAPE = "\x1b"


def history() -> list[StoredMessage]:
    """All messages of all chats, as another process reads them from the disk."""
    store = Store()
    try:
        return [message for chat in store.chats() for message in store.messages(chat.id)]
    finally:
        store.close()


def answers(status: str) -> list[str]:
    return [message.content for message in history() if message.role == "assistant" and message.status == status]


def is_ready(terminal: Terminal) -> bool:
    """The map of the real pool is there, and nothing lies over it any more."""
    return "16-token blocks" in terminal.text and "block by block" not in terminal.text


def words(text: str) -> str:
    """The words alone: Markdown's marks are not drawn as they are written."""
    return " ".join(re.sub(r"[^\w\s]", " ", text).split())


def chat_on(terminal: Terminal) -> str:
    """The words in the chat's pane, left of the map."""
    return words(" ".join(re.split("[│╭╰]", line)[0] for line in terminal.lines))


def test_a_question_is_answered_beside_the_map_and_is_there_again_next_time(folders: Path) -> None:
    before = set(processes_of_the_tests())
    # given the app on a wide terminal, its own daemon and model ready
    with Terminal(command("pagechat")) as terminal:
        terminal.wait_until(lambda: is_ready(terminal), "map and composer", 90)
        # when a question is typed and sent
        terminal.type("Write a long story about the sea.")
        terminal.wait_until(lambda: "Write a long story about the sea." in terminal.text, "question in the composer")
        terminal.type(ENTER)
        # then the answer comes piece by piece: it is on the screen, and on disk, before it is complete
        terminal.wait_until(lambda: bool(answers("streaming") and answers("streaming")[0].split()[2:]), "first words")
        first_words = " ".join(words(answers("streaming")[0]).split()[:3])
        terminal.wait_until(lambda: first_words in chat_on(terminal), f"{first_words!r} on the screen")
        # and the map shows the blocks of this chat by its letter
        # (a small part of the pool is drawn large: a block is its letter and how full it is)
        terminal.wait_until(lambda: re.search("aaa|a█a█a█", terminal.text), "blocks of chat A on the map")
        # when the person has read enough, stops it and leaves
        terminal.type(ESCAPE)
        terminal.wait_until(lambda: not answers("streaming"), "end of the answer")
        (answer,) = [*answers("stopped"), *answers("complete")]  # complete: the model was faster
        terminal.type(CTRL_Q)
        # then the app ends well, and neither process nor socket file of it stays
        assert terminal.wait_for_end() == 0
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of the daemon", 20)
    assert run_files(folders) == set()
    # and the chat is there again next time
    with Terminal(command("pagechat")) as terminal:
        last_words = " ".join(words(answer).split()[-3:])
        terminal.wait_until(lambda: last_words in chat_on(terminal), f"{last_words!r}, reopened", 90)
        terminal.wait_until(lambda: is_ready(terminal), "map and composer", 90)
        terminal.type(CTRL_Q)
        assert terminal.wait_for_end() == 0
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of the daemon", 20)


def engine() -> int:
    """The process id of the engine that the app's daemon started."""
    found: list[int] = []
    with contextlib.closing(EngineClient.connect(name="test")) as client:
        wait_until(lambda: found.append(client.status().engine_pid or 0) or found[-1], "engine")
    return found[-1]


def test_an_engine_that_stands_still_takes_no_keys_and_leaving_loses_nothing(folders: Path) -> None:
    before = set(processes_of_the_tests())
    with Terminal(command("pagechat")) as terminal:
        terminal.wait_until(lambda: is_ready(terminal), "map and composer", 240)
        terminal.type("/set max-tokens 12" + ENTER)
        terminal.type("Say hello." + ENTER)
        terminal.wait_until(lambda: bool(answers("complete")), "an answer", 90)
        # given an engine that does nothing any more
        stopped = engine()
        os.kill(stopped, signal.SIGSTOP)
        try:
            # when the chat is forked, and somebody types on
            terminal.type("\x1b[18~" + "f")  # f7: into the messages
            terminal.wait_until(lambda: "B Say hello" in terminal.lines[0], "the fork's tab", 20)
            terminal.type("half a thought")
            # then every key is read, and the text is in the history at once
            terminal.wait_until(lambda: "half a thought" in terminal.text, "what is typed", 10)
            # and the app ends when it is told to
            began = time.monotonic()
            terminal.type(CTRL_Q)
            assert terminal.wait_for_end() == 0
            assert time.monotonic() - began < 8  # 3 s on an idle machine
        finally:
            os.kill(stopped, signal.SIGCONT)
    store = Store()
    drafts = [store.draft(chat.id).text for chat in store.chats()]
    store.close()
    assert sorted(drafts) == ["", "half a thought"]
    wait_until(lambda: set(processes_of_the_tests()) <= before, "end of the daemon", 30)
