"""config.toml: values for what nobody gave otherwise; what it says and nobody knows is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagechat import settings
from pagechat.settings import SettingsError

COMMANDS = {"serve": ["model", "block_size"], "ask": ["model", "max_tokens"], "app": ["theme", "model"]}


def test_a_key_is_for_every_command_that_has_the_option() -> None:
    defaults, unknown = settings.defaults({"model": "m", "block-size": 32, "theme": "paper"}, COMMANDS)
    assert defaults == {
        "serve": {"model": "m", "block_size": 32},
        "ask": {"model": "m"},
        "app": {"model": "m", "theme": "paper"},
    }
    assert unknown == []


def test_a_table_is_for_its_command_and_goes_before_the_general_key() -> None:
    defaults, unknown = settings.defaults({"ask": {"model": "small", "max_tokens": 9}, "model": "m"}, COMMANDS)
    assert defaults["ask"] == {"model": "small", "max_tokens": 9}
    assert defaults["serve"] == {"model": "m"}
    assert unknown == []


def test_what_nobody_knows_is_told() -> None:
    _, unknown = settings.defaults({"modle": 1, "ask": {"block-size": 1}, "model": {"x": 1}, "nope": {}}, COMMANDS)
    assert unknown == ["modle", "model", "nope", "ask.block-size"]


def test_the_file_is_where_platformdirs_says(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.default_path() == folders / "xdg-config" / "pagechat" / "config.toml"
    monkeypatch.setenv("PAGECHAT_CONFIG", "/elsewhere.toml")
    assert settings.default_path() == Path("/elsewhere.toml")


def test_no_file_is_no_settings(folders: Path) -> None:
    assert settings.load() == {}


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe"])
def test_a_broken_file_is_told_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"config\.toml"):
        settings.load(path)
