"""Commands that change the model or the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from pagechat import rundir
from pagechat.app import known_models
from pagechat.app.commands import Command
from pagechat.app.keeper import Keeper
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.servers import ServersScreen
from pagechat.app.servers import ServerError, Servers
from pagechat.store import StoreError

if TYPE_CHECKING:
    from pagechat.app.app import PagechatApp
    from pagechat.app.screens.main import MainScreen

GROUP = "pagechat"
_REMEMBERED = "models"


def choose(screen: MainScreen, argument: str) -> None:
    """Without words the dialog; with words a model, or the run directory of a daemon."""
    servers = cast("PagechatApp", screen.app).servers
    if servers is None:
        screen.notify("This app keeps to the daemon it was started with.", severity="warning", markup=False)
    elif argument:
        _ask(screen, servers, argument.strip())
    else:
        screen.run_worker(_dialog(screen, servers), group="servers", exclusive=True)


async def _dialog(screen: MainScreen, servers: Servers) -> None:
    run_dir = (servers.now.run_dir or rundir.default_path()).absolute()
    remembered = await recall(screen.keeper)
    models = await asyncio.to_thread(known_models.models, remembered, Path.cwd())
    daemons = await asyncio.to_thread(known_models.daemons, run_dir)
    status = screen.link_state.status if screen.client is not None else None
    wanted = await screen.app.push_screen_wait(ServersScreen(status, run_dir, models, daemons))
    if wanted:
        _ask(screen, servers, wanted)


def _ask(screen: MainScreen, servers: Servers, wanted: str) -> None:
    """Ask first when answers are being written."""
    count = len(screen.tabs.streaming)
    if not count:
        screen.run_worker(_change(screen, servers, wanted), group="servers", exclusive=True)
        return

    def answered(yes: bool | None) -> None:
        if yes:
            screen.run_worker(_change(screen, servers, wanted), group="servers", exclusive=True)

    what = "One answer is" if count == 1 else f"{count} answers are"
    question = f"{what} still being written. Stop and change to {wanted}?"
    screen.app.push_screen(Confirm(question, "What is written so far is kept.", "Change", "Stay"), answered)


async def _change(screen: MainScreen, servers: Servers, wanted: str) -> None:
    if screen.client is not None and screen.model is not None and screen.model.name == wanted:
        screen.notify(f"{wanted} is what answers already.", markup=False)
        return
    await asyncio.gather(*(chat.stop(screen.client) for chat in screen.tabs.streaming))
    try:
        if known_models.is_run_dir(wanted):
            servers.to_run_dir(Path(wanted))
        else:
            servers.to_model(str(Path(wanted).expanduser()) if wanted.startswith("~") else wanted)
    except ServerError as error:
        screen.notify(str(error), severity="error", markup=False)
        return
    if not servers.changing:
        screen.notify(f"{wanted} is on its way already.", markup=False)
        return
    for chat in screen.tabs.conversations:  # another engine reads texts otherwise
        chat.changed()
    screen.move_link()


async def recall(keeper: Keeper) -> list[str]:
    """Models that were used before."""
    try:
        text: str | None = await keeper.call(keeper.store.recall, _REMEMBERED)
        return msgspec.json.decode(text or "[]", type=list[str])
    except (StoreError, msgspec.DecodeError):
        return []


async def remember(keeper: Keeper, name: str) -> None:
    """A model that was just taken. Raises StoreError."""
    names = known_models.remember(await recall(keeper), name)
    await keeper.call(keeper.store.remember, _REMEMBERED, msgspec.json.encode(names).decode())


COMMANDS = (
    Command(
        "model", "Model and server", "What answers now; another model, or another daemon", choose, GROUP, "f10",
        slash="model", argument="NAME, FOLDER, FILE or RUN DIRECTORY",
    ),
)  # fmt: skip
