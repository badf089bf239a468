"""Themes: the built-in files and the user's go through one loader, and bad ones are only skipped."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import Theme

from pagechat.themes import DEFAULT_THEME, contrast, load_themes, read_theme, text_on, user_theme_dir

GOOD = resources.files("themes").joinpath("pagechat-dark.toml").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_built_in_themes_are_there_for_all_eyes_and_terminals(folder: Path) -> None:
    themes, problems = load_themes(folder / "none")
    assert problems == []
    names = {theme.name for theme in themes}
    assert len(names) >= 8
    assert {DEFAULT_THEME, "high-contrast", "colour-blind", "terminal"} <= names
    assert {theme.dark for theme in themes} == {True, False}


@pytest.mark.parametrize("theme", [theme for theme in load_themes(Path("/none"))[0] if not theme.ansi], ids=str)
def test_everything_can_be_read_in_the_built_in_themes(theme: Theme) -> None:
    # WCAG 2: 7 for text (AAA), 4.5 for what is secondary (AA), 3 for marks and large signs
    grounds = [Color.parse(color or "") for color in (theme.background, theme.surface)]
    for ground in grounds:
        assert contrast(ground, Color.parse(theme.foreground or "")) >= 7
        assert contrast(ground, Color.parse(theme.variables["muted"])) >= 4.5
        for name in ("primary", "accent", "success", "warning", "error"):
            assert contrast(ground, Color.parse(getattr(theme, name))) >= 4.5, name
        assert contrast(ground, Color.parse(theme.secondary or "")) >= 3
    background = grounds[0]
    assert contrast(background, Color.parse(theme.variables["block-shared"])) >= 7
    assert contrast(background, Color.parse(theme.variables["block-cached"])) >= 4.5
    assert contrast(background, Color.parse(theme.variables["block-cow"])) >= 4.5
    assert contrast(background, Color.parse(theme.variables["block-free"])) >= 1.7  # dots: there, and not in the way
    for number in range(1, 9):
        owner = Color.parse(theme.variables[f"block-owner-{number}"])
        assert contrast(owner, text_on(owner)) >= 4.5


def test_high_contrast_means_it(folder: Path) -> None:
    (theme,) = [theme for theme in load_themes(folder)[0] if theme.name == "high-contrast"]
    ground = Color.parse(theme.background or "")
    for color in (theme.foreground, theme.variables["muted"], theme.accent, theme.error, theme.variables["block-cow"]):
        assert contrast(ground, Color.parse(color or "")) >= 7


def test_owner_colours_are_okabe_and_itos(folder: Path) -> None:
    # emilhvitfeldt.github.io/r-color-palettes/discrete/colorblindr/OkabeIto, black replaced by grey
    okabe_ito = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999"]
    for theme in load_themes(folder)[0]:
        if not theme.ansi:
            assert [theme.variables[f"block-owner-{n}"] for n in range(1, 9)] == okabe_ito


def test_a_theme_of_the_terminals_colours_has_no_others(folder: Path) -> None:
    text = resources.files("themes").joinpath("terminal.toml").read_text()
    (folder / "mine.toml").write_text(text.replace('"ansi_blue"', '"#0000ff"', 1))
    (folder / "other.toml").write_text(GOOD.replace('"#10141a"', '"ansi_black"'))
    problems = load_themes(folder)[1]
    assert ["ansi_blue" in problems[0].reason, "#56b4e9" in problems[1].reason] == [True, True]


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
    assert len(themes) == len(load_themes(folder / "none")[0])
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


def test_contrast_is_wcags() -> None:
    # the two ends of its scale, and its definition's own example of a grey: #767676 on white is 4.54
    black, white = Color(0, 0, 0), Color(255, 255, 255)
    assert contrast(black, white) == contrast(white, black) == pytest.approx(21)
    assert contrast(white, Color.parse("#767676")) == pytest.approx(4.54, abs=0.01)
    assert (text_on(white), text_on(black), text_on(Color.parse("#009e73"))) == (black, white, black)
