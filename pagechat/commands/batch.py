"""`pagechat-daemon batch IN.jsonl OUT.jsonl`: requests in OpenAI's batch format, answered through the HTTP door.

What OUT.jsonl has an answer to is not asked again, so a run that was killed, or whose daemon was, is gone on with by
calling it once more. batch_output.py keeps that file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagechat.client import AsyncEngineClient
from pagechat.commands import exits
from pagechat.commands.batch_output import Output
from pagechat.commands.exits import CommandError
from pagechat.daemon.launch import ensure_daemon

_URLS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_AGAIN = frozenset({429, 503})
_PATIENCE_S = 600.0
"""How long a request is tried again when the daemon says "later"."""
_LONGEST_PAUSE_S = 60.0
_ATTEMPTS = 3
"""To get an answer over a connection; a daemon that takes none by then has gone."""


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
    """Exit code: FAILED when a request of the input has no answer, or was refused. Raises CommandError, ClientError,
    LaunchError.

    `priority`: of requests that name none.
    """
    lines = [replace(line, body={"priority": priority} | line.body) for line in read(source)]
    with Output(source, target) as output:
        left = [line for line in lines if line.custom_id not in output.answered]
        gone = await _ask(left, output, run_dir, concurrency, model) if left else None
        statuses = [output.answered.get(line.custom_id) for line in lines]
        failed, refused = statuses.count(None), sum(status not in (None, 200) for status in statuses)
        _report(target, len(left), failed, refused, len(lines) - len(left), gone)
    return exits.FAILED if failed or refused else exits.OK


async def _ask(
    lines: list[Line], output: Output, run_dir: Path | None, concurrency: int, model: str | None
) -> str | None:
    """Returns why not all was asked."""
    options = ["--http", "127.0.0.1:0", *(["--model", model] if model else [])]
    launched = await asyncio.to_thread(ensure_daemon, run_dir, options)
    try:
        return await _Asking(await _address(run_dir), output, concurrency).all(lines)
    finally:
        if launched is not None:
            await asyncio.to_thread(launched.stop)


def _report(target: Path, asked: int, failed: int, refused: int, before: int, gone: str | None) -> None:
    words = f"{asked:,} requests, {failed:,} without an answer"
    if refused:
        words += f", {refused:,} refused"
    if before:
        words += f"; {before:,} had been answered before"
    if gone:
        words += f"; the daemon has gone ({gone})"
    if failed:
        words += "; call it again for those without an answer"
    print(f"pagechat-daemon: {words}; {target}", file=sys.stderr)


def read(path: Path) -> list[Line]:
    """Every line is checked before the first is asked. Raises CommandError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error}", exits.USAGE) from None
    lines, seen = [], set()
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CommandError(f"{path}, line {number}: not UTF-8 text: {error.reason}", exits.USAGE) from None
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
    if not _is_text(custom_id):
        raise wrong("custom_id is no valid text: it has a lone surrogate")
    if found.get("method", "POST") != "POST" or found.get("url") not in _URLS:
        raise wrong(f"url must be one of {', '.join(sorted(_URLS))}, and method POST")
    if not isinstance(body, dict) or body.get("stream"):
        raise wrong("body must be an object, without stream")
    return Line(number, custom_id, found["url"], body)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


@dataclass(slots=True)
class _Asking:
    """Of one daemon. Once it has gone nothing more is asked."""

    base: str
    output: Output
    concurrency: int
    gone: str | None = field(default=None, init=False)

    async def all(self, lines: list[Line]) -> str | None:
        """Returns why not all was asked."""
        key = os.environ.get("PAGECHAT_API_KEY")
        limits = httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
        rest = iter(lines)
        async with httpx2.AsyncClient(
            base_url=self.base,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=10),  # an answer takes as long as it takes
            limits=limits,
            trust_env=False,  # no proxy stands between this machine and itself
        ) as http:
            with _progress(len(lines)) as progress:
                task = progress.add_task("", total=len(lines))
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(self.concurrency, len(lines))):
                            group.create_task(self._work(http, rest, lambda: progress.advance(task)))
                except* CommandError as errors:
                    raise errors.exceptions[0] from None
        return self.gone

    async def _work(self, http: httpx2.AsyncClient, rest: Iterator[Line], on_done: Any) -> None:
        for line in rest:
            answer = await self._answer(http, line)
            if answer is None:
                return
            self.output.write(answer)
            on_done()

    async def _answer(self, http: httpx2.AsyncClient, line: Line) -> dict[str, Any] | None:
        """One line of the output; None where it was not asked because nobody is there."""
        answer: dict[str, Any] = {"id": f"batch_req_{line.number}", "custom_id": line.custom_id}
        content = json.dumps(line.body).encode()
        deadline, failures = time.monotonic() + _PATIENCE_S, 0
        while not self.gone:
            try:
                response = await http.post(line.url, content=content, headers={"content-type": "application/json"})
                body = response.json()
            except (httpx2.TransportError, ValueError) as error:  # ValueError: it is no JSON
                failures += 1
                if failures == _ATTEMPTS and isinstance(error, httpx2.ConnectError):
                    self.gone = self.gone or str(error)
                elif failures == _ATTEMPTS:
                    failure = {"code": "connection", "message": str(error) or type(error).__name__}
                    return answer | {"response": None, "error": failure}
                await asyncio.sleep(0.5 * failures)
            else:
                if response.status_code not in _AGAIN or time.monotonic() > deadline:
                    request_id = response.headers.get("x-request-id", "")
                    told = {"status_code": response.status_code, "request_id": request_id, "body": body}
                    return answer | {"response": told, "error": None}
                await asyncio.sleep(_pause(response.headers.get("retry-after", "")))
        return None


def _pause(said: str) -> float:
    """Seconds, of a Retry-After header."""
    try:
        return min(_LONGEST_PAUSE_S, max(0.1, float(said)))
    except ValueError:  # missing, or a date
        return 1.0


def _progress(total: int) -> Progress:
    return Progress(
        TextColumn("answered"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty() or not total,
    )
