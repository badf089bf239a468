"""`pagechat`: the app at once when nothing is asked of it, all of `pagechat.cli` otherwise.

Reading options takes about a third of a second (typer brings pydantic along), which is as long as the app's own start.
Most people type one word.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

NO_OPTIONS = {
    "PAGECHAT_ASCII",
    "PAGECHAT_CACHE_DIR",
    "PAGECHAT_DATA_DIR",
    "PAGECHAT_NO_MOUSE",
    "PAGECHAT_RUN_DIR",
}
"""Variables that the app finds by itself; every other PAGECHAT_* may be the value of an option."""


def main() -> NoReturn:
    """The console script."""
    if sys.argv[1:] or _options_elsewhere() or not _on_a_terminal():
        from pagechat.cli import app_main

        app_main()
    from pagechat.app import run

    sys.exit(run(run_dir=None, daemon_args=[], theme=None))


def _options_elsewhere() -> bool:
    """The environment or config.toml may give some."""
    from pagechat import settings

    given = any(name.startswith("PAGECHAT_") and name not in NO_OPTIONS for name in os.environ)
    return given or settings.default_path().exists()


def _on_a_terminal() -> bool:
    browser = "TEXTUAL_DRIVER" in os.environ  # set by `pagechat serve`
    return not browser and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
