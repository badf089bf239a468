"""Commands of the app itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pagechat.app.commands import Command
from pagechat.app.widgets.tour_card import TourCard

if TYPE_CHECKING:
    from pagechat.app.app import PagechatApp
    from pagechat.app.screens.main import MainScreen

GROUP = "pagechat"


def theme(screen: MainScreen, argument: str) -> None:
    if argument in screen.app.available_themes:
        screen.app.theme = argument
    else:
        screen.app.action_change_theme()


async def quit_(screen: MainScreen, argument: str) -> None:
    await screen.app.action_quit()


async def help_(screen: MainScreen, argument: str) -> None:
    await screen.app.run_action("help")


def reconnect(screen: MainScreen, argument: str) -> None:
    screen.retry_link()


def screenshot(screen: MainScreen, argument: str) -> None:
    screen.set_timer(0.1, screen.app.deliver_screenshot)


def tour(screen: MainScreen, argument: str) -> None:
    app = cast("PagechatApp", screen.app)
    app.take_tour()


def tour_next(screen: MainScreen, argument: str) -> None:
    screen.post_message(TourCard.Next())


COMMANDS = (
    Command(
        "tour", "Guided tour", "How paging works, in seven steps on a small pool of its own", tour, GROUP, slash="tour"
    ),
    Command("tour.next", "Next step of the tour", "pagechat --tour shows how paging works", tour_next, GROUP, "f8"),
    Command("reconnect", "Try again", "Look for the daemon again, or start one", reconnect, GROUP, "f5"),
    Command("theme", "Theme", "Choose the colours", theme, GROUP, slash="theme", argument="NAME"),
    Command("screenshot", "Screenshot", "Save an SVG picture of the screen", screenshot, GROUP),
    Command(
        "help",
        "Help",
        "Keys, commands, and how to read the map",
        help_,
        GROUP,
        "f1,question_mark",
        slash="help",
    ),
    Command("quit", "Quit", "Leave pagechat", quit_, GROUP, "ctrl+q", slash="quit"),
)
