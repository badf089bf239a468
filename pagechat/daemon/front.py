"""The front: clients on one side, the engine on the other, text in between.

One asyncio loop. Everything that takes long (rendering a template, tokenizing) happens in worker threads;
everything else is done in the callback that brought it. A request lives like this:

```
Chat -> waits for the engine -> tokenized -> Accepted, AddRequest -> Delta ... -> Finished
   any time: Cancel -> Finished(abort)   engine ends -> Failed   client ends -> AbortRequest
```
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine import protocol
from engine.config import EngineConfig
from engine.protocol import (
    AbortRequest,
    Accepted,
    AddRequest,
    Cancel,
    Chat,
    Delta,
    EngineReady,
    Failed,
    Finished,
    FinishReason,
    GetPieces,
    GetSnapshot,
    GetStatus,
    GetUsage,
    Hello,
    ListSessions,
    ManageSession,
    Message,
    Rejected,
    Status,
    StepOutputs,
    StopDaemon,
    Stopping,
    TokenOutput,
)
from pagechat import __version__
from pagechat.daemon import pieces, sessions, text
from pagechat.daemon.doors import CLIENT_QUEUE, Doors
from pagechat.daemon.errors import RequestError
from pagechat.daemon.greeting import greet, refuse
from pagechat.daemon.misses import describe
from pagechat.daemon.pool_watch import PoolWatch, takeover
from pagechat.daemon.requests import Answer, Request, Requests
from pagechat.daemon.sessions import MAX_NAME
from pagechat.daemon.supervisor import Listeners, Patience, Supervisor

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_MOST_UNDELIVERED = 1_000
_TEXT_THREADS = 2
_LINGER_MS = 500


class Front:
    """Make it in a running loop, await `run`; `stop` ends it from anywhere."""

    def __init__(
        self,
        run_dir: Path,
        config: EngineConfig,
        *,
        engine_command: Sequence[str] | None = None,
        patience: Patience | None = None,
        on_change: Callable[[Front], None] = lambda front: None,
        client_queue: int = CLIENT_QUEUE,
    ) -> None:
        """`on_change` is called whenever the engine's state or load progress changed. Binds the sockets."""
        self.supervisor: Supervisor
        self.text: text.ModelText | None = None
        self.stop_asked = asyncio.Event()
        self._started = time.monotonic()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._on_change = on_change
        self._requests = Requests()
        self._text_path = ""
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="text")
        self._tasks: set[asyncio.Task[None]] = set()
        self._undelivered: dict[bytes, list[Message]] = {}
        """Last words for clients that do not read, tried again until they do or go."""
        self._doors = Doors(run_dir, self._context, self._on_frame, self._on_lost_client, client_queue)
        self.supervisor = Supervisor(
            run_dir,
            self._context,
            config,
            Listeners(
                outputs=self._on_outputs,
                report=self._on_report,
                prepare=self._prepare_engine,
                lost=self._on_lost_engine,
                changed=self._on_engine_change,
            ),
            command=engine_command,
            patience=patience,
        )
        self._pool = PoolWatch(self.supervisor.snapshot)

    async def run(self) -> None:
        """Until `stop_asked` is set; then answers get what they have so far and everything is closed."""
        supervising = asyncio.create_task(self.supervisor.run())
        asked = asyncio.create_task(self.stop_asked.wait())
        try:
            await asyncio.wait((supervising, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            self._end_requests()
            await self.supervisor.stop()
            await asyncio.wait((supervising,))
            self._pool.stop()
            for task in list(self._tasks):
                task.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._doors.close(_LINGER_MS)
            await asyncio.to_thread(self._context.term)
        supervising.result()

    async def drain(self, patience_s: float) -> None:
        """Begins nothing new and waits until what runs has ended, `patience_s` seconds at most."""
        self.supervisor.refuse()
        deadline = time.monotonic() + patience_s
        while len(self._requests) and time.monotonic() < deadline and not self.stop_asked.is_set():
            await asyncio.sleep(0.05)

    # -- from clients ----------------------------------------------------------------------------

    def _on_frame(self, client: bytes, frame: bytes) -> None:
        try:
            message = protocol.decode_client_message(frame)
        except protocol.ProtocolError as error:
            self._doors.send(client, refuse(frame, str(error)))
            return
        match message:
            case Hello():
                log.debug("client %.80r", message.client)
                self._doors.send(client, greet(message.version, self._doors.telemetry_endpoint))
            case Chat():
                self._on_chat(client, message)
            case Cancel():
                request = self._requests.of_client(client, message.request_id)
                if request is not None:
                    self._finish_all(request, "abort")
            case GetStatus():
                self._doors.send(client, self._status(message.ticket))
            case GetSnapshot():
                self._spawn(self._send_snapshot(client, message.ticket))
            case ManageSession() | ListSessions() | GetUsage():
                self._spawn(self._send_session_answer(client, message))
            case GetPieces():
                self._spawn(self._send_pieces(client, message))
            case StopDaemon():
                log.info("asked to stop by a client")
                self.stop_asked.set()

    def _on_chat(self, client: bytes, chat: Chat) -> None:
        problem = None
        if max(len(chat.request_id), len(chat.session)) > MAX_NAME:
            problem = f"request id and session may have {MAX_NAME} characters"
        elif self._requests.of_client(client, chat.request_id) is not None:
            problem = f"request id {chat.request_id!r} is in use"
        elif chat.beam is not None and chat.n > chat.beam.width:
            problem = f"a search of {chat.beam.width} beams has no {chat.n} answers"
        if problem is not None:
            self._doors.send(client, Failed(request_id=chat.request_id[:MAX_NAME], code="bad_request", message=problem))
            return
        request = Request(client=client, chat=chat)
        self._requests.add(request)
        request.preparing = self._spawn(self._prepare(request))

    async def _prepare(self, request: Request) -> None:
        try:
            await self.supervisor.ready()
            assert self.text is not None
            loop = asyncio.get_running_loop()
            prompt = await loop.run_in_executor(
                self._threads, self.text.prompt, request.chat.messages, request.chat.continue_final
            )
            await self.supervisor.ready()  # the engine may be another one by now
            self._start(request, prompt)
        except RequestError as error:
            self._fail(request, error)
        except Exception:
            log.exception("request of session %.80r failed", request.chat.session)
            self._fail(request, RequestError("internal", "the daemon failed on this request; its log says more"))

    def _start(self, request: Request, prompt: list[int]) -> None:
        chat = request.chat
        ready = self.supervisor.ready_engine
        assert ready is not None
        assert self.text is not None
        context = ready.model.max_context
        if len(prompt) >= context:
            raise RequestError(
                "too_long",
                f"the prompt takes {len(prompt):,} tokens and leaves no room for an answer: "
                f"the context holds {context:,} tokens",
            )
        sampling = self.text.sampling(chat.options, context - len(prompt))
        for answer in request.answers:
            answer.text = self.text.answer(chat.options)
        request.stop_token_ids = frozenset(sampling.stop_token_ids)
        request.prompt_tokens = len(prompt)
        accepted = Accepted(request_id=request.client_request_id, prompt_tokens=len(prompt))
        if self._doors.send(request.client, accepted):
            request.started = True
            self.supervisor.send(
                AddRequest(
                    request_id=request.engine_id,
                    session=chat.session,
                    prompt=tuple(prompt),
                    sampling=sampling,
                    n=chat.n,
                    beam=chat.beam,
                    keep=chat.keep,
                )
            )

    async def _send_session_answer(self, client: bytes, question: sessions.SessionQuestion) -> None:
        self._doors.send(client, await sessions.answer(question, self.supervisor.ask))

    async def _send_pieces(self, client: bytes, question: GetPieces) -> None:
        self._doors.send(client, await pieces.answer(question, self.supervisor.ready, lambda: self.text, self._threads))

    async def _send_snapshot(self, client: bytes, ticket: int) -> None:
        try:
            snapshot = await self.supervisor.snapshot()
        except RequestError as error:
            self._doors.send(client, Rejected(code=error.code, message=error.message, ticket=ticket))
        else:
            self._doors.send(client, msgspec.structs.replace(snapshot, ticket=ticket))

    # -- from the engine -------------------------------------------------------------------------

    async def _prepare_engine(self, ready: EngineReady) -> None:
        """Reads the text side of the model that was loaded."""
        if self.text is None or self._text_path != ready.model.path:
            loop = asyncio.get_running_loop()
            self.text = await loop.run_in_executor(
                self._threads, text.load, Path(ready.model.path), ready.model.vocab_size
            )
            self._text_path = ready.model.path
            if not self.text.has_template:
                log.warning("%s has no chat template: messages are written one a line", ready.model.name)

    def _on_engine_change(self) -> None:
        if self.supervisor.state == "ready":
            self._pool.start()
            # Mirrors of the engine before would take the new one's numbers, which start at 0, for old news.
            self._doors.publish(protocol.encode(takeover()))
        self._on_change(self)

    def _on_outputs(self, step: StepOutputs) -> None:
        for output in step.outputs:
            request = self._requests.of_engine(output.request_id)
            if request is None:
                continue  # ended here already: cancelled, stopped by a stop string, or its client has gone
            if output.finish_reason == "error":
                self._fail(request, RequestError(output.code or "internal", output.message))
            else:
                self._advance(request, output)

    def _advance(self, request: Request, output: TokenOutput) -> None:
        if output.miss is not None and self.text is not None and self.supervisor.ready_engine is not None:
            block_size = self.supervisor.ready_engine.pool.block_size
            request.miss = describe(output.miss, block_size, self.text.token_text)
            request.miss_position = output.miss.position
        answer, delta, reason = request.take(output)
        if delta and not self._send_delta(request, answer, delta):
            return
        if reason is not None:
            self._finish(request, answer, reason)

    def _on_report(self, frame: bytes) -> None:
        self._doors.publish(frame)
        try:
            self._pool.feed(protocol.decode_report(frame))
        except protocol.ProtocolError:
            log.exception("the engine published a report that cannot be read")

    def _on_lost_engine(self, words: str) -> None:
        if self.supervisor.state in ("loading", "restarting"):
            log.error("%s; starting another", words)
        self._pool.stop()
        for request in self._requests:
            if request.started:
                self._fail(
                    request,
                    RequestError("engine_died", f"{words}, after {request.completion_tokens} tokens of this answer"),
                )

    # -- endings ---------------------------------------------------------------------------------

    def _finish(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        """An answer ends well, or as the client wished. With its last answer the request is complete, and the
        engine is told when it does not know."""
        if request.open_answers == [answer]:
            self._release(request, abort=request.engine_works)
        self._say_finished(request, answer, reason)

    def _finish_all(self, request: Request, reason: FinishReason) -> None:
        self._release(request, abort=True)
        for answer in request.open_answers:
            self._say_finished(request, answer, reason)

    def _say_finished(self, request: Request, answer: Answer, reason: FinishReason) -> None:
        self._send_rest(request, answer)
        self._doors.send(request.client, request.finished(answer, reason))

    def _fail(self, request: Request, error: RequestError) -> None:
        self._release(request, abort=False)
        for answer in request.open_answers:
            self._send_rest(request, answer)
        failed = Failed(request_id=request.client_request_id, code=error.code, message=error.message)
        self._doors.send(request.client, failed)

    def _release(self, request: Request, *, abort: bool) -> None:
        self._requests.remove(request)
        if request.preparing is not None and request.preparing is not asyncio.current_task():
            request.preparing.cancel()
        if abort and request.started:
            self.supervisor.send(AbortRequest(request_id=request.engine_id))

    def _send_rest(self, request: Request, answer: Answer) -> None:
        """What was held back for a character or a stop string that will not be completed any more."""
        if answer.text is not None and (rest := answer.text.finish()):
            self._send_delta(request, answer, rest)

    def _send_delta(self, request: Request, answer: Answer, delta: str) -> bool:
        return self._doors.send(
            request.client,
            Delta(request_id=request.client_request_id, text=delta, tokens=answer.tokens, index=answer.index),
        )

    def _on_lost_client(self, client: bytes, message: Message, gone: bool) -> None:
        theirs = self._requests.all_of_client(client)
        for request in theirs:
            self._release(request, abort=True)
        if theirs:
            log.info(
                "a client %s; its requests (%d) were aborted", "has gone" if gone else "does not read", len(theirs)
            )
        if not gone:
            why = "the client did not read its answers, and the request was aborted"
            words: list[Message] = [message] if isinstance(message, Finished | Failed) else []
            words += [Failed(request_id=one.client_request_id, code="internal", message=why) for one in theirs]
            self._say_later(client, words)

    def _say_later(self, client: bytes, words: list[Message]) -> None:
        waiting = self._undelivered.get(client)
        if waiting is None and words:
            self._undelivered[client] = words
            self._spawn(self._deliver_late(client))
        elif waiting is not None and len(waiting) < _MOST_UNDELIVERED:
            waiting += words

    async def _deliver_late(self, client: bytes) -> None:
        words = self._undelivered[client]
        while words:
            outcome = self._doors.try_send(client, words[0])
            if outcome == "gone":
                break
            if outcome == "sent":
                words.pop(0)
            else:
                await asyncio.sleep(_RETRY_S)
        del self._undelivered[client]

    def _end_requests(self) -> None:
        """Every answer ends as it is; requests that have not begun fail."""
        clients = self._requests.clients()
        for request in self._requests:
            if request.started:
                self._finish_all(request, "abort")
            else:
                self._fail(request, RequestError("shutting_down", "the daemon is stopping"))
        for client in clients:
            self._doors.send(client, Stopping())

    def _status(self, ticket: int) -> Status:
        supervisor = self.supervisor
        ready = supervisor.ready_engine
        return Status(
            ticket=ticket,
            state=supervisor.state,
            pid=os.getpid(),
            daemon_version=__version__,
            uptime_s=time.monotonic() - self._started,
            model=ready.model if ready else None,
            device=ready.model.device if ready else None,
            load=supervisor.load,
            error=supervisor.error,
            engine_pid=supervisor.engine_pid,
            pool=self._pool.pool(),
            scheduler=self._pool.scheduler(),
            throughput=self._pool.throughput(),
            shadows=self._pool.shadows(),
        )

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
