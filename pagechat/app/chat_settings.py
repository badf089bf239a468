"""What a chat asks of the model beside its messages: the system prompt and how to sample. Presets are named ones."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.sampling import Seed, Temperature, TokenCount, TopK, TopP
from pagechat.protocol import ChatOptions


class ChatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """None takes the model's own default, as in `ChatOptions`."""

    system: str = ""
    """System prompt; none when empty."""
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    max_tokens: TokenCount | None = None

    @property
    def options(self) -> ChatOptions:
        values = {name: getattr(self, name) for name in PARAMETERS}
        return ChatOptions(**values)

    @property
    def summary(self) -> str:
        """What differs from the model's own, on one line; empty when nothing does."""
        parts = [
            f"{name.replace('_', '-')} {value:g}" for name in PARAMETERS if (value := getattr(self, name)) is not None
        ]
        return " · ".join(["system prompt", *parts] if self.system else parts)

    def as_dict(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    def changed(self, name: str, text: str) -> ChatSettings:
        """With one field as typed; an empty text takes the model's own. Raises ValueError, in words for people."""
        name = name.strip().lower().replace("-", "_")
        if name == "system":
            return msgspec.structs.replace(self, system=text.strip())
        if name not in PARAMETERS:
            raise ValueError(f"there is no {name!r}; there are system, {', '.join(PARAMETERS).replace('_', '-')}")
        values = self.as_dict()
        values.pop(name, None)
        if text.strip():
            try:
                values[name] = msgspec.convert(text.strip(), _type_of(name), strict=False)
            except msgspec.ValidationError as error:
                raise ValueError(f"{name.replace('_', '-')}: {text.strip()!r} cannot be taken: {error}") from None
        return msgspec.convert(values, ChatSettings)


PARAMETERS = ("temperature", "top_p", "top_k", "seed", "max_tokens")

PRESETS: dict[str, ChatSettings] = {
    "model": ChatSettings(),
    "precise": ChatSettings(temperature=0.0),
    "balanced": ChatSettings(temperature=0.7, top_p=0.95),
    "creative": ChatSettings(temperature=1.1, top_p=0.98),
    "repeatable": ChatSettings(temperature=0.7, top_p=0.95, seed=1),
    "short": ChatSettings(system="Answer in one or two sentences.", max_tokens=120),
}
"""The built-in ones. "model" is what its generation_config.json says."""


def settings_from(stored: dict[str, Any]) -> ChatSettings:
    """Settings as the store kept them; what cannot be read (a newer version's, say) is left out."""
    values = {}
    for name, value in stored.items():
        try:
            msgspec.convert({name: value}, ChatSettings)
        except msgspec.ValidationError:
            continue
        values[name] = value
    return msgspec.convert(values, ChatSettings)


def _type_of(name: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(ChatSettings) if field.name == name)
