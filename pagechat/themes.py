"""Themes from TOML files. The built-in ones (package `themes`) and the user's own go through the same loader.

A theme file is data: it is checked completely before any of it is used, and a bad one is a `ThemeProblem`
to show once, never an exception. This module knows Textual's `Theme` and no screen.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

DEFAULT_THEME = "pagechat-dark"
OWNER_COLORS = 8
_MAX_BYTES = 64 * 1024


class ThemeProblem(msgspec.Struct, frozen=True):
    """A theme file that was skipped, and why."""

    file: str
    reason: str


class _Colors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    primary: str
    secondary: str
    accent: str
    foreground: str
    muted: str
    """Text that is not what one reads first: labels, hints, facts."""
    background: str
    surface: str
    panel: str
    frame: str
    """Frames around what has not the focus."""
    success: str
    warning: str
    error: str


class _Blocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owners: Annotated[list[str], msgspec.Meta(min_length=OWNER_COLORS, max_length=OWNER_COLORS)]
    """Fill colours of the blocks of chats A, B, C, ..."""
    free: str
    cached: str
    shared: str
    cow: str
    """A block just copied on write."""


class _ThemeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
    dark: bool
    ansi: bool = False
    """The colours are the terminal's own: `ansi_blue`, `ansi_default` and the like, and nothing else."""
    colors: _Colors
    blocks: _Blocks


def user_theme_dir() -> Path:
    """Where the user's own themes live."""
    return Path(platformdirs.user_config_dir("pagechat", appauthor=False)) / "themes"


def user_theme_stamp(folder: Path | None = None) -> dict[str, int]:
    """Changes whenever a file of the user's themes does: its name, and when it was written."""
    try:
        return {str(file): file.stat().st_mtime_ns for file in (folder or user_theme_dir()).glob("*.toml")}
    except OSError:
        return {}


def load_themes(user_dir: Path | None = None) -> tuple[list[Theme], list[ThemeProblem]]:
    """All good themes, built-in ones first, and what was wrong with the others.

    `user_dir` None takes `user_theme_dir()`. A user theme with a built-in theme's name replaces it.
    """
    files: list[Traversable] = list(_toml_files(resources.files("themes")))
    problems: list[ThemeProblem] = []
    folder = user_dir or user_theme_dir()
    try:
        files += _toml_files(folder) if folder.is_dir() else []
    except OSError as error:
        problems.append(ThemeProblem(str(folder), str(error)))
    themes: dict[str, Theme] = {}
    for file in files:
        try:
            theme = read_theme(file)
        except (OSError, ValueError) as error:
            problems.append(ThemeProblem(str(file), str(error)))
        else:
            themes[theme.name] = theme
    return list(themes.values()), problems


def read_theme(file: Traversable) -> Theme:
    """The theme in `file`. ValueError (or OSError) says what is wrong with it."""
    with file.open("rb") as stream:
        raw = stream.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES // 1024} KiB")
    try:
        parsed = msgspec.convert(tomllib.loads(raw.decode("utf-8")), _ThemeFile)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    colors, blocks = parsed.colors, parsed.blocks
    for where, value in [*msgspec.structs.asdict(colors).items(), *msgspec.structs.asdict(blocks).items()]:
        for color in value if isinstance(value, list) else [value]:
            _check_color(where, color, parsed.ansi)
    plain = msgspec.structs.asdict(colors)
    own = {name: plain.pop(name) for name in ("muted", "frame")}
    return Theme(
        name=parsed.name,
        dark=parsed.dark,
        ansi=parsed.ansi,
        **plain,
        variables={
            **_ansi_variables(parsed),
            **own,
            **block_variables(blocks.owners, blocks.free, blocks.cached, blocks.shared, blocks.cow),
            "footer-key-foreground": colors.accent,
            "footer-background": colors.background,
            "border": colors.primary,
            "border-blurred": colors.panel,
            "scrollbar": colors.panel,
            "scrollbar-hover": colors.secondary,
            "scrollbar-active": colors.primary,
            "scrollbar-background": colors.background,
            "scrollbar-background-hover": colors.background,
            "scrollbar-background-active": colors.background,
            "scrollbar-corner-color": colors.background,
        },
    )


def our_variables() -> dict[str, str]:
    """The variables of our own, for themes that have none of them: Textual's."""
    owners = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"]
    return {
        "muted": "#808890",
        "frame": "#606870",
        **block_variables(owners, "#7d8590", "#8c98a8", "#b8c4d0", "#ff5fa2"),
    }


def _ansi_variables(parsed: _ThemeFile) -> dict[str, str]:
    """What Textual's own style sheet wants of a theme of the terminal's colours, as Textual's own ones have it."""
    model = BUILTIN_THEMES["ansi-dark" if parsed.dark else "ansi-light"]
    return dict(model.variables) if parsed.ansi else {}


def block_variables(owners: list[str], free: str, cached: str, shared: str, cow: str) -> dict[str, str]:
    """The theme variables of the block map."""
    return {
        **{f"block-owner-{number}": color for number, color in enumerate(owners, start=1)},
        "block-free": free,
        "block-cached": cached,
        "block-shared": shared,
        "block-cow": cow,
    }


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio as WCAG 2 defines it, 1 to 21."""
    dark, light = sorted(_luminance(color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def text_on(ground: Color) -> Color:
    """Black or white, whichever can be read better on `ground`. (Textual's own choice goes by brightness, and puts
    white on a green where black has twice its contrast.)"""
    return max((Color(0, 0, 0), Color(255, 255, 255)), key=lambda color: contrast(ground, color))


def _luminance(color: Color) -> float:
    """Relative luminance (WCAG 2)."""
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _check_color(where: str, value: str, ansi: bool) -> None:
    # Only literal opaque colours: Textual would also take "auto" and percentages here, which a block cannot have.
    try:
        color = Color.parse(value)
    except ColorParseError as error:
        raise ValueError(f"{where}: {error}") from None
    if color.a != 1 or (color.ansi is not None) != ansi:
        wanted = "one of the terminal's own, such as ansi_blue" if ansi else "an opaque colour such as #56b4e9"
        raise ValueError(f"{where}: {value!r} is not {wanted}")


def _toml_files(folder: Traversable) -> Iterable[Traversable]:
    return sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
