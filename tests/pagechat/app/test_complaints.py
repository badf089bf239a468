"""The public complaints of reference/terminal.md, section 4, about other programs of this kind, by their numbers there.

A complaint has a test here that is named after it, or one elsewhere (ELSEWHERE):

1 an answer with `[/INST]` closes the app: test_chatting.py, test_text_is_only_ever_text
5 a person types `[type=frozen_instance, ...]`: test_chatting.py, test_text_is_only_ever_text
10 ANSI and OSC 52 in what a model writes: test_text_safety.py, test_no_control_survives_whatever_the_text
20 no scrolling up while an answer streams: test_chatting.py,
   test_the_view_follows_the_end_only_while_the_person_is_there
23 a copy over SSH reaches nobody: test_clipboard.py, test_the_app_copies_by_the_program_and_else_by_the_terminal
26 the mouse is kept from the terminal: test_fit.py, test_the_mouse_can_be_left_to_the_terminal
35 another chat is looked at while one streams: test_chatting.py,
   test_two_chats_stream_at_once_and_switching_loses_nothing
37 the history file is deleted under the app: test_conversation.py,
   test_open_chats_are_saved_again_when_the_file_was_deleted
38 the backend is down: test_lifecycle.py, test_a_daemon_that_dies_leaves_the_text_and_another_one_goes_on
41 a theme of the terminal's own colours: test_themes.py, test_a_theme_of_the_terminals_colours_has_no_others
43 a light terminal: test_themes.py, test_everything_can_be_read_in_the_built_in_themes
44 a display that stands still: test_panels.py, test_a_frozen_view_stands_still_steps_and_catches_up
46 a branch from any point: test_messages.py, test_a_fork_in_mid_chat_shares_the_blocks_up_to_there
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
from textual._xterm_parser import XTermParser
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot
from wcwidth import wcswidth

from engine.protocol import LoadProgress
from pagechat.app.app import PagechatApp
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.main import TICK_S
from pagechat.app.widgets.composer import Composer
from pagechat.app.widgets.messages import Prose
from pagechat.app.widgets.transcript import MOST, Transcript
from pagechat.store import Store
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import answered, command
from tests.pagechat.app.waiting import drawn, rendered, say, screen_text, wait_until

ROOT = Path(__file__).parents[3]
APP = "tests/pagechat/app"

ELSEWHERE = {
    1: f"{APP}/test_chatting.py::test_text_is_only_ever_text",
    5: f"{APP}/test_chatting.py::test_text_is_only_ever_text",
    10: "tests/pagechat/test_text_safety.py::test_no_control_survives_whatever_the_text",
    20: f"{APP}/test_chatting.py::test_the_view_follows_the_end_only_while_the_person_is_there",
    23: f"{APP}/test_clipboard.py::test_the_app_copies_by_the_program_and_else_by_the_terminal",
    26: f"{APP}/test_fit.py::test_the_mouse_can_be_left_to_the_terminal",
    35: f"{APP}/test_chatting.py::test_two_chats_stream_at_once_and_switching_loses_nothing",
    37: f"{APP}/test_conversation.py::test_open_chats_are_saved_again_when_the_file_was_deleted",
    38: f"{APP}/test_lifecycle.py::test_a_daemon_that_dies_leaves_the_text_and_another_one_goes_on",
    41: "tests/pagechat/test_themes.py::test_a_theme_of_the_terminals_colours_has_no_others",
    43: "tests/pagechat/test_themes.py::test_everything_can_be_read_in_the_built_in_themes",
    44: f"{APP}/test_panels.py::test_a_frozen_view_stands_still_steps_and_catches_up",
    46: f"{APP}/test_messages.py::test_a_fork_in_mid_chat_shares_the_blocks_up_to_there",
}

COMPLAINTS = {
    *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43),
    *(44, 46),
}
"""The numbers that reference/terminal.md lists."""


def test_every_complaint_is_held_by_a_test() -> None:
    named = (re.match(r"test_complaint_(\d+)_", name) for name in globals())
    here = {int(found[1]) for found in named if found}
    assert here | set(ELSEWHERE) == COMPLAINTS
    assert not here & set(ELSEWHERE)
    for number, place in ELSEWHERE.items():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), place
        assert re.search(rf"^{number} [^:]*: {Path(file).name},\s+{name}$", __doc__ or "", re.MULTILINE), place


class Wire:
    """A terminal emulator on what the app writes: what a person at a real terminal would see."""

    def __init__(self, width: int, height: int) -> None:
        self.screen = pyte.Screen(width, height)
        self.frames: list[str] = []
        self._stream = pyte.Stream(self.screen)

    def write(self, data: str) -> None:
        self.frames.append(data)
        self._stream.feed(data)

    @property
    def written(self) -> str:
        return "".join(self.frames)


@contextmanager
def wired(app: PagechatApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """The app believes to be on a terminal, and draws on it."""
    wire = Wire(*app.size)
    with monkeypatch.context() as patch:
        patch.setattr(HeadlessDriver, "is_headless", False)
        patch.setattr(HeadlessDriver, "write", lambda self, data: wire.write(data))
        app.refresh()
        yield wire


# -- markup and escapes ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["see [/some/path] first", "an [/] end", "and [bold never ends"])
async def test_complaint_2_reasoning_that_looks_like_markup(open_app: OpenApp, text: str) -> None:
    """`[/some/path]`, `[/]` or `[bold` in what is being thought ends the app in mid-stream."""
    daemon = FakeDaemon(step_s=0, script=lambda _: list(f"<think>{text}</think>done"))
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "why")
        for cut in range(len(text) + 1):  # the screen is drawn at every character of it
            daemon.go(len("<think>") + cut - len(app.tabs.active.messages[-1].content))
            wanted = f"<think>{text[:cut]}"
            await wait_until(pilot, lambda wanted=wanted: app.tabs.active.messages[-1].content == wanted)
            await app.main.transcript.sync(now=True)
        assert f"thinking … {text}" in rendered(app)
        daemon.go(100)
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        await pilot.press("alt+up", "t")
        await wait_until(pilot, lambda: text in rendered(app))


async def test_complaint_4_an_input_with_what_looks_like_markup(open_app: OpenApp) -> None:
    """`[data: /messages?sessionId=bbbc7a8e-609b-]` in an input ends the app. Ours have placeholders of our own, and
    this text where they show any."""
    text = "[data: /messages?sessionId=bbbc7a8e-609b-]"
    async with open_app(FakeDaemon()) as (app, pilot):
        app.main.composer.fill(text)
        await wait_until(pilot, lambda: text in screen_text(app))
        await pilot.press("enter")
        await wait_until(pilot, lambda: not app.tabs.streaming)
        await pilot.press("f2")  # its title, to change
        await wait_until(pilot, lambda: screen_text(app).count(text[:35]) >= 2)
        await pilot.press("escape", "f4", *text)  # the system prompt
        await wait_until(pilot, lambda: text in screen_text(app))
        await pilot.press("ctrl+s", "ctrl+o", *text)  # words to search for
        await wait_until(pilot, lambda: text in screen_text(app))


async def test_complaint_7_text_within_our_own_sentences(open_app: OpenApp) -> None:
    """`[/dim]` in an inserted text ends the markup around it, and the app: `closing tag '[/dim]' at position 52`."""
    evil = "e[/dim] [bold"
    daemon = FakeDaemon(keeps=True)
    daemon.state, daemon.load = "starting", LoadProgress("loading", evil, 1, 2)
    async with open_app(daemon, ready=False, size=(160, 40)) as (app, pilot):
        await wait_until(pilot, lambda: evil in screen_text(app))
        daemon.state = "ready"
        await wait_until(pilot, lambda: app.main.client is not None)
        for notice in (f"/preset {evil}", f"/import /nowhere/{evil}", f"/set {evil} 1"):
            await command(app, pilot, notice)
            await wait_until(pilot, lambda: any("[/dim]" in one.message for one in app._notifications))
            await wait_until(pilot, lambda: "[/dim]" in screen_text(app))
            app.clear_notifications()
        app.main.composer.text = ""
        message = await answered(app, pilot, evil)
        message.note(error=f"out of memory {evil}")
        app.tabs.active.changed()
        await wait_until(pilot, lambda: f"! out of memory {evil}" in rendered(app))
        app.tabs.active.rename(evil)
        await wait_until(pilot, lambda: evil in screen_text(app).splitlines()[0])
        await pilot.press("f3", *"1234567")
        await wait_until(pilot, lambda: app.focused is app.main.block_map)
        await pilot.press("f6")  # all of it in sentences
        await wait_until(pilot, lambda: f"Chat A, {evil}" in screen_text(app))


async def test_complaint_8_escapes_are_printed_raw(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link (OSC 8), a reset (`ESC c`) or a new window title in what the model writes is obeyed by the terminal."""
    evil = "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\ \x1bc \x1b]0;owned\x07 \x1b]52;c;b3duZWQ=\x07"
    daemon = FakeDaemon(script=lambda _: [*evil, "\n\n```\n", *evil, "\n```\n\n[x](https://a.example/", *evil, ")"])
    async with open_app(daemon) as (app, pilot):
        with wired(app, monkeypatch) as wire:
            app.main.composer.fill(evil)  # as a paste, or an edited message of an imported chat
            await wait_until(pilot, lambda: "owned" in "\n".join(wire.screen.display))
            await say(app, pilot, evil)
            app.tabs.active.rename(evil)
            app.notify(app.tabs.active.label, markup=False)
            await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
            await wait_until(pilot, lambda: "␛c" in "\n".join(wire.screen.display))
            assert "owned" in wire.written  # as a word
            assert not re.findall(r"\x1b\][^\x1b\x07]*|\x1bc", wire.written)
            assert wire.screen.title == ""


@pytest.mark.parametrize("text", [r"\<foo\> and \<b\>", "a Promise<void>, a vector<int> and <div>x</div>"])
async def test_complaint_11_what_looks_like_html_vanishes(open_app: OpenApp, text: str) -> None:
    r"""`\<foo\>` or `Promise<void>` is taken for HTML and not shown."""
    async with open_app(FakeDaemon(script=lambda _: list(f"{text}\n\n- {text}\n\n{text}"))) as (app, pilot):
        await say(app, pilot, "code")
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        answer = "\n".join(str(widget.visual) for widget in app.main.query(Prose))
        assert answer.count(text.replace("\\", "")) == 3  # a backslash before < is Markdown's own way to write <


# -- streaming and speed -----------------------------------------------------------------------------


async def test_complaint_13_an_open_fence_goes_blank(open_app: OpenApp) -> None:
    """A code block that is being streamed goes blank when the focus or the theme changes."""
    pieces = ["Look:\n\n```python\n", *(f"line_{n} = {n}\n" for n in range(6)), "```\n"]
    daemon = FakeDaemon(step_s=0, script=lambda _: pieces)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "code")
        daemon.go(7)
        await wait_until(pilot, lambda: "line_5 = 5" in screen_text(app))
        for key in ("f3", "f3", "alt+up"):
            await pilot.press(key)
            await still_there(app, pilot)
        for theme in ("paper", "high-contrast", "textual-dark", "pagechat-dark"):
            app.theme = theme
            await still_there(app, pilot)
        daemon.go(20)
        await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
        app.theme = "paper"
        await still_there(app, pilot)


async def still_there(app: PagechatApp, pilot: Pilot[None]) -> None:
    """All of the code, after what was done has been drawn."""
    await pilot.pause(0.2)
    await wait_until(pilot, lambda: all(f"line_{n} = {n}" in screen_text(app) for n in range(6)))


async def test_complaint_14_a_session_of_hours_gets_slow(open_app: OpenApp) -> None:
    """After hours of chatting scrolling lags and one core is busy: what is on the screen grows without end."""
    daemon = FakeDaemon(step_s=0.0005)
    async with open_app(daemon) as (app, pilot):
        transcript = app.main.transcript
        for number in range(MOST):  # a question and an answer each
            app.main.sender.submit(app.tabs.active, f"q{number}")
            await wait_until(pilot, lambda: not app.tabs.streaming)
        await wait_until(pilot, lambda: drawn(app))
        assert len(app.tabs.active.messages) == 2 * MOST
        assert len(transcript._views) <= MOST
        assert len(list(transcript.walk_children())) < 8 * MOST
        await wait_until(pilot, lambda: not app.view.moving)
        await pilot.pause(0.5)
        used = time.process_time()
        await pilot.pause(2)
        assert time.process_time() - used < 1  # half a core at rest; 0.1 s on a Zen 3


def a_long_chat(db: Path, messages: int = 60) -> None:
    """As many answers of a screen each, open at the next start."""
    store = Store(db)
    store.create_chat("long", "long")
    for number in range(messages):
        role = "user" if number % 2 == 0 else "assistant"
        store.add_message("long", role, f"message {number}\n\n" + "- a point of it\n" * 10 * (number % 2))
    store.set_open_tabs(["long"], "long")
    store.close()


async def test_complaint_16_coming_back_to_the_window_takes_seconds(open_app: OpenApp, db: Path) -> None:
    """The terminal loses and gets the focus (`ESC [ O`, `ESC [ I`): a long chat freezes the app for seconds."""
    a_long_chat(db)
    async with open_app(FakeDaemon()) as (app, pilot):
        await wait_until(pilot, lambda: "message 59" in rendered(app))
        while app.main.transcript._begin:
            await app.main.transcript.show_earlier()
            await pilot.pause()
        assert len(app.main.transcript._views) == 60
        app.main.transcript.anchor()
        await wait_until(pilot, lambda: drawn(app) and app.main.transcript.is_vertical_scroll_end)
        used = time.process_time()
        for event in XTermParser().feed("\x1b[O\x1b[I" * 5):
            app.post_message(event)
            await pilot.pause()
        assert (time.process_time() - used) / 10 < 0.3  # 0.02 s on a Zen 3
        assert app.focused is app.main.composer
        assert app.main.transcript.is_vertical_scroll_end


async def test_complaint_17_a_selector_for_everything_makes_mounting_slow(open_app: OpenApp) -> None:
    """A rule for every widget with a pseudo class (`*:focus`) makes Textual look at each when anything changes."""
    async with open_app(FakeDaemon()) as (app, _pilot):
        ours = [source.content for (file, _), source in app.stylesheet.source.items() if "/pagechat/" in file]
    assert sum(len(css) for css in ours) > 5_000
    assert [css for css in ours if "*" in re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)] == []


# -- scrolling ---------------------------------------------------------------------------------------


async def test_complaint_19_a_long_session_jumps_to_its_beginning(open_app: OpenApp, db: Path) -> None:
    """In a long session the view jumps to the start of the conversation while an answer comes."""
    a_long_chat(db, MOST + 10)
    daemon = FakeDaemon(script=lambda _: ["paragraph\n\n"] * 40)
    async with open_app(daemon, size=(80, 24)) as (app, pilot):
        transcript = app.main.query_one(Transcript)
        await wait_until(pilot, lambda: f"message {MOST + 9}" in rendered(app))
        while len(transcript._mounted) < MOST:  # so many that the next ones drive the first ones out
            await transcript.show_earlier()
            await pilot.pause()
        transcript.anchor()
        await wait_until(pilot, lambda: transcript.is_vertical_scroll_end)
        for number in range(4):
            await say(app, pilot, f"question {number}")
            while app.tabs.streaming:
                await pilot.pause(0.02)
                assert transcript.scroll_y > transcript.max_scroll_y / 2  # a frame may be under way
            await wait_until(pilot, lambda: drawn(app) and transcript.is_vertical_scroll_end)
        assert transcript._begin > 0


# -- copy and paste ----------------------------------------------------------------------------------


async def test_complaint_22_what_is_highlighted_is_copied(open_app: OpenApp) -> None:
    """Text marked with the mouse does not reach the clipboard."""
    async with open_app(FakeDaemon(script=lambda _: ["Eine *schöne* [/b] 日本語 answer."])) as (app, pilot):
        await answered(app, pilot, "text")
        await wait_until(pilot, lambda: drawn(app) and "answer." in screen_text(app))
        prose = app.main.query_one(Prose)
        await pilot.mouse_down(prose, offset=(3, 0))
        await pilot.hover(prose, offset=(2 + len("Eine schöne"), 0))
        await pilot.mouse_up(prose, offset=(2 + len("Eine schöne"), 0))
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: app.clipboard == "Eine schöne")


def typed(app: PagechatApp, data: str) -> None:
    """What the terminal sends, as the app reads it."""
    for event in XTermParser().feed(data):
        event.set_sender(app)
        app.post_message(event)


@pytest.mark.parametrize("line_end", ["\r", "\n", "\r\n"])
async def test_complaint_25_a_paste_of_several_lines_sends_its_first(open_app: OpenApp, line_end: str) -> None:
    """Of a text of several paragraphs that is pasted, the first is sent."""
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        typed(app, f"\x1b[200~first{line_end}{line_end}second{line_end}third\x1b[201~")
        await wait_until(pilot, lambda: app.main.composer.text == "first\n\nsecond\nthird")
        await pilot.pause(0.1)
        assert daemon.asked == []
        typed(app, "\r")
        await wait_until(pilot, lambda: daemon.asked)
        assert daemon.asked[0][0].content == "first\n\nsecond\nthird"


# -- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys", ["\n", "\x1b\r", "\x1b[13;2u", "\x1b[13;5u", "\x1b[13;3u", "\x1b[27;2;13~", "\x1b[27;5;13~"]
)
async def test_complaint_28_a_new_line_that_no_terminal_sends(open_app: OpenApp, keys: str) -> None:
    """shift+enter and ctrl+enter do nothing in terminals that send a plain enter for them. Ctrl+j (which every one
    sends, and some for shift+enter), alt+enter and what terminals with longer keys send make a new line."""
    daemon = FakeDaemon()
    async with open_app(daemon) as (app, pilot):
        typed(app, f"a{keys}b")
        await wait_until(pilot, lambda: app.main.composer.text == "a\nb")
        assert daemon.asked == []


async def test_complaint_29_the_input_methods_box_is_far_from_the_cursor(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input methods show their candidates where the terminal's own cursor stands: it must stand in the input."""
    async with open_app(FakeDaemon()) as (app, pilot):
        with wired(app, monkeypatch) as wire:
            composer, text = app.main.composer, ""
            for keys in ("日本語", "かな", "\n", "漢", "\n\n", "字"):  # the input grows upwards with its lines
                typed(app, keys)
                text += keys
                await wait_until(pilot, lambda text=text: composer.text == text)
                await pilot.pause(0.2)  # it is laid out again
                await wait_until(pilot, lambda last=keys[-1]: stands(wire, composer, last))


def stands(wire: Wire, composer: Composer, last: str) -> bool:
    """The terminal's cursor is where the composer's is, behind the last character, or at the beginning of a line."""
    x, y = composer.cursor_screen_offset
    at = wire.screen.cursor.x, wire.screen.cursor.y
    return at == (x, y) and last in ("\n", wire.screen.buffer[y][x - 2].data)


# -- widths ------------------------------------------------------------------------------------------


async def test_complaint_31_wide_characters_wrap_at_the_wrong_column(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Japanese and emoji are counted as one cell each: lines are too long and the frame beside them is torn."""
    sentence = "日本語と絵文字👍が混ざる。"
    text = 12 * sentence
    async with open_app(FakeDaemon(script=lambda _: [text])) as (app, pilot):
        with wired(app, monkeypatch) as wire:
            await say(app, pilot, text)
            await wait_until(pilot, lambda: not app.tabs.streaming and drawn(app))
            await pilot.pause(0.2)
            assert all(wcswidth(line) <= app.size.width for line in screen_text(app).splitlines())
            left = app.main.memory_pane.region.x
            cells = (wire.screen.buffer[y][x].data for y in range(1, 20) for x in range(left))
            shown = "".join(cell for cell in cells if cell not in " ▌")
            assert shown.count(sentence) == 24  # of the question and the answer nothing is lost at the ends of lines
            assert {wire.screen.buffer[y][left].data for y in range(4, 20)} == {"│"}


@pytest.mark.parametrize("width", range(1, 9))
async def test_complaint_32_wide_characters_in_a_few_columns(open_app: OpenApp, width: int) -> None:
    """In seven columns or fewer, Chinese, Japanese or Korean in the input is an endless recursion."""
    daemon = FakeDaemon(script=lambda _: ["中文字符", "、한국어\n\n- 日本\n"])
    async with open_app(daemon) as (app, pilot):
        await pilot.resize_terminal(width, 12)
        typed(app, "中文 한국어 日本語")
        await wait_until(pilot, lambda: app.main.composer.text == "中文 한국어 日本語")
        await pilot.press("left", "left", "up", "down", "enter")
        await wait_until(pilot, lambda: not app.tabs.streaming and app.tabs.active.messages and drawn(app))
        assert app.tabs.active.messages[-1].content == "中文字符、한국어\n\n- 日本\n"


# -- nothing is lost ---------------------------------------------------------------------------------


async def test_complaint_34_ctrl_c_takes_the_words_that_came(open_app: OpenApp, db: Path) -> None:
    """ctrl+c while an answer streams wipes what has been streamed."""
    daemon = FakeDaemon(step_s=0, script=lambda _: [f"w{n} " for n in range(100)])
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "count")
        chat = app.tabs.active.id
        daemon.go(3)
        await wait_until(pilot, lambda: "w2" in rendered(app))
        typed(app, "\x03")
        daemon.go(1)
        await wait_until(pilot, lambda: "w0 w1 w2 w3" in rendered(app))  # once, it is only told what it would do
        typed(app, "\x03")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await wait_until(pilot, lambda: not app.is_running)
    answer = Store(db).messages(chat)[1]
    assert (answer.content, answer.status) == ("w0 w1 w2 w3 ", "stopped")


# -- far away ----------------------------------------------------------------------------------------


async def test_complaint_40_too_many_frames_for_a_slow_line(open_app: OpenApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over SSH, tmux and SSH again the screen is drawn more often than the line carries."""
    daemon = FakeDaemon(step_s=0.002, script=lambda _: ["word "] * 3000)
    async with open_app(daemon) as (app, pilot):
        await say(app, pilot, "go")
        await wait_until(pilot, lambda: "word" in rendered(app))
        with wired(app, monkeypatch) as wire:
            await pilot.pause(0.5)
            began, before = time.monotonic(), len(wire.frames)
            await pilot.pause(2)
            seconds = time.monotonic() - began
            frames = [frame for frame in wire.frames[before:] if len(frame) > 20]  # others begin and end one
            assert app.tabs.streaming
            # of two ticks one draws text and its scrollbar, one map or lines; the cursor blinks twice a second
            assert len(frames) <= seconds * (1.5 / TICK_S + 2) + 1
            assert sum(map(len, frames)) / len(frames) < max(map(len, wire.frames[:before])) / 3  # that is all of it
        await pilot.press("escape")
