"""The corner: tokens per second with their recent past, or what the engine is doing instead."""

from __future__ import annotations

from textual.content import Content

from pagechat.app.link import LinkState
from pagechat.app.widgets.line import Line

SPARKS = "▁▂▃▄▅▆▇█"


class Badge(Line):
    def __init__(self) -> None:
        super().__init__("badge")
        self._rates: list[float] = [0.0] * 8

    def sync(self, state: LinkState, tokens_per_s: float) -> None:
        """Called at an even pace: each call is one column of the recent past."""
        self._rates = [*self._rates[1:], tokens_per_s]
        self.show(self._content(state))

    def _content(self, state: LinkState) -> Content:
        if state.phase == "ready":
            rate = self._rates[-1]
            return Content.assemble(
                (spark(self._rates, max(*self._rates, 1.0)), "$accent" if rate else "$muted"),
                (f" {rate:6.1f} tok/s ", "bold" if rate else "$muted"),
            )
        if state.phase == "loading":
            load = state.status.load if state.status else None
            percent = f" {100 * load.done // load.total} %" if load and load.total else ""
            return Content.styled(f"◌ engine {load.stage if load else 'restarting'}{percent} ", "$warning")
        text = {"connecting": "◌ connecting ", "lost": "! daemon gone, trying again ", "failed": "! engine failed "}
        return Content.styled(text[state.phase], "bold $error" if state.phase != "connecting" else "$warning")


def spark(values: list[float], top: float) -> str:
    """One column of eight heights for each value; `top` is the highest."""
    return "".join(SPARKS[max(0, min(7, int(7 * value / top + 0.5)))] for value in values)
