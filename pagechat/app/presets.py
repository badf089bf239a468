"""Settings of chats under names that the user gave: presets.json beside config.toml, and the built-in ones.

{"poet": {"system": "Answer in verse.", "temperature": 1.1}}
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from pagechat import settings
from pagechat.app.chat_settings import PRESETS as BUILT_IN
from pagechat.app.chat_settings import ChatSettings, settings_from

LONGEST_NAME = 40


class PresetError(Exception):
    """It cannot be read, saved or named so; the message says why, for people."""


def path() -> Path:
    return settings.default_path().with_name("presets.json")


class Presets:
    """The user's presets. Each call looks at the file: another app may have written it."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or path()

    def own(self) -> dict[str, ChatSettings]:
        """Those that the user saved, by name. Raises PresetError."""
        try:
            text = self._file.read_bytes()
            found = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise PresetError(f"{self._file} cannot be read: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise PresetError(f"{self._file} is no list of presets ({error}); mend it, or move it away") from None
        return {name: settings_from(values) for name, values in sorted(found.items())}

    def all(self) -> dict[str, ChatSettings]:
        """The built-in ones, then the user's. Raises PresetError."""
        return {**BUILT_IN, **self.own()}

    def save(self, name: str, values: ChatSettings) -> str:
        """Under that name, in the place of one that has it. Returns the name as it is kept. Raises PresetError."""
        name = " ".join(name.split())
        if not name or len(name) > LONGEST_NAME:
            raise PresetError(f"a preset needs a name of at most {LONGEST_NAME} characters")
        if name in BUILT_IN:
            raise PresetError(f"{name} is a preset that pagechat brings; take another name")
        self._write({**self.own(), name: values})
        return name

    def delete(self, name: str) -> ChatSettings:
        """Take one away and return what it was. Raises PresetError."""
        own = self.own()
        if name not in own:
            why = "pagechat brings it, and it stays" if name in BUILT_IN else "there is none of that name"
            raise PresetError(f"{name} cannot be deleted: {why}")
        gone = own.pop(name)
        self._write(own)
        return gone

    def _write(self, own: dict[str, ChatSettings]) -> None:
        """A whole new file in the place of the old one, so that no reader meets half of it."""
        text = msgspec.json.format(msgspec.json.encode({name: one.as_dict() for name, one in own.items()}), indent=2)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, partial = tempfile.mkstemp(dir=self._file.parent, prefix=".presets-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text + b"\n")
                os.replace(partial, self._file)
            except BaseException:
                os.unlink(partial)
                raise
        except OSError as error:
            raise PresetError(f"{self._file} cannot be written: {error.strerror}") from None
