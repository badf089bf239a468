"""Commands to ask for several answers, and to pick one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagechat.app import choosing
from pagechat.app.commands import Command
from pagechat.app.commands.messages import GROUP, last_place, record

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

DEFAULT = 3


async def several(screen: MainScreen, argument: str) -> None:
    """`/several 3`: so many answers to the last question, or the chosen message; `/several 3 TEXT`: to a new one."""
    conversation = screen.tabs.active
    number, text = _split(argument)
    if not 2 <= number <= choosing.MOST:
        screen.notify(f"2 to {choosing.MOST} answers can stand side by side, not {number}.", markup=False)
        return
    if not screen.ready_to_ask():
        return
    if text and (conversation.streaming or conversation.choosing):
        screen.notify("Another answer is still open here; esc stops it.", severity="warning", markup=False)
        return
    index = len(conversation.messages) if text else last_place(screen)
    if index is None:
        screen.notify("There is no question to answer yet: /several 3 and the question.", markup=False)
        return
    await conversation.stop(screen.client, 0)
    before = list(conversation.messages)
    index += bool(text) or before[index].role == "user"
    if text:
        conversation.say(text)
    screen.sender.several(conversation, index, number)
    if text:
        screen.undo.no_redo()
    else:
        record(screen, conversation, "several answers", before)
    await screen.follow()


async def pick(screen: MainScreen, argument: str) -> None:
    """Keep one of several answers; the chat goes on from it."""
    conversation = screen.tabs.active
    answer = conversation.choosing
    if answer is None:
        screen.notify("There are no answers to pick from. /several 3 asks for three.", markup=False)
        return
    number = int(argument) if argument.isdecimal() else 0
    if not 1 <= number <= len(answer.candidates):
        screen.notify(f"Pick one of 1 to {len(answer.candidates)}.", severity="warning", markup=False)
        return
    await conversation.stop(screen.client, 0)
    before = list(conversation.messages)
    conversation.set_messages([*before[:-1], choosing.picked(answer, number - 1)])
    record(screen, conversation, "choice of an answer", before)
    screen.to_composer()
    await screen.follow()


async def others(screen: MainScreen, argument: str) -> None:
    """What was not picked, beside what was, to pick from again. Only of the last answer: what follows rests on it."""
    conversation = screen.tabs.active
    last = conversation.messages[-1] if conversation.messages else None
    again = choosing.reopened(last) if last is not None and not conversation.streaming else None
    if conversation.choosing or again is None:
        screen.notify("The last answer came alone. /several 3 asks for three.", markup=False)
        return
    before = list(conversation.messages)
    conversation.set_messages([*before[:-1], again])
    record(screen, conversation, "new choice of an answer", before)
    await screen.follow()


def _split(argument: str) -> tuple[int, str]:
    number, _, text = argument.strip().partition(" ")
    return (int(number), text.strip()) if number.isdecimal() else (DEFAULT, argument.strip())


COMMANDS = (
    Command(
        "answer.several", "Several answers", "Two to four at once, side by side, to pick from", several, GROUP, "s",
        "messages", "several", "2-4, and a QUESTION",
    ),
    Command(
        "answer.pick", "Pick an answer", "1 to 4, or enter on the marked one; the others are kept with it", pick, GROUP,
        slash="pick", argument="NUMBER",
    ),
    Command(
        "answer.others", "Other answers", "Those not picked, beside the picked one", others, GROUP, "o", "messages",
        "others",
    ),
)  # fmt: skip
