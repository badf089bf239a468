"""From a message to its blocks on the map, and from a block to its text in the chat."""

from __future__ import annotations

import hashlib
import struct

import pytest

from pagechat.app.found_text import find, line_and_column
from tests.pagechat.app.conftest import OpenApp
from tests.pagechat.app.fake import FakeDaemon
from tests.pagechat.app.test_messages import answered
from tests.pagechat.app.waiting import screen_text, wait_until

ANSWER = [*"The *first* page lies there, and the **second** one elsewhere."]


async def test_a_message_shows_its_blocks_and_a_block_its_text(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(keeps=True, script=lambda _: ANSWER), size=(140, 40)) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        mirror = app.view.mirror
        assert mirror is not None
        await wait_until(
            pilot, lambda: mirror.tables and next(iter(mirror.tables.values())).length == 40 + len(ANSWER) - 1
        )
        (table,) = mirror.tables.values()
        # a token a character: the question is in blocks 0 to 2, the answer from 2 on
        await pilot.press("alt+up", "b")
        assert app.main.block_map.marked == frozenset(table.blocks[2:])
        assert app.focused is app.main.block_map
        await pilot.press("f3", "alt+up", "up", "b")
        assert app.main.block_map.marked == frozenset(table.blocks[:3])
        # the text in block 3, the answer's tokens 8 to 23, without the marks that Markdown does not show
        app.main.block_map.select(table.blocks[3])
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.main.get_selected_text())
        wanted = ("q" * 40 + "\n" + "".join(ANSWER))[48:64]
        assert "".join(filter(str.isalnum, app.main.get_selected_text() or "")) == "".join(filter(str.isalnum, wanted))
        assert app.main.transcript.selected is app.tabs.active.messages[1]


async def test_the_inspector_tells_the_hash_by_which_a_full_block_is_found(open_app: OpenApp) -> None:
    async with open_app(FakeDaemon(keeps=True), size=(140, 40)) as (app, pilot):
        await answered(app, pilot, "q" * 40)
        tokens = tuple(b"q" * 16)
        # SHA-256 over the parent's hash and the tokens, as engine/blocks/paged.py chains them
        name = hashlib.sha256(hashlib.sha256(b"pagechat").digest() + struct.pack("16q", *tokens)).hexdigest()
        await pilot.press("f3", "2")
        app.main.block_map.select(1)
        await wait_until(pilot, lambda: name[:40] in screen_text(app))
        assert "last used" in screen_text(app)


@pytest.mark.parametrize(
    ("shown", "text", "before", "parts"),
    [
        (["a bold word"], "**bold** w", "a ", [(0, 2, 8)]),
        (["one two one two"], "one", "one two ", [(0, 8, 11)]),
        (["end", "begin"], "nd\n\nbe", "e", [(0, 1, 3), (1, 0, 2)]),
        (["漢字 text"], "字", "漢", [(0, 1, 2)]),
        (["something"], "else", "", []),
        (["something"], " * ", "", []),
    ],
)
def test_text_is_found_where_it_is_shown(
    shown: list[str], text: str, before: str, parts: list[tuple[int, int, int]]
) -> None:
    assert find(shown, text, before) == parts


def test_lines_and_columns_count_from_zero() -> None:
    assert [line_and_column("ab\ncd", at) for at in (0, 2, 3, 5)] == [(0, 0), (0, 2), (1, 0), (1, 2)]
