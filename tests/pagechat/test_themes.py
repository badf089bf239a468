"""Themes: the built-in files and the user's go through one loader, and bad ones are only skipped."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from textual.color import Color

from pagechat.themes import DEFAULT_THEME, load_themes, read_theme, user_theme_dir

GOOD = resources.files("themes").joinpath("pagechat-dark.toml").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_one_dark_and_one_light_theme_are_built_in(folder: Path) -> None:
    themes, problems = load_themes(folder / "none")
    assert problems == []
    assert {(theme.name, theme.dark) for theme in themes} == {("pagechat-dark", True), ("pagechat-light", False)}
    assert DEFAULT_THEME in {theme.name for theme in themes}


def test_text_can_be_read_on_its_background_in_the_built_in_themes(folder: Path) -> None:
    # WCAG 2: 4.5 for text, 3 for what is secondary
    for theme in load_themes(folder)[0]:
        ground = Color.parse(theme.background or "")
        assert _contrast(ground, Color.parse(theme.foreground or "")) >= 7
        assert _contrast(ground, Color.parse(theme.variables["muted"])) >= 4.5


def test_owner_colours_are_okabe_and_itos(folder: Path) -> None:
    # emilhvitfeldt.github.io/r-color-palettes/discrete/colorblindr/OkabeIto, black replaced by grey
    okabe_ito = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"]
    for theme in load_themes(folder)[0]:
        assert [theme.variables[f"block-owner-{n}"] for n in range(1, 9)] == okabe_ito


def test_a_users_theme_is_loaded_beside_them(folder: Path) -> None:
    (folder / "mine.toml").write_text(GOOD.replace('"pagechat-dark"', '"mine"'))
    themes, problems = load_themes(folder)
    assert problems == []
    assert "mine" in {theme.name for theme in themes}


def test_a_users_theme_may_replace_a_built_in_one(folder: Path) -> None:
    (folder / "dark.toml").write_text(GOOD.replace("#10141a", "#000001"))
    themes, _ = load_themes(folder)
    assert [theme.background for theme in themes if theme.name == "pagechat-dark"] == ["#000001"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text + "[", "Invalid"),
        (lambda text: text.replace("#10141a", "no colour"), "background"),
        (lambda text: text.replace("#10141a", "#10141a80"), "opaque"),
        (lambda text: text.replace("#10141a", "auto 50%"), "background"),
        (lambda text: text.replace('"#e69f00", ', ""), "owners"),
        (lambda text: text.replace("background", "backgruond"), "backgruond"),
        (lambda text: text.replace('"pagechat-dark"', '"[red]x"'), "name"),
        (lambda text: text.replace("true", '"yes"'), "dark"),
        (lambda text: text + "#" * 70_000, "larger"),
    ],
)
def test_a_bad_theme_is_skipped_with_the_reason(folder: Path, change: object, reason: str) -> None:
    (folder / "bad.toml").write_text(change(GOOD))  # type: ignore[operator]
    themes, problems = load_themes(folder)
    assert len(themes) == 2
    assert len(problems) == 1
    assert problems[0].file.endswith("bad.toml")
    assert reason in problems[0].reason


def test_bytes_that_are_no_text_are_skipped_too(folder: Path) -> None:
    (folder / "bad.toml").write_bytes(b"\xff\xfe\x00name")
    assert len(load_themes(folder)[1]) == 1


def test_user_themes_live_in_the_config_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert user_theme_dir() == tmp_path / "pagechat" / "themes"


def test_reading_gives_all_colours_of_the_file(folder: Path) -> None:
    (folder / "t.toml").write_text(GOOD)
    theme = read_theme(folder / "t.toml")
    assert (theme.primary, theme.variables["block-cow"]) == ("#7aa2c9", "#ff5fa2")


def _contrast(one: Color, other: Color) -> float:
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
