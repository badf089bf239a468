"""The inspector of one block: state, owners and their logical blocks, fill, age, and the text in it."""

from __future__ import annotations

from textual.content import Content

from pagechat.app.panels import LABEL, NAME, PaneData, labelled
from pagechat.app.titles import short
from pagechat.app.widgets.tab_bar import owner_color
from pagechat.text_safety import sanitize

STATES = {
    "free": "no content, no owner",
    "cached": "content kept for whoever begins with it; may be evicted",
    "active": "one owner",
    "shared": "several owners, copied before one of them writes",
}


def content(data: PaneData, width: int, height: int) -> Content:
    mirror, block = data.view.mirror, data.selected
    if mirror is None or block is None or block > mirror.num_blocks:
        return Content.styled("No block is chosen: click one, or F3 and the arrow keys.", "$muted")
    state, fill = mirror.state(block), mirror.fill(block)
    head = Content.assemble((f"{block:,}", "bold"), f" · {state}: ", (STATES[state], "$muted"))
    bar = "█" * fill + "·" * (mirror.block_size - fill)
    lines = [labelled("block", head)]
    if state != "free":
        reusable = " · found by its content" if mirror.addressable(block) or state == "cached" else ""
        fills = Content.assemble((bar, "$accent"), f" {fill} of {mirror.block_size} tokens{reusable}")
        lines.append(labelled("fill", fills))
    lines += _owner_lines(data, block)
    if (age := data.view.age(block)) is not None and state != "free":
        used = data.view.last_used(block)
        last = f", last used {told(used)} ago" if used is not None else ""
        lines.append(labelled("age", f"taken {told(age[0])} ago, changed {told(age[1])} ago{last}"))
    if mirror.addressable(block) and (name := data.hash_of(block)) is not None:
        lines.append(labelled("hash", Content.styled(name[: max(16, width - LABEL)], "$muted")))
    text = _text(data, block)
    if text is not None:
        pieces = Content.styled(one_line(text), "italic").fold(max(8, width - LABEL))
        for number, piece in enumerate(pieces):
            lines.append(labelled("" if number else "text", piece))
    return Content("\n").join(lines)


def _owner_lines(data: PaneData, block: int) -> list[Content]:
    view, mirror = data.view, data.view.mirror
    if mirror is None:
        return []
    owners = mirror.owners(block)
    if not owners:
        last = view.last_owner(block)
        return [labelled("last owner", short(data.name_of(last), NAME))] if last else []
    lines = []
    for number, (seq, index) in enumerate(owners[:4]):
        table = mirror.tables[seq]
        letter = view.letters.get(table.session)
        begin = index * mirror.block_size
        where = f"logical block {index} of {len(table.blocks)} (tokens {begin:,}..{begin + mirror.fill(block) - 1:,})"
        line = Content.assemble(
            (letter, f"bold {owner_color(letter)}"),
            f" {short(data.name_of(table.session), NAME)} · sequence {seq} · {where}",
        )
        lines.append(labelled("owner" if number == 0 else "", line))
    if len(owners) > 4:
        lines.append(labelled("", f"and {len(owners) - 4:,} more"))
    return lines


def _text(data: PaneData, block: int) -> str | None:
    """The text in the block, as the first owner that is a chat of this app knows it."""
    mirror = data.view.mirror
    if mirror is None or not mirror.fill(block):
        return None
    owners = mirror.owners(block)
    for seq, index in owners:
        found = data.text_of(mirror.tables[seq].session, index)
        if found is not None:
            return found
    return None


def one_line(text: str) -> str:
    """Text of a block on one line, its line ends visible."""
    return sanitize(text).replace("\n", "↵").replace("\t", "→")


def told(seconds: float) -> str:
    """A time span in a word or two."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
