"""Chats as files: Markdown to read, JSON with everything, and OpenAI's list of messages. Knows no screen.

The end of the file's name chooses: `.openai.json`, `.json`, else Markdown. Reading looks at what is in the file.

```
# title                      the title
<!-- pagechat:user -->       begins a message, with its role; everything up to the next such line is its text
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec

from pagechat.app.chat_settings import ChatSettings
from pagechat.app.conversation import Conversation, title_of
from pagechat.app.message import Message

MAX_BYTES = 64 * 2**20
_MARK = re.compile(r"^<!-- pagechat:(system|user|assistant) -->\n", re.MULTILINE)
_PLAIN, _ESCAPED = "<!-- pagechat:", "<!-- \\pagechat:"
_HEADINGS = {"system": "System", "user": "You", "assistant": "Model"}


class ImportedMessage(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str
    status: Literal["stopped", "complete", "error"] = "complete"
    facts: dict[str, Any] = {}


class ImportedChat(msgspec.Struct):
    """What a file holds."""

    messages: list[ImportedMessage]
    title: str = ""
    settings: ChatSettings = ChatSettings()

    def conversation(self) -> Conversation:
        """A new chat with these messages; a system message at the start becomes the system prompt."""
        messages, settings = list(self.messages), self.settings
        if messages and messages[0].role == "system":
            settings = msgspec.structs.replace(settings, system=messages.pop(0).content)
        first = next((message.content for message in messages if message.role == "user"), "imported")
        held = [Message(one.role, one.content, one.status, dict(one.facts)) for one in messages]
        return Conversation(title=self.title or title_of(first), messages=held, settings=settings)


def exported(path: Path, title: str, settings: ChatSettings, messages: Sequence[Message]) -> str:
    """The text of the file."""
    name = path.name.lower()
    if name.endswith(".openai.json"):
        system = [{"role": "system", "content": settings.system}] if settings.system else []
        plain = [{"role": message.role, "content": message.content} for message in messages]
        return _json([*system, *plain])
    if name.endswith(".json"):
        full = [
            ImportedMessage(m.role, m.content, "stopped" if m.status == "streaming" else m.status, m.facts)
            for m in messages
        ]
        return _json(ImportedChat(full, title, settings))
    return to_markdown(title, messages, settings.system)


def to_markdown(title: str, messages: Sequence[Message], system: str = "") -> str:
    first = [Message("system", system)] if system else []
    parts = [f"# {' '.join(title.split()) or 'chat'}\n"]
    for message in [*first, *messages]:
        parts.append(
            f"<!-- pagechat:{message.role} -->\n**{_HEADINGS[message.role]}**\n\n{_escape(message.content.strip())}\n"
        )
    return "\n".join(parts)


def read(path: Path) -> ImportedChat:
    """The chat in a file. Raises OSError, or ValueError with what is wrong in words."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
    text = path.read_text(encoding="utf-8")
    try:
        return _from_json(text) if text.lstrip()[:1] in ("{", "[") else _from_markdown(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply to be a chat") from None


def default_file(title: str) -> Path:
    """Where a chat of that title goes when nobody says otherwise."""
    name = re.sub(r"[^\w -]", "", title).strip().replace(" ", "-")[:60] or "chat"
    return Path.home() / f"{name}-{date.today().isoformat()}.md"


def write_new(path: Path, text: str) -> None:
    """Write a file that only this user can read. Raises FileExistsError rather than replacing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = _storable(text).encode()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            file.write(data)
            file.flush()
        except OSError:  # a full disk: half a file would stand in the way of the next try
            path.unlink()
            raise


def _json(value: object) -> str:
    plain = _without_surrogates(msgspec.to_builtins(value))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _storable(value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    return [_without_surrogates(one) for one in value] if isinstance(value, list) else value


def _storable(text: str) -> str:
    """No file holds lone surrogates: they become question marks, as in the history."""
    return text.encode("utf-8", "replace").decode()


def _from_json(text: str) -> ImportedChat:
    if text.lstrip().startswith("["):
        return ImportedChat(msgspec.json.decode(text, type=list[ImportedMessage]))
    return msgspec.json.decode(text, type=ImportedChat)


def _from_markdown(text: str) -> ImportedChat:
    head, *rest = _MARK.split(text)
    if not rest:
        raise ValueError("this is no chat that pagechat exported: no line says <!-- pagechat:user -->")
    title = head.strip().removeprefix("# ").strip()
    messages = []
    for role, body in zip(rest[::2], rest[1::2], strict=True):
        heading = f"**{_HEADINGS[role]}**\n\n"
        text = body.removeprefix(heading).strip().replace(_ESCAPED, _PLAIN)
        messages.append(ImportedMessage(role, text))  # type: ignore[arg-type]
    return ImportedChat(messages, title)


def _escape(text: str) -> str:
    """A message that spells a mark stays one message."""
    return text.replace(_PLAIN, _ESCAPED)
