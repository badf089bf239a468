"""The model that a benchmark runs in this process: what its flags may say, and what is told while it loads."""

from __future__ import annotations

import sys
from typing import NoReturn

import msgspec
import typer

from engine.process.config import EngineConfig
from engine.protocol import LoadProgress
from pagechat.text_safety import sanitize


def checked(config: EngineConfig) -> EngineConfig:
    """The same; ValueError where a flag says what its field cannot be."""
    return msgspec.convert(msgspec.to_builtins(config), EngineConfig)


def numbers(flag: str, given: str) -> list[int]:
    """Of `--flag 1,8`, ascending, each once. Raises ValueError."""
    try:
        found = sorted({int(value) for value in given.split(",")})
    except ValueError:
        raise ValueError(f"{flag} {given}: whole numbers, comma-separated, are wanted") from None
    if found[0] < 1:
        raise ValueError(f"{flag} {given}: each is at least 1")
    return found


def narrate(progress: LoadProgress) -> None:
    if progress.total and progress.done == progress.total:
        say(f"{progress.stage} {progress.detail}: done")


def say(message: str) -> None:
    """To whoever watches: stdout is for data."""
    print(sanitize(message), file=sys.stderr, flush=True)


def stop(error: object, code: int) -> NoReturn:
    say(f"pagechat-bench: {error}")
    raise typer.Exit(code) from None
