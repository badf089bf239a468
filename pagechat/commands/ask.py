"""`pagechat-daemon ask`: one question, the answer streamed to stdout; several answers one after the other at the end.

Uses the running daemon, else starts one and stops it again. With a session the chat lives in the history file: the
question is saved before the answer begins and the answer as it comes, so nothing is lost however this ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.protocol import BeamParams
from pagechat.client import AsyncEngineClient, ClientError, RequestFailed
from pagechat.commands import exits
from pagechat.commands.watch import silence_stdout
from pagechat.daemon.launch import Launched, ensure_daemon
from pagechat.daemon.narrate import Narrator
from pagechat.protocol import Accepted, ChatMessage, ChatOptions, Delta, Finished
from pagechat.signals import cancel_on_signal
from pagechat.store import MessageStatus, Store
from pagechat.text_safety import sanitize

_SAVE_EVERY_S = 0.5
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    options: ChatOptions
    system: str | None = None
    session: str | None = None
    """Name of a chat that goes on from one call to the next; None: the question stands alone."""
    model: str | None = None
    """As given on the command line, for a daemon that is started. One that runs already must serve this model."""
    as_json: bool = False
    n: int = 1
    beam: BeamParams | None = None

    @property
    def streams(self) -> bool:
        """The answer stands on stdout while it comes."""
        return self.n == 1 and not self.as_json


async def ask(question: Question, run_dir: Path | None) -> int:
    """Exit code. Raises ClientError, LaunchError, RunDirError, StoreError."""
    cancel_on_signal()
    launched: Launched | None = None
    record = Record.open(question)
    try:
        launched = await _daemon(run_dir, question.model)
        async with await AsyncEngineClient.connect(run_dir, name="ask") as client:
            if launched is None and question.model is not None:
                await _check_model(client, question.model)
            answers = await _answer(client, question, record)
    except asyncio.CancelledError:
        record.end("stopped", {"finish_reason": "abort"})
        _end_line(record)
        return exits.INTERRUPTED
    except BrokenPipeError:
        record.end("stopped", {"finish_reason": "abort"})
        silence_stdout()
        return exits.CLOSED_PIPE
    except Exception as error:
        record.end("error", {"error": str(error)})
        _end_line(record)
        raise
    finally:
        if launched is not None:
            launched.stop()
    finished = answers[0]
    record.end("stopped" if finished.finish_reason == "abort" else "complete", _facts(finished))
    try:
        if question.as_json:
            print(json.dumps(_as_data(answers, record.session), ensure_ascii=False), flush=True)
        elif question.streams:
            _end_line(record)
        else:
            _print_all(answers)
    except BrokenPipeError:
        silence_stdout()
        return exits.CLOSED_PIPE
    if any(answer.finish_reason == "abort" for answer in answers):
        print("pagechat-daemon: the daemon stopped before the answer was complete", file=sys.stderr)
        return exits.FAILED
    return exits.OK


async def _daemon(run_dir: Path | None, model: str | None) -> Launched | None:
    """As ensure_daemon; one that was started is never forgotten, not even by an interruption while it starts."""
    options = ["--model", model] if model else []
    launching = asyncio.create_task(asyncio.to_thread(ensure_daemon, run_dir, options))
    try:
        return await asyncio.shield(launching)
    except asyncio.CancelledError:
        started = await launching
        if started is not None:
            started.stop()
        raise


async def _answer(client: AsyncEngineClient, question: Question, record: Record) -> list[Finished]:
    """The last message of each answer. What streams is the first of them."""
    waiting = asyncio.create_task(_show_loading(client))
    out = _Output(sys.stdout.isatty(), silent=not question.streams)
    answers: list[Finished] = []
    try:
        stream = client.chat(
            record.messages(question),
            session=record.session,
            options=question.options,
            keep=question.session is not None,
            n=question.n,
            beam=question.beam,
        )
        async with contextlib.aclosing(stream):
            async for event in stream:
                match event:
                    case Accepted():
                        waiting.cancel()
                        record.begin()
                    case Delta(text=text, index=0):
                        record.add(text)
                        out.write(text)
                    case Finished():
                        answers.append(event)
        if len(answers) == question.n:
            return sorted(answers, key=lambda answer: answer.index)
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientError):
            await waiting
    raise RequestFailed("internal", "the answer ended without its last message")


async def _check_model(client: AsyncEngineClient, wanted: str) -> None:
    """Raises RequestFailed when the running daemon serves another model than the one asked for."""
    while (found := await client.status()).state in ("loading", "restarting") and found.next_try_s is None:
        await asyncio.sleep(_POLL_S)
    served = found.model
    if served is None or wanted in (served.name, served.path):
        return
    path = Path(wanted)
    if path.exists() and (path.resolve() == Path(served.path).resolve() or path.stem == served.name):
        return
    raise RequestFailed(
        "bad_request",
        f"the running daemon serves {served.name}, not {wanted}; stop it with `pagechat-daemon stop` first",
    )


async def _show_loading(client: AsyncEngineClient) -> None:
    """Tells on stderr what the engine does until it is ready."""
    narrator = Narrator()
    try:
        while (found := await client.status()).state in ("loading", "restarting"):
            narrator.progress(found.load)
            await asyncio.sleep(_POLL_S)
    finally:
        narrator.progress(None)


class _Output:
    """The answer on stdout: as it is for a program, made safe for a terminal."""

    def __init__(self, is_terminal: bool, silent: bool) -> None:
        self._is_terminal, self._silent = is_terminal, silent
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        if not self._silent:
            sys.stdout.write(sanitize(text) if self._is_terminal else text)
            sys.stdout.flush()


def _print_all(answers: list[Finished]) -> None:
    """One after the other, an empty line between; which is which is told on stderr."""
    out = _Output(sys.stdout.isatty(), silent=False)
    for number, answer in enumerate(answers, 1):
        if number > 1:
            out.write("\n")
        score = f", score {answer.score:.4f}" if answer.score is not None else ""
        print(f"--- answer {number} of {len(answers)}{score} ---", file=sys.stderr, flush=True)
        out.write(answer.text if answer.text.endswith("\n") else answer.text + "\n")


def _end_line(record: Record) -> None:
    """A line that was begun on stdout is ended."""
    if record.printed and record.text and not record.text.endswith("\n"):
        with contextlib.suppress(BrokenPipeError):
            print(flush=True)


@dataclass(slots=True)
class Record:
    """The question and the answer so far, and their place in the history when the chat has a name."""

    session: str
    printed: bool
    """The answer is streamed to stdout."""
    store: Store | None = None
    history: list[ChatMessage] = field(default_factory=list)
    text: str = ""
    _answer_id: int | None = None
    _saved: float = 0.0

    @classmethod
    def open(cls, question: Question) -> Record:
        """Saves the question. Raises StoreError."""
        record = cls(session=question.session or f"ask-{uuid.uuid4().hex[:12]}", printed=False)
        if question.session is None:
            return record
        store = record.store = Store()
        title = " ".join(question.text.split())[:60] or question.session
        chat = store.find_chat(question.session) or store.create_chat(title, question.session)
        record.history = _history(store, chat.id)
        if question.system is not None and not record.history:
            store.add_message(chat.id, "system", question.system)
        store.add_message(chat.id, "user", question.text)
        return record

    def messages(self, question: Question) -> list[ChatMessage]:
        """What the model gets. A system message given now goes before the chat's own."""
        messages = self.history
        if question.system is not None:
            messages = [message for message in messages if message.role != "system"]
            messages = [ChatMessage(role="system", content=question.system), *messages]
        self.printed = question.streams
        return [*messages, ChatMessage(role="user", content=question.text)]

    def begin(self) -> None:
        if self.store is not None:
            self._answer_id = self.store.add_message(self.session, "assistant", "", "streaming")

    def add(self, text: str) -> None:
        self.text += text
        now = asyncio.get_running_loop().time()
        if self.store is not None and self._answer_id is not None and now - self._saved > _SAVE_EVERY_S:
            self.store.update_message(self._answer_id, self.text, "streaming")
            self._saved = now

    def end(self, status: MessageStatus, facts: dict[str, Any]) -> None:
        """The last word on the answer."""
        if self.store is not None and self._answer_id is not None:
            self.store.update_message(self._answer_id, self.text, status, facts)
            self._answer_id = None


def _history(store: Store, chat_id: str) -> list[ChatMessage]:
    """The turns so far: a question without any answer is left out, for templates want the roles to alternate."""
    turns: list[ChatMessage] = []
    for message in store.messages(chat_id):
        if message.role == "user" and turns and turns[-1].role == "user":
            turns.pop()
        if message.content or message.role == "user":
            turns.append(ChatMessage(role=message.role, content=message.content))
    if turns and turns[-1].role == "user":
        turns.pop()
    return turns


def _facts(finished: Finished) -> dict[str, Any]:
    return {
        "finish_reason": finished.finish_reason,
        "prompt_tokens": finished.usage.prompt_tokens,
        "cached_tokens": finished.usage.cached_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "ttft_s": finished.timing.ttft_s,
        "total_s": finished.timing.total_s,
        "cache_miss": finished.miss,
    }


def _as_data(answers: list[Finished], session: str) -> dict[str, Any]:
    """The first answer; with several, all of them as "answers"."""
    finished = answers[0]
    usage, timing = finished.usage, finished.timing
    data: dict[str, Any] = {
        "text": finished.text,
        "finish_reason": finished.finish_reason,
        "session": session,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "timing": {"ttft_s": timing.ttft_s, "total_s": timing.total_s},
        "cache_miss": finished.miss,
    }
    if len(answers) > 1 or finished.score is not None:
        data["answers"] = [_answer_data(answer) for answer in answers]
    return data


def _answer_data(answer: Finished) -> dict[str, Any]:
    data: dict[str, Any] = {"index": answer.index, "text": answer.text, "finish_reason": answer.finish_reason}
    if answer.score is not None:
        data["score"] = answer.score
    return data
