"""What can be done with what was said: queue, answer again, edit, continue, fork, copy, delete, undo."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from pagechat.app.app import PagechatApp
from pagechat.app.chat_settings import ChatSettings
from pagechat.app.message import Message
from pagechat.app.screens.facts import FactsScreen, facts_table, miss_text
from pagechat.app.screens.settings import SettingsScreen
from pagechat.app.widgets.messages import Answer
from pagechat.protocol import ChatMessage, ChatOptions
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.waiting import rendered, say, screen_text, wait_until


async def answered(app: PagechatApp, pilot: Pilot[None], text: str) -> Message:
    """The complete answer to a message sent now."""
    await say(app, pilot, text)
    await wait_until(pilot, lambda: not app.tabs.active.streaming and not app.tabs.active.queue)
    return app.tabs.active.messages[-1]


async def command(app: PagechatApp, pilot: Pilot[None], text: str) -> None:
    """Send a slash command."""
    app.main.composer.text = text
    app.main.composer.focus()
    await pilot.press("enter")


def told(app: PagechatApp) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in app.tabs.active.messages]


async def test_prompts_wait_for_their_turn_and_can_be_taken_back(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda prompt: [f"{prompt}{n} " for n in range(3)])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "one")
        for text in ("two", "three"):
            await pilot.press(*text, "enter")
        await wait_until(pilot, lambda: "queued 2  three" in screen_text(app))
        assert len(app.tabs.active.messages) == 2
        # up takes the last one back into the input
        await pilot.press("up")
        assert app.main.composer.text == "three"
        assert "queued 2" not in screen_text(app)
        daemon.go(100)
        await wait_until(pilot, lambda: len(app.tabs.active.messages) == 4 and not app.tabs.streaming)
        assert told(app)[2] == ("user", "two")
        assert app.main.composer.text == "three"


async def test_a_queue_is_held_after_a_failure_until_enter(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "x" * 5000)  # longer than the context of 2,048
        await pilot.press(*"next", "enter")
        daemon.go(1)
        await wait_until(pilot, lambda: app.tabs.active.state == "error")
        await wait_until(pilot, lambda: "enter sends the next one" in screen_text(app))
        app.tabs.active.set_messages([])
        await pilot.press("enter")
        daemon.go(100)
        await wait_until(pilot, lambda: "echo next" in rendered(app))


async def test_an_answer_again_an_edit_and_undo(open_app: OpenApp, db: object) -> None:
    replies = iter(["alpha", "beta", "gamma"])
    daemon = FakeDaemon(script=lambda _: [next(replies)])
    async with open_app(daemon) as (app, pilot):
        await answered(app, pilot, "question")
        await command(app, pilot, "/retry")
        await wait_until(pilot, lambda: told(app) == [("user", "question"), ("assistant", "beta")])
        await wait_until(pilot, lambda: not app.tabs.streaming and "alpha" not in rendered(app))
        # up in the messages: the question; e puts it into the input; what is sent takes its place
        await pilot.press("alt+up", "up", "e")
        assert app.main.composer.text == "question"
        await pilot.press("backspace", "enter")
        await wait_until(pilot, lambda: told(app) == [("user", "questio"), ("assistant", "gamma")])
        assert [message.content for message in daemon.asked[-1]] == ["questio"]
        await wait_until(pilot, lambda: not app.tabs.streaming)
        # both can be taken back, on the screen and in the history
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: told(app) == [("user", "question"), ("assistant", "beta")])
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: "alpha" in rendered(app) and "beta" not in rendered(app))
        chat = app.tabs.active.id
    assert [m.content for m in Store(db).messages(chat)] == ["question", "alpha"]  # type: ignore[arg-type]


async def test_a_stopped_answer_goes_on_where_it_stopped(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["one ", "two "])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        daemon.go(1)
        await wait_until(pilot, lambda: "one" in rendered(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.tabs.active.state == "idle")
        await command(app, pilot, "/continue")
        daemon.go(100)
        await wait_until(pilot, lambda: told(app)[1:] == [("assistant", "one one two ")])
        assert daemon.continued == [False, True]
        assert daemon.asked[1][-1] == ChatMessage(role="assistant", content="one ")


async def test_a_fork_is_a_new_tab_whose_blocks_are_shared(open_app: OpenApp, db: object) -> None:
    daemon = FakeDaemon(keeps=True)
    async with open_app(daemon) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        parent = app.tabs.active
        await pilot.press("alt+up", "f")
        await wait_until(pilot, lambda: len(app.tabs.conversations) == 2)
        child = app.tabs.active
        assert [m.content for m in child.messages] == [m.content for m in parent.messages]
        # 40 prompt tokens and all but the last of the answer fill blocks of 16: each has both chats for owners now
        mirror = app.view.mirror
        assert mirror is not None
        await wait_until(pilot, lambda: mirror.status().shared == mirror.status().saved > 2)
        assert {table.session for table in mirror.tables.values()} == {parent.id, child.id}
        await wait_until(pilot, lambda: "shared with it, not copied" in screen_text(app))
        # fork from a question: the chat before it, and the question to write it otherwise
        await pilot.press("alt+up", "up", "f")
        await wait_until(pilot, lambda: len(app.tabs.conversations) == 3)
        assert (app.tabs.active.messages, app.main.composer.text) == ([], "q" * 40)
        await app.keeper.flush()
    found = Store(db).find_chat(child.id)  # type: ignore[arg-type]
    assert found is not None
    assert (found.parent, found.forked_at) == (parent.id, 2)


async def test_a_fork_in_mid_chat_shares_the_blocks_up_to_there(open_app: OpenApp) -> None:
    daemon = FakeDaemon(keeps=True, script=lambda prompt: [prompt[0]] * 40)
    async with open_app(daemon) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        await answered(app, pilot, "r" * 40)
        parent = app.tabs.active
        await pilot.press("alt+up", "up", "up", "f")  # the first answer
        await wait_until(pilot, lambda: len(app.tabs.conversations) == 2)
        child = app.tabs.active
        assert len(child.messages) == 2
        tables = {table.session: table for table in daemon.core.snapshot(1).sequences}
        upto = len("q" * 40 + "\n" + "q" * 40)  # a token a character, as the fake daemon reads a chat
        assert tables[child.id].length == upto
        assert tables[child.id].blocks == tables[parent.id].blocks[: -(-upto // 16)]
        assert len(tables[parent.id].blocks) > len(tables[child.id].blocks)


async def test_copies_go_to_the_clipboard(open_app: OpenApp) -> None:
    answer = "See\n\n```py\nx = 1\n```\n\nor\n\n```\ny\n```\n"
    async with open_app(FakeDaemon(script=lambda _: [answer])) as (app, pilot):
        await answered(app, pilot, "code")
        await command(app, pilot, "/copy")
        assert app.clipboard == answer
        await pilot.press("alt+up", "y")
        assert app.clipboard == "y\n"
        await pilot.press("y")
        assert app.clipboard == "x = 1\n"
        await pilot.press("escape")
        await command(app, pilot, "/copy chat")
        assert "**You**\n\ncode" in app.clipboard


async def test_a_message_is_deleted_and_comes_back(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        await answered(app, pilot, "a")
        await pilot.press("alt+up", "up", "d")
        await wait_until(pilot, lambda: told(app) == [("assistant", "echo a")])
        await pilot.press("alt+z")
        await wait_until(pilot, lambda: told(app) == [("user", "a"), ("assistant", "echo a")])


async def test_settings_hold_for_the_next_answer_and_are_remembered(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        await command(app, pilot, "/set precise")
        await command(app, pilot, "/set top-k 40")
        await command(app, pilot, "/system Be brief.")
        await command(app, pilot, "/set temperature hot")
        await wait_until(pilot, lambda: "'hot' cannot be taken" in screen_text(app))
        await answered(app, pilot, "hi")
        assert daemon.asked[0][0] == ChatMessage(role="system", content="Be brief.")
        assert daemon.options == [ChatOptions(temperature=0.0, top_k=40)]
        await pilot.press("f4")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        assert all(text in screen_text(app) for text in ("Be brief.", "0.0", "40"))
        await pilot.click("#preset-repeatable")
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: app.screen is app.main)
        wanted = ChatSettings(system="Be brief.", temperature=0.7, top_p=0.95, seed=1)
        assert app.tabs.active.settings == wanted
    async with open_app(FakeDaemon()) as (app, _):
        assert app.tabs.active.settings == wanted


async def test_slash_commands_are_completed_and_paths_are_messages(open_app: OpenApp) -> None:
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        await pilot.press(*"/re")
        await wait_until(pilot, lambda: "/rename NAME" in screen_text(app) and "/retry" in screen_text(app))
        await pilot.press("tab")
        assert app.main.composer.text == "/reasoning"
        app.main.composer.text = ""
        await pilot.press(*"/ren", "enter", *"a name", "enter")
        assert (app.tabs.active.title, app.main.composer.text) == ("a name", "")
        await command(app, pilot, "/retri")
        await wait_until(pilot, lambda: "Did you mean /retry?" in screen_text(app))
        assert daemon.asked == []
        app.main.composer.text = ""
        await answered(app, pilot, "/usr/bin/env is what?")
        assert daemon.asked[0][0].content == "/usr/bin/env is what?"


async def test_reasoning_is_folded_and_never_more_than_text(open_app: OpenApp) -> None:
    daemon = FakeDaemon(step_s=0, script=lambda _: ["<think>\n", "so [/b] it", "</think>\n\n", "The end."])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "why")
        daemon.go(2)
        await wait_until(pilot, lambda: "thinking … so [/b] it" in rendered(app))
        daemon.go(9)
        await wait_until(pilot, lambda: "thought, 3 words" in rendered(app) and "The end." in rendered(app))
        assert "so [/b] it" not in rendered(app)
        await pilot.press("alt+up", "t")
        await wait_until(pilot, lambda: "so [/b] it" in rendered(app))
        assert app.main.query_one(Answer).message.content.startswith("<think>")


async def test_the_facts_of_a_message_tell_why_the_cache_missed(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon()) as (app, pilot):
        answer = await answered(app, pilot, "the dog sat")
        answer.note(cache_miss="differs", miss_position=4)
        await pilot.press("alt+up", "i")
        await wait_until(pilot, lambda: isinstance(app.screen, FactsScreen))
        await wait_until(pilot, lambda: "the dog sat" in screen_text(app))
        assert "prompt            11 tokens: 0 cached, 11 computed" in screen_text(app)


def test_the_facts_are_counted_rightly() -> None:
    message = Message("assistant", "x", "complete", {
        "finish_reason": "length", "prompt_tokens": 40, "cached_tokens": 32, "completion_tokens": 9,
        "ttft_s": 0.5, "total_s": 2.5, "preemptions": 1,
    })  # fmt: skip
    text = facts_table(message, 16).plain
    # 40 + 9 tokens, of which the last has no KV: 48 in 3 blocks; 8 tokens after the first in 2 s
    assert "32 cached, 8 computed" in text
    assert "3 of 16 tokens" in text
    assert "4.0 tokens/s" in text
    assert "cut: the token limit" in text


def test_the_text_around_a_miss_is_safe_and_may_be_the_end() -> None:
    pieces = ["a", "\x1b[2J", "[/b]", "d"]
    assert miss_text(pieces, 2).plain.endswith("a␛[2J[/b]d")
    assert miss_text(pieces, 9).plain.endswith("(the end)")


@pytest.mark.parametrize("name", ["nonsense", "system_prompt"])
def test_a_parameter_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="there is no"):
        ChatSettings().changed(name, "1")


def test_settings_of_another_version_are_taken_as_far_as_they_are_known() -> None:
    from pagechat.app.chat_settings import settings_from

    assert settings_from({"temperature": 0.5, "mirostat": 2, "top_p": "high"}) == ChatSettings(temperature=0.5)
    assert msgspec.to_builtins(ChatSettings()) == {}
