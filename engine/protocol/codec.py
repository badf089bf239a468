"""How messages become bytes: MessagePack maps with a `type` field, decoded straight into frozen structs.

An unknown type, a missing field or a wrong kind of value is a `ProtocolError`, never a half-read object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

VERSION = 2
"""Raised with any change a peer of the previous version would misread."""


class ProtocolError(ValueError):
    """A frame that is not one of the messages expected on its socket, or a value that is none."""

    @property
    def field(self) -> str | None:
        """The name of the field that is wrong, where it is one."""
        return field_of(str(self))


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all messages: immutable, tagged with its class name."""


_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The message as one MessagePack frame."""
    return _encoder.encode(message)


def field_of(error: str) -> str | None:
    """The field that one of msgspec's messages is about, by its last name: "top_k" of "... - at `$.options.top_k`"."""
    place = re.search(r"`\$\.?([^`]*)`$", error)
    named = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^]]*\]", "", place[1])) if place else []
    return named[-1] if named else None


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function from a frame to a message of `kind`, a struct or a union of them. It raises ProtocolError."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def checked(frame: bytes) -> Any:
        try:
            return decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProtocolError(str(error)) from None

    return checked
