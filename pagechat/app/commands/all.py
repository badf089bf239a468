"""All commands, and how to find one."""

from __future__ import annotations

import difflib

from pagechat.app.commands import (
    Command,
    anywhere,
    candidates,
    chats,
    files,
    leader,
    memory,
    messages,
    places,
    presets,
    priorities,
    servers,
)

COMMANDS: tuple[Command, ...] = (
    *chats.COMMANDS,
    *presets.COMMANDS,
    *messages.COMMANDS,
    *candidates.COMMANDS,
    *memory.COMMANDS,
    *places.COMMANDS,
    *priorities.COMMANDS,
    *files.COMMANDS,
    *servers.COMMANDS,
    *leader.COMMANDS,
    *anywhere.COMMANDS,
)
BY_ID = {command.id: command for command in COMMANDS}
BY_SLASH = {command.slash: command for command in COMMANDS if command.slash}


def completions(text: str) -> list[Command]:
    """Slash commands that begin like `text`, an input that may be one; none once an argument has begun."""
    if not text.startswith("/") or any(letter.isspace() for letter in text):
        return []
    return [command for slash, command in sorted(BY_SLASH.items()) if slash.startswith(text[1:].lower())]


def parse_slash(text: str) -> tuple[Command, str] | str | None:
    """(the command, its argument) for an input that is a slash command; what to tell the person when it looks like
    one and is none; None when it is a message, such as one about `/usr/bin`."""
    word, _, argument = text.strip().partition(" ")
    name = word[1:].lower()
    if not word.startswith("/") or not name.replace("_", "").isalpha() or "\n" in word:
        return None
    command = BY_SLASH.get(name)
    if command is not None:
        return command, argument.strip()
    near = difflib.get_close_matches(name, BY_SLASH, 1)
    meant = f" Did you mean /{near[0]}?" if near else ""
    return f"There is no command /{name}.{meant} A message that starts so can be sent with a space before it."
