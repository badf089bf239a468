"""The guided tour: seven steps on the real engine with a small pool, each shown by what the engine then does.

A step acts as a person would (it asks, forks, closes), says what to look at, and waits until the telemetry has shown
it. Nothing is staged: the figures are those of this run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from pagechat.app.commands.chats import close_tab
from pagechat.app.conversation import Conversation
from pagechat.app.widgets.tour_card import TourCard

if TYPE_CHECKING:
    from pagechat.app.screens.main import MainScreen

DAEMON_ARGS = ["--num-blocks", "48", "--block-size", "16", "--max-context", "512"]
"""Small enough that a few chats fill it."""
TOUR_TAKEN = "tour"
"""Under this the history remembers that it was taken."""
LOOK_S = 0.1
PATIENCE_S = 90.0
"""After this a step that was not seen says so, and the tour may go on."""

STORY = "Tell me a long story about a page table."
OTHERS = ("about the sea", "about a train", "about a garden", "about a city")


class Tour:
    """Runs the steps on a main screen, in order; `next` goes on to the next one."""

    def __init__(self, screen: MainScreen, card: TourCard) -> None:
        self.screen = screen
        self._card = card
        self._next = asyncio.Event()
        self.seen: list[str] = []
        """What each step has shown, in words."""
        self.chats: list[Conversation] = []
        """Those that the tour has opened."""

    def next(self) -> None:
        self._next.set()

    async def run(self) -> None:
        """All steps, each until the person goes on."""
        for number, step in enumerate(STEPS, start=1):
            head = f"{number}/{len(STEPS)} {step.title}"
            self._next.clear()
            self.screen.memory_pane.show_panel(step.panel)
            self._card.tell(head, step.text, Content.styled("watch the map …", "$muted"))
            await step.act(self)
            self.screen.to_map()  # in a small terminal only one of chat and map is seen
            shown = await self._wait(step)
            last = number == len(STEPS)
            then = "f8: end of the tour, the app stays" if last else "f8: on"
            state = ("✓ " + shown, "$success") if shown else ("Not seen this time.", "$warning")
            self._card.tell(head, step.text, Content.assemble(state, (f"   {then}", "$muted")))
            self.seen.append(shown or "")
            await self._next.wait()
        self._card.display = False

    async def _wait(self, step: Step) -> str | None:
        """What was seen, or None when patience or the person ended it before."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < deadline and not self._next.is_set():
            if (shown := step.seen(self)) is not None:
                return shown
            await asyncio.sleep(LOOK_S)
        return None

    # -- what steps do -------------------------------------------------------------------------

    async def ask(self, text: str, tokens: int, new: bool = True) -> Conversation:
        """Ask in a new chat, or in the one in front."""
        if new:
            await self.screen.action_command("chat.new")
        chat = self.screen.tabs.active
        chat.configure(msgspec.structs.replace(chat.settings, max_tokens=tokens, temperature=0.7, seed=len(self.chats)))
        self.screen.sender.submit(chat, text)
        self.chats.append(chat)
        await self.screen.follow()
        return chat

    async def settle(self) -> None:
        """Until nothing is being written."""
        while self.screen.tabs.streaming or any(chat.queue for chat in self.screen.tabs.conversations):
            await asyncio.sleep(LOOK_S)

    def blocks_of(self, chat: Conversation) -> int:
        return self.screen.view.sessions().get(chat.id, 0)


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    """What happens, and what to look at."""
    panel: str
    act: Callable[[Tour], Awaitable[object]]
    seen: Callable[[Tour], str | None]
    """The sentence with this run's figures once it has happened."""


async def _one_chat(tour: Tour) -> None:
    await tour.ask(STORY, 90)


def _allocated(tour: Tour) -> str | None:
    if tour.screen.tabs.streaming:
        return None
    blocks = tour.blocks_of(tour.chats[0])
    return f"{blocks} blocks were taken, one by one; the last still has room." if blocks > 3 else None


async def _fork(tour: Tour) -> None:
    await tour.screen.action_command("message.fork")


def _shared(tour: Tour) -> str | None:
    totals = tour.screen.view.totals()
    if totals is None or not totals.shared:
        return None
    return f"{totals.shared} blocks have two owners now; not one was copied."


async def _write_in_fork(tour: Tour) -> None:
    await tour.ask("And then?", 40, new=False)


def _copied(tour: Tour) -> str | None:
    copies = tour.screen.view.counts["copy"]
    return f"The half-filled block was copied (copies so far: {copies}); the full ones stay shared." if copies else None


async def _ask_again(tour: Tour) -> None:
    await tour.settle()
    for chat in list(tour.screen.tabs.conversations):
        if not chat.blank:
            await close_tab(tour.screen, chat)
    await tour.ask(STORY, 30)


def _hit(tour: Tour) -> str | None:
    facts = tour.chats[-1].messages[-1].facts if tour.chats[-1].messages else {}
    cached, prompt = facts.get("cached_tokens"), facts.get("prompt_tokens")
    return f"{cached} of {prompt} prompt tokens were there already and were not computed." if cached else None


async def _two_chats(tour: Tour) -> None:
    for about in OTHERS[:2]:
        await tour.ask(f"Tell me a long story {about}.", 320)


def _evicted(tour: Tour) -> str | None:
    evicted = tour.screen.view.counts["evict"]
    return f"{evicted} cached blocks lost their content to somebody who needed the room." if evicted else None


async def _four_chats(tour: Tour) -> None:
    for about in OTHERS:
        await tour.ask(f"Tell me a very long story {about}, with many chapters.", 420)


def _preempted(tour: Tour) -> str | None:
    mirror = tour.screen.view.mirror
    if mirror is None or not mirror.preemptions:
        return None
    times = "once" if mirror.preemptions == 1 else f"{mirror.preemptions} times"
    return f"The newest gave its blocks up {times}; it waits, and comes back with nothing lost."


async def _nothing(tour: Tour) -> None:
    if not tour.screen.tabs.streaming:
        await _four_chats(tour)


def _compared(tour: Tour) -> str | None:
    held = {shadow.policy: shadow.requests_held for shadow in tour.screen.view.shadows}
    paged, reserved = held.get("paged", 0), held.get("contiguous-max", 0)
    if paged <= reserved:
        return None
    return f"Of the live requests paging holds {paged}; reserving the longest for each would hold {reserved}."


STEPS = (
    Step(
        "A page at a time",
        "A chat takes a block of 16 tokens when it needs one, not before. Its letter fills the map.",
        "table",
        _one_chat,
        _allocated,
    ),
    Step(
        "Two owners",
        "The chat is forked. Both have a block table, and the same blocks in it: capitals on the map.",
        "forks",
        _fork,
        _shared,
    ),
    Step(
        "Copy on write",
        "The fork goes on. The first to write to a shared block gets its own copy (+); the rest stays shared.",
        "forks",
        _write_in_fork,
        _copied,
    ),
    Step(
        "Found again",
        "Both chats are closed: no owner, but their blocks keep their content (:). The first question is asked again.",
        "overview",
        _ask_again,
        _hit,
    ),
    Step(
        "Evicted",
        "Two long stories need more than is free. Cached blocks go first (x), the least recently used of them.",
        "history",
        _two_chats,
        _evicted,
    ),
    Step(
        "Preempted",
        "Four more at once: more than the pool holds. The newest gives its blocks up (!) and is computed again later.",
        "requests",
        _four_chats,
        _preempted,
    ),
    Step(
        "And without pages?",
        "The bars show the same requests under reservation in one piece: what is kept for words that never come.",
        "compare",
        _nothing,
        _compared,
    ),
)
