"""The system's clipboard by the program that this machine has for it; terminals that take OSC 52 need none.

OSC 52 goes to the terminal a person sits at, also over SSH, but not every terminal takes it. A program here is surer
where the person sits at this machine. Text goes to its stdin, never through a shell or an argument.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Tool:
    command: tuple[str, ...]
    encoding: str = "utf-8"


WAYLAND = Tool(("wl-copy",))
X11 = (Tool(("xclip", "-selection", "clipboard")), Tool(("xsel", "--clipboard", "--input")))
MACOS = Tool(("pbcopy",))
WINDOWS = Tool(("clip.exe",), "utf-16")
"""From Linux under Windows (WSL)."""


def find(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Tool | None:
    """The program for the clipboard of the screen in front of the person; None: leave it to the terminal."""
    fitting: list[Tool] = []
    if environment.get("WAYLAND_DISPLAY"):
        fitting.append(WAYLAND)
    if environment.get("DISPLAY"):
        fitting += X11
    if not environment.get("SSH_CONNECTION"):  # over SSH these would fill the clipboard of a machine far away
        fitting += [MACOS] if platform == "darwin" else []
        fitting += [WINDOWS] if environment.get("WSL_DISTRO_NAME") else []
    path = environment.get("PATH", os.defpath)
    return next((tool for tool in fitting if shutil.which(tool.command[0], path=path)), None)


async def put(tool: Tool, text: str) -> bool:
    """Give the text to the program. False when it did not take it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *tool.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # xclip and wl-copy stay to serve the text: the terminal's ctrl+c is not for them
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate(text.encode(tool.encoding, "replace"))
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
    return process.returncode == 0
