"""Every sequence with its state and its timeline: where the time of a slow answer went."""

from __future__ import annotations

import time

from rich.cells import set_cell_size
from textual.content import Content

from pagechat.app.panels import PaneData, cut
from pagechat.app.timelines import Timeline, bar
from pagechat.app.titles import short
from pagechat.app.widgets.tab_bar import owner_color

WINDOW_S = 30.0
ACTIVE_S = 1.5
"""A sequence that took part in no step for so long is resident: kept for its next turn."""


def content(data: PaneData, width: int, height: int) -> Content:
    view, mirror = data.view, data.view.mirror
    if mirror is None:
        return Content("")
    now = view.timelines.now
    room = max(10, width - 67)
    figures = f"{'prio':>4} {'blocks':>6} {'tokens':>7} {'prefill':>8} {'decode':>8}"
    head = f"  {'chat':<16}{'state':<10}{figures}  the last {WINDOW_S:.0f} s"
    lines = [Content.styled(head, "$muted")]
    for chat in data.chats:
        if chat.state == "thinking" and not any(table.session == chat.id for table in mirror.tables.values()):
            waited = f"waits for {max(0.0, time.time() - chat.asked_at):.1f} s"
            lines.append(_line(data, chat.id, waited, "", "", "", "", ""))
    for timeline in view.timelines.newest():
        table = mirror.tables.get(timeline.seq)
        if table is None and not timeline.preempted:
            continue
        blocks = f"{len(table.blocks):,}" if table else "0"
        lines.append(
            _line(
                data,
                timeline.session,
                state_of(timeline, now, table is not None),
                blocks,
                f"{timeline.tokens:,}",
                f"{timeline.seconds('prefill'):.1f} s",
                f"{timeline.seconds('decode'):.1f} s",
                bar(timeline, now - WINDOW_S, now, room),
            )
        )
    if len(lines) == 1:
        lines.append(Content.styled("Nothing runs, and nothing is kept.", "$muted"))
    else:
        lines.append(
            Content.styled(
                "▒ reads its prompt  █ writes  ! gave its blocks up for older ones  · does nothing   "
                "p P: this chat first, or last",
                "$muted",
            )
        )
    return cut(lines, height)


def state_of(timeline: Timeline, now: float, holds_blocks: bool) -> str:
    if timeline.preempted and not holds_blocks:
        return "preempted"
    last = timeline.spans[-1] if timeline.spans else None
    if last is None or now - last.end > ACTIVE_S:
        return "resident"
    return {"prefill": "prefill", "decode": "decode", "preempted": "preempted"}[last.kind]


def _line(
    data: PaneData, session: str, state: str, blocks: str, tokens: str, prefill: str, decode: str, timeline: str
) -> Content:
    letter = data.view.letters.get(session)
    name = set_cell_size(short(data.name_of(session), 15), 16)
    chat = next((chat for chat in data.chats if chat.id == session), None)
    mark = "^" if chat is not None and chat.pinned else " "
    priority = f"{chat.priority:+d}" if chat is not None and chat.priority else "0" if chat is not None else ""
    return Content.assemble(
        (letter, f"bold {owner_color(letter)}"),
        f" {name}",
        (f"{state:<9}{mark}", "$accent" if state in ("prefill", "decode") else "$muted"),
        f"{priority:>4} {blocks:>6} {tokens:>7} {prefill:>8} {decode:>8}  ",
        (timeline, "$accent"),
    )
