"""`pagechat-daemon batch IN.jsonl OUT.jsonl`: requests in OpenAI's batch format, answered through the HTTP door.

What is in OUT.jsonl already is not asked again, so a run that was killed is gone on with by calling it once more. Each
line is written whole and flushed; a half line that a kill left at the end is taken away first.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagechat.client import AsyncEngineClient
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.daemon.launch import ensure_daemon

_URLS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_AGAIN = frozenset({429, 503})
_PATIENCE_S = 600.0
"""How long a request is tried again when the daemon says "later"."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the input."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


async def batch(
    source: Path, target: Path, run_dir: Path | None, *, concurrency: int, priority: int, model: str | None
) -> int:
    """Exit code: FAILED when a request had no answer. Raises CommandError, ClientError, LaunchError.

    `priority`: of requests that name none.
    """
    lines = [replace(line, body={"priority": priority} | line.body) for line in read(source)]
    done = resume(target)
    left = [line for line in lines if line.custom_id not in done]
    options = ["--http", "127.0.0.1:0", *(["--model", model] if model else [])]
    launched = await asyncio.to_thread(ensure_daemon, run_dir, options)
    try:
        base = await _address(run_dir)
        failed = await asyncio.to_thread(_answer_all, left, target, base, concurrency)
    finally:
        if launched is not None:
            await asyncio.to_thread(launched.stop)
    words = f"{len(left):,} requests, {failed:,} without an answer"
    if done:
        words += f"; {len(lines) - len(left):,} had been answered before"
    print(f"pagechat-daemon: {words}; {target}", file=sys.stderr)
    return exits.FAILED if failed else exits.OK


def read(path: Path) -> list[Line]:
    """Every line is checked before the first is asked. Raises CommandError."""
    try:
        texts = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", exits.USAGE) from None
    lines, seen = [], set()
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        line = _parse(path, number, text)
        if line.custom_id in seen:
            raise CommandError(f"{path}, line {number}: custom_id {line.custom_id!r} is there already", exits.USAGE)
        seen.add(line.custom_id)
        lines.append(line)
    return lines


def _parse(path: Path, number: int, text: str) -> Line:
    def wrong(words: str) -> CommandError:
        return CommandError(f"{path}, line {number}: {words}", exits.USAGE)

    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise wrong("not a JSON object")
    custom_id, body = found.get("custom_id"), found.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise wrong("custom_id is missing")
    if found.get("method", "POST") != "POST" or found.get("url") not in _URLS:
        raise wrong(f"url must be one of {', '.join(sorted(_URLS))}, and method POST")
    if not isinstance(body, dict) or body.get("stream"):
        raise wrong("body must be an object, without stream")
    return Line(number, custom_id, found["url"], body)


def resume(path: Path) -> set[str]:
    """The custom_ids that have been answered. Takes a half line away. Raises CommandError for another kind of file."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    try:
        done = {str(json.loads(text)["custom_id"]) for text in content[:whole].splitlines()}
    except (ValueError, KeyError, TypeError):
        raise CommandError(
            f"{path} is there and holds no answers of a batch; choose another file", exits.USAGE
        ) from None
    if whole < len(content):
        os.truncate(path, whole)
    return done


async def _address(run_dir: Path | None) -> str:
    async with await AsyncEngineClient.connect(run_dir, name="batch") as client:
        await client.snapshot()  # when the model is there
        status = await client.status()
    if status.http is None:
        raise CommandError(
            f"this daemon has no HTTP ({status.http_problem or 'it was started with --no-http'}); start it with --http",
            exits.FAILED,
        )
    return status.http


def _answer_all(lines: list[Line], target: Path, base: str, concurrency: int) -> int:
    """How many had no answer."""
    failed = 0
    with target.open("ab") as out, ThreadPoolExecutor(concurrency) as threads, _progress(len(lines)) as progress:
        task = progress.add_task("", total=len(lines))
        for answer in _in_turn(threads, lines, base, 2 * concurrency):
            out.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
            out.flush()
            failed += answer["error"] is not None or answer["response"]["status_code"] != 200
            progress.advance(task)
    return failed


def _in_turn(threads: ThreadPoolExecutor, lines: list[Line], base: str, ahead: int) -> Iterator[dict[str, Any]]:
    """Answers as they come, with so many requests given to the threads at a time."""
    waiting: set[Future[dict[str, Any]]] = set()
    rest = iter(lines)
    while True:
        while len(waiting) < ahead and (line := next(rest, None)) is not None:
            waiting.add(threads.submit(_answer, line, base))
        if not waiting:
            return
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _answer(line: Line, base: str) -> dict[str, Any]:
    """One line of the output."""
    answer: dict[str, Any] = {"id": f"batch_req_{line.number}", "custom_id": line.custom_id}
    try:
        status, request_id, body = _post(base + line.url, line.body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        failure = {"code": "connection", "message": str(error) or type(error).__name__}
        return answer | {"response": None, "error": failure}
    return answer | {"response": {"status_code": status, "request_id": request_id, "body": body}, "error": None}


def _post(url: str, body: dict[str, Any]) -> tuple[int, str, Any]:
    """(status, request id, body). What is to be tried later is, as long as there is patience."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        status, headers, content = _post_once(url, body)
        if status not in _AGAIN or time.monotonic() > deadline:
            return status, headers.get("x-request-id", ""), json.loads(content)
        time.sleep(float(headers.get("retry-after", "1")))


def _post_once(url: str, body: dict[str, Any]) -> tuple[int, http.client.HTTPMessage, bytes]:
    place = urllib.parse.urlsplit(url)
    headers = {"content-type": "application/json"}
    if key := os.environ.get("PAGECHAT_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    try:
        connection.request("POST", place.path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def _progress(total: int) -> Progress:
    return Progress(
        TextColumn("answered"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty() or not total,
    )
