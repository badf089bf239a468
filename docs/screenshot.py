"""Makes docs/screenshot.svg: the real app on a real engine, two chats and a fork streaming beside the map.

    python docs/screenshot.py [OUT.svg]

Runs in folders of its own; no daemon or history of the user is touched.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pagechat.app.conversation import Conversation

QUESTIONS = (
    "Write a long story about a page table that wanted to travel.",
    "Write a long story about two programs that share one page of memory.",
)
SIZE = (150, 40)
WORDS = 110
FORKED_WORDS = 40


def long_enough(chat: Conversation, words: int) -> bool:
    """The answer has so many words, or the model had no more to say."""
    answer = chat.messages[-1]
    return len(answer.content.split()) >= words or answer.status != "streaming"


async def take(out: Path) -> None:
    from pagechat.app.app import PagechatApp
    from pagechat.client import AsyncEngineClient
    from pagechat.daemon.launch import ensure_daemon
    from pagechat.store import Store

    daemon = await asyncio.to_thread(ensure_daemon, None, ["--num-blocks", "432"])
    app = PagechatApp(lambda: AsyncEngineClient.connect(name="screenshot"), Store())
    try:
        async with app.run_test(size=SIZE) as pilot:

            async def until(predicate: Callable[[], bool]) -> None:
                while not predicate():
                    await pilot.pause(0.1)

            await until(lambda: app.link is not None and app.link.state.phase == "ready" and app.screen is app.main)
            for number, question in enumerate(QUESTIONS):
                if number:
                    await pilot.press("ctrl+n")
                await pilot.press(*question, "enter")
            await until(lambda: all(long_enough(chat, WORDS) for chat in app.tabs.conversations))
            await pilot.press("alt+1")
            await app.main.action_command("message.fork")
            await pilot.press(*"Tell it otherwise, as a poem.", "enter")
            await until(lambda: len(app.tabs.active.messages) > 2 and long_enough(app.tabs.active, FORKED_WORDS))
            app.main.memory_pane.show_panel("compare")
            app.clear_notifications()
            await pilot.pause(1.5)
            svg = app.export_screenshot(title="pagechat")
            out.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
            app.exit()
    finally:
        if daemon is not None:
            await asyncio.to_thread(daemon.stop)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pc-", dir="/tmp") as folder:
        for name, place in (("PAGECHAT_RUN_DIR", "run"), ("PAGECHAT_DATA_DIR", "data"), ("XDG_CONFIG_HOME", "config")):
            os.environ[name] = str(Path(folder) / place)
        asyncio.run(take(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screenshot.svg")))
