"""Commands on the order in which requests are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagechat.app.commands import Command
from pagechat.client import ClientError

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

GROUP = "Memory"
FURTHEST = 9
WORDS = {"urgent": -1, "normal": 0, "patient": 1}


async def priority(screen: MainScreen, argument: str) -> None:
    """`/priority` tells it, `/priority urgent`, `normal`, `patient` or a number sets it for this chat."""
    wanted = WORDS.get(argument.strip().lower())
    if wanted is None and argument.strip().removeprefix("-").isdecimal():
        wanted = int(argument)
    if not argument:
        screen.notify(f"This chat's requests are {told(screen.tabs.active.priority)}.", markup=False)
    elif wanted is None or abs(wanted) > FURTHEST:
        words = ", ".join(WORDS)
        screen.notify(f"A priority is {words}, or -{FURTHEST} to {FURTHEST}, the lowest first.", markup=False)
    else:
        await _set(screen, wanted)


async def step(screen: MainScreen, by: int) -> None:
    await _set(screen, max(-FURTHEST, min(FURTHEST, screen.tabs.active.priority + by)))


async def _set(screen: MainScreen, wanted: int) -> None:
    """For the requests of this chat to come, and for the one that waits or runs."""
    conversation = screen.tabs.active
    conversation.priority = wanted
    conversation.changed()
    if screen.client is not None and conversation.request_id is not None:
        try:
            await screen.client.set_priority(conversation.request_id, wanted)
        except ClientError as error:
            screen.notify(str(error), severity="warning", markup=False)
            return
    screen.notify(f"This chat's requests are {told(wanted)} now.", markup=False)
    screen.memory_pane.redraw_panel()


def told(priority: int) -> str:
    """`urgent (priority -1): served before others`."""
    word, order = ("normal", "served as they come") if priority == 0 else ("patient", "served behind others")
    if priority < 0:
        word, order = "urgent", "served before others"
    return f"{word} (priority {priority}): {order}"


COMMANDS = (
    Command(
        "priority", "Priority", "Of this chat's requests, running ones too: urgent, normal, patient", priority, GROUP,
        slash="priority", argument="urgent | normal | patient | NUMBER",
    ),
    Command(
        "priority.up", "More urgent", "This chat's requests go before others", lambda screen, _: step(screen, -1),
        GROUP, "p", "map",
    ),
    Command(
        "priority.down", "Less urgent", "This chat's requests go behind others", lambda screen, _: step(screen, 1),
        GROUP, "P", "map",
    ),
)  # fmt: skip
