"""What people touch: the commands, the app, the daemon's front process and the client that reaches it.

app/      the Textual app
daemon/   the front process: text, clients, supervision of the engine
commands/ what `pagechat-daemon ask`, `status` and `watch` do
bench/    pagechat-bench
client.py the one way into a daemon, for app and scripts alike
llm.py    the engine in a script's own process
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "pagechat.llm",
    "SamplingParams": "pagechat.llm",
    "RequestOutput": "pagechat.llm",
    "CompletionOutput": "pagechat.llm",
    "EngineClient": "pagechat.client",
    "AsyncEngineClient": "pagechat.client",
}
"""Names for scripts, each imported when it is asked for: LLM brings torch along, which a client never needs."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
