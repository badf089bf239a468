"""A client of one streamed completion that notes when what came: HTTP/1.1 over asyncio's sockets, and no more of it.

A measuring client must cost little, and know when the bytes came and not when a library gave them out.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

_LINE = 2**20


@dataclass(slots=True)
class Streamed:
    """What came of one request; times are seconds of time.perf_counter."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """Of each event with text."""
    ended: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


async def complete(url: str, body: dict[str, Any], key: str | None, timeout_s: float) -> Streamed:
    """Sends `body` to a server's /v1/completions, streamed. Errors are in the result; nothing is raised for them."""
    result = Streamed(sent=time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s):
            async for event in _events(url, body, key):
                _take(event, result)
    except TimeoutError:
        result.error = f"no end after {timeout_s:g} s"
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        result.error = str(error) or type(error).__name__
    result.ended = time.perf_counter()
    if result.error is None and not result.arrivals:
        result.error = "an answer without text"
    return result


def _take(event: dict[str, Any], result: Streamed) -> None:
    if "error" in event:
        raise ValueError(str(event["error"]))
    if any(choice.get("text") for choice in event.get("choices", ())):
        result.arrivals.append(time.perf_counter())
    if usage := event.get("usage"):
        result.prompt_tokens, result.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]


async def _events(url: str, body: dict[str, Any], key: str | None) -> AsyncIterator[dict[str, Any]]:
    place = urllib.parse.urlsplit(url)
    secure = ssl.create_default_context() if place.scheme == "https" else None
    port = place.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(place.hostname, port, ssl=secure, limit=_LINE)
    try:
        content = json.dumps(body).encode()
        head = f"POST {place.path.rstrip('/')}/completions HTTP/1.1\r\nhost: {place.netloc}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        head += f"authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
        writer.write(head.encode() + content)
        status = (await reader.readline()).split(maxsplit=2)[1:2]
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b""):
            chunked = chunked or line.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
        if status != [b"200"]:
            raise ValueError(
                f"status {b''.join(status).decode()}: {(await reader.read(500)).decode('utf-8', 'replace')}"
            )
        rest = b""
        async for piece in _pieces(reader, chunked):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield json.loads(line.removeprefix(b"data: "))
    finally:
        writer.close()


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """The body as it comes."""
    if not chunked:
        while piece := await reader.read(65536):
            yield piece
        return
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()
