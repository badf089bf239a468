"""The memory in sentences: for screen readers, and for whoever wants to copy the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import TextArea

from pagechat.app.panels import NameOf
from pagechat.app.pool_view import PoolView


class TotalsScreen(ModalScreen[None]):
    """A text to walk through with the cursor; `r` reads the figures again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f6", "dismiss", "Close"),
        Binding("r", "again", "Again", priority=True),
    ]

    def __init__(self, tell: Callable[[], str]) -> None:
        super().__init__()
        self._tell = tell

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog list"):
            yield TextArea(self._tell(), read_only=True, show_line_numbers=False)

    def action_again(self) -> None:
        self.query_one(TextArea).text = self._tell()


def in_words(view: PoolView, name_of: NameOf, link: str) -> str:
    """One fact a sentence, one sentence a line."""
    totals, mirror = view.totals(), view.mirror
    if totals is None or mirror is None:
        return f"{link}\nThere is no engine now."
    used = totals.active + totals.shared
    slots = used * totals.block_size
    waste = 100 * totals.internal_waste / slots if slots else 0.0
    lines = [
        link,
        f"{view.tokens_per_s():.1f} tokens per second are being written.",
        f"{mirror.running} requests run, {mirror.waiting} wait, {mirror.preemptions} preemptions so far.",
        f"Of {totals.num_blocks:,} blocks of {totals.block_size} tokens, {used:,} have an owner.",
        f"{totals.shared:,} of them have several; that saves {totals.saved:,} blocks.",
        f"{totals.cached:,} blocks are cached, {totals.free:,} are free.",
        f"{waste:.1f} percent of the slots in owned blocks are empty.",
        f"The largest free run is {totals.largest_free_run:,} blocks.",
    ]
    if view.hit_rate is not None:
        lines.append(f"{100 * view.hit_rate:.0f} percent of the prompt tokens were found in the cache.")
    held = sorted((view.letters.get(session), name_of(session), blocks) for session, blocks in view.sessions().items())
    lines += [f"Chat {letter}, {name}, holds {blocks:,} blocks." for letter, name, blocks in held]
    return "\n".join(line for line in lines if line)
