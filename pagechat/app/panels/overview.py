"""The overview: the block under the cursor, the chat's table, paging against reservation, each in a line."""

from __future__ import annotations

from textual.content import Content

from engine.protocol import PoolStatus
from pagechat.app.panels import LABEL, NAME, NameOf, PaneData, labelled
from pagechat.app.panels.figures import compare, table_line
from pagechat.app.panels.history import gauge_lines
from pagechat.app.pool_view import PoolView
from pagechat.app.titles import short
from pagechat.app.widgets.tab_bar import owner_color

LINES = 4
"""Those that are always there; what is left of the height shows the gauges."""


def content(data: PaneData, width: int, height: int) -> Content:
    view, mirror = data.view, data.view.mirror
    if mirror is None:
        return Content("")
    block = block_line(view, data.selected, data.name_of) if data.selected else None
    table = table_line(mirror, data.active, width - LABEL)
    lines = [
        labelled("block", block or Content.styled("click one, or F3 and the arrow keys", "$muted")),
        labelled("table", table or Content.styled("this chat holds no blocks now", "$muted")),
    ]
    if data.model is not None:
        contiguous, paged = comparison_lines(view, data.model.max_context)
        lines += [labelled("contiguous", contiguous), labelled("paged", paged)]
    gauges = gauge_lines(data.gauges, width)[: max(0, height - LINES)]
    return Content("\n").join([line.truncate(width, ellipsis=True) for line in lines] + gauges)


def totals_parts(totals: PoolStatus, hit_rate: float | None) -> list[Content]:
    """The pool in numbers. Used blocks are those with an owner, shared ones among them."""
    used = totals.active + totals.shared
    slots = used * totals.block_size
    waste = 100 * totals.internal_waste / slots if slots else 0.0
    saved = f" (saved {totals.saved:,})" if totals.saved else ""
    figures = [
        ("used", f"{used:,}"),
        ("shared", f"{totals.shared:,}{saved}"),
        ("cached", f"{totals.cached:,}"),
        ("free", f"{totals.free:,}"),
        ("waste", f"{waste:.1f} %"),
        ("largest free run", f"{totals.largest_free_run:,}"),
    ]
    if hit_rate is not None:
        figures.append(("hit", f"{100 * hit_rate:.0f} %"))
    return [Content.assemble((f"{name} ", "$muted"), (value, "bold")) for name, value in figures]


def block_line(view: PoolView, block: int, name_of: NameOf) -> Content:
    """`213 · ref 3 · owners essay 0:5, sql 0:5 · tokens 16/16 · cached`; an owner is sequence:logical block."""
    mirror = view.mirror
    if mirror is None or block > mirror.num_blocks:
        return Content("")
    state, refs = mirror.state(block), mirror.refs[block]
    parts = [Content.styled(f"{block}", "bold"), Content(f"ref {refs}" if refs else state)]
    if refs:
        owners: list[Content] = []
        for seq, index in mirror.owners(block):
            session = mirror.tables[seq].session
            letter = view.letters.get(session)
            owners.append(
                Content.assemble(
                    (letter, f"bold {owner_color(letter)}"), f" {short(name_of(session), NAME)} {seq}:{index}"
                )
            )
        parts.append(Content("owner " if len(owners) == 1 else "owners ") + Content(", ").join(owners))
    elif (last := view.last_owner(block)) is not None:
        parts.append(Content(f"last {short(name_of(last), NAME)}"))
    if state != "free":
        parts.append(Content(f"tokens {mirror.fill(block)}/{mirror.block_size}"))
    if refs and mirror.addressable(block):
        parts.append(Content("reusable"))
    return Content.styled(" · ", "$muted").join(parts)


def comparison_lines(view: PoolView, max_context: int) -> tuple[Content, Content]:
    """What this pool would hold under contiguous reservation, and what it holds paged."""
    if view.mirror is None:
        return Content(""), Content("")
    found = compare(view.mirror, max_context)
    contiguous = Content.assemble(
        (f"{found.contiguous:,}", "bold"),
        f" request reserving {found.reserved_tokens:,} tokens"
        if found.contiguous == 1
        else f" requests reserving {found.reserved_tokens:,} tokens each",
    )
    if found.paged is None:
        return contiguous, Content.styled("blocks are taken as tokens come; none are held now", "$muted")
    blocks = f"{found.blocks_held:,} block{'' if found.blocks_held == 1 else 's'}"
    return contiguous, Content.assemble(
        (f"{found.paged:,}", "bold"), f" like the {found.sequences:,} held now ({blocks})"
    )
