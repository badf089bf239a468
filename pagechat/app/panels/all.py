"""The panels in their order, by name."""

from __future__ import annotations

from pagechat.app.panels import Panel, block, compare, forks, history, overview, requests, table

PANELS: dict[str, Panel] = {
    "overview": overview.content,
    "block": block.content,
    "table": table.content,
    "compare": compare.content,
    "requests": requests.content,
    "forks": forks.content,
    "history": history.content,
}
