"""What other allocation policies would hold of the live requests, and waste: the engine's shadows, drawn as bars.

Each bar is the whole pool: █ slots with a token, ▒ kept for tokens that may still come, ░ never to be used,
· free; x while a request waits although so many slots are free.
"""

from __future__ import annotations

from textual.content import Content

from engine.protocol import ShadowStatus
from pagechat.app.panels import PaneData, cut
from pagechat.app.panels.figures import compare

NAMES = {
    "paged": "paged",
    "contiguous-oracle": "oracle",
    "contiguous-pow2": "power of 2",
    "contiguous-max": "maximum",
}
WORDS = {
    "paged": "blocks as tokens come",
    "contiguous-oracle": "one piece, the answer's length known",
    "contiguous-pow2": "one piece, rounded up",
    "contiguous-max": "one piece, the longest there may be",
}


def content(data: PaneData, width: int, height: int) -> Content:
    mirror = data.view.mirror
    if mirror is None:
        return Content("")
    slots = mirror.num_blocks * mirror.block_size
    live = sum(1 for shadow in data.view.shadows if shadow.requests_held)
    if not data.view.shadows or not live:
        lines = [
            Content.styled("No request is live. While some are: how many of them each policy would hold.", "$muted")
        ]
        if data.model is not None:
            found = compare(mirror, data.model.max_context)
            text = (
                f"Reserving {found.reserved_tokens:,} tokens a request, this pool holds {found.contiguous:,} of them."
            )
            lines.append(Content(text))
        return cut(lines, height)
    lines = [Content.styled(f"{'policy':<12}{'holds':>6}   of the live requests; each bar is all slots", "$muted")]
    order = list(NAMES)
    for shadow in sorted(data.view.shadows, key=lambda one: order.index(one.policy) if one.policy in order else 9):
        lines.append(shadow_line(shadow, slots, width))
    lines.append(
        Content.styled("█ tokens  ▒ reserved  ░ never used  · free  x free, yet one waits; g: as maps", "$muted")
    )
    return cut(lines, height)


def shadow_line(shadow: ShadowStatus, slots: int, width: int) -> Content:
    """`oracle        3   ████▒▒▒▒░░····  one piece, ...`"""
    room = max(10, width - 21 - 38) if width >= 80 else max(10, width - 21)
    parts = [
        ("█", "$success", shadow.slots_used),
        ("▒", "$warning", shadow.reserved_waste),
        ("░", "$error", shadow.internal_waste),
        ("x", "bold $error", shadow.external_waste),
    ]
    cells = [(glyph, style, round(room * count / slots)) for glyph, style, count in parts]
    used = min(room, sum(count for _, _, count in cells))
    bar = Content("").join([Content.styled(glyph * count, style) for glyph, style, count in cells if count])
    name = NAMES.get(shadow.policy, shadow.policy[:11])
    words = f"  {WORDS.get(shadow.policy, '')}" if width >= 80 else ""
    return Content.assemble(
        f"{name:<12}",
        (f"{shadow.requests_held:>6,}", "bold"),
        "   ",
        bar,
        ("·" * (room - used), "$block-free"),
        (words, "$muted"),
    )
