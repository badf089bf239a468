"""`pagechat --replay FILE`: the memory pane over a recording, with a line to move through time."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from pagechat.app.commands.memory import PANELS
from pagechat.app.fitted import FittedApp
from pagechat.app.gauges import Gauges
from pagechat.app.panels import PaneData
from pagechat.app.player import SPEEDS, Player
from pagechat.app.screens.ghosts import GhostScreen
from pagechat.app.widgets.line import Line
from pagechat.app.widgets.memory_pane import MemoryPane
from pagechat.recording import Recording
from pagechat.text_safety import sanitize
from pagechat.themes import load_themes

TICK_S = 0.1
JUMP_S = 10.0


class TimeLine(Line):
    """Where the player stands; a click goes there."""

    class Clicked(Message):
        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def sync(self, player: Player) -> None:
        width = max(10, self.size.width - 44)
        share = player.elapsed / player.recording.seconds if player.recording.seconds else 1.0
        at = round(share * (width - 1))
        state = "▶" if player.playing else "‖"
        cut_off = "" if player.recording.complete else "  (the file is cut off here)"
        self.show(
            Content.assemble(
                (f"{state} ×{player.speed:g} ", "bold $accent"),
                ("━" * at + "●", "$accent"),
                ("─" * (width - 1 - at), "$frame"),
                f"  {clock(player.elapsed)} of {clock(player.recording.seconds)}",
                f"  step {player.index:,}/{player.last:,}",
                (cut_off, "$warning"),
            )
        )

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked((event.x - 5) / max(1, self.size.width - 44)))


class ReplayScreen(Screen[None]):
    """Draws what the player's view shows."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - declared so by Textual
    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-middle"), (32, "-high")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play, pause", priority=True),
        Binding("comma", "step(-1)", "Step back", key_display=","),
        Binding("full_stop", "step(1)", "Step", key_display="."),
        Binding("less_than_sign", f"jump({-JUMP_S})", "10 s back", key_display="<"),
        Binding("greater_than_sign", f"jump({JUMP_S})", "10 s on", key_display=">"),
        Binding("b", "begin", "Beginning"),
        Binding("t", "speed", "Speed"),
        Binding("q,ctrl+q", "app.quit", "Quit"),
    ]

    def __init__(self, player: Player) -> None:
        super().__init__()
        self.player = player
        self._gauges = Gauges()
        self._ticks = 0

    def compose(self) -> ComposeResult:
        yield MemoryPane(self.player.view, id="memory")
        yield TimeLine("timeline")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.set_class(True, "-memory")
        recording = self.player.recording
        model, device = (" ".join(sanitize(text).split())[:40] for text in (recording.model, recording.device))
        self.query_one(MemoryPane).border_title = Content(f"{model} · {device} · a recording")
        self.query_one("#map").focus()
        self.set_interval(TICK_S, self._tick)

    def _tick(self) -> None:
        if self.player.playing:
            self.player.advance(TICK_S)
        self._ticks += 1
        if self._ticks % 5 == 0 and self.player.playing:
            self._gauges.sample(self.player.view)
        self._draw()

    def _draw(self) -> None:
        view, pane = self.player.view, self.query_one(MemoryPane)
        pane.sync_map()
        newest = next(iter(view.timelines.newest()), None)
        active = newest.session if newest else ""
        pane.sync_text(
            PaneData(
                view=view,
                gauges=self._gauges,
                model=None,
                active=active,
                selected=pane.block_map.selected,
                chats=(),
                name_of=lambda session: " ".join(sanitize(session[:24]).split()) or "(no name)",
                text_of=lambda session, index: None,
            ),
            moves=self.player.playing,
        )
        self.query_one(TimeLine).sync(self.player)

    def action_play(self) -> None:
        player = self.player
        if not player.playing and player.index == player.last:
            player.seek_frame(0)
        player.playing = not player.playing

    def action_step(self, frames: int) -> None:
        self.player.playing = False
        self.player.step(frames)
        self._draw()

    def action_jump(self, seconds: float) -> None:
        self.player.seek(self.player.elapsed + seconds)
        self._draw()

    def action_begin(self) -> None:
        self.player.seek_frame(0)
        self._draw()

    def action_speed(self) -> None:
        at = SPEEDS.index(self.player.speed)
        self.player.speed = SPEEDS[(at + 1) % len(SPEEDS)]

    def on_time_line_clicked(self, event: TimeLine.Clicked) -> None:
        self.player.seek(event.share * self.player.recording.seconds)
        self._draw()

    def action_command(self, command_id: str) -> None:
        """The map's keys for panels; those that act on chats mean nothing here."""
        name = command_id.removeprefix("memory.")
        if name in PANELS:
            self.query_one(MemoryPane).show_panel(name)
        elif name == "ghost":
            self.app.push_screen(GhostScreen(self.player.view))
        elif name == "step":
            self.action_step(1)


class ReplayApp(FittedApp):
    """Plays one recording."""

    def __init__(self, recording: Recording, *, theme: str | None = None) -> None:
        super().__init__(load_themes()[0])
        self._wanted_theme = theme
        self.player = Player(recording)

    def on_mount(self) -> None:
        self.choose_theme(self._wanted_theme)
        self.player.playing = True
        self.push_screen(ReplayScreen(self.player))


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{seconds % 60:04.1f}"
