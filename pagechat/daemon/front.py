"""The front: joins its parts and speaks with ZeroMQ clients.

answering.py turns requests into answers, doors.py and http/ bring them, supervisor.py keeps the engine running,
pool_watch.py follows its pool. One asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from engine.process.config import EngineConfig
from engine.protocol import GetBlock, GetUsage, ListSessions, Message, ProtocolError, SetPriority, decode_report, encode
from pagechat import __version__
from pagechat.daemon import pieces, sessions
from pagechat.daemon.answering import Answering
from pagechat.daemon.curve import CurveError, Gatekeeper
from pagechat.daemon.doors import CLIENT_QUEUE, Doors
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, Generation, for_template
from pagechat.daemon.greeting import greet, refuse
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.admission import Admission
from pagechat.daemon.http.door import HttpDoor
from pagechat.daemon.http.metrics import Metrics
from pagechat.daemon.http.service import Service
from pagechat.daemon.pool_watch import PoolWatch, takeover
from pagechat.daemon.supervisor import Listeners, Patience, Supervisor
from pagechat.protocol import (
    MAX_NAME,
    Cancel,
    Chat,
    Failed,
    Finished,
    GetPieces,
    GetSnapshot,
    GetStatus,
    Hello,
    ManageSession,
    Rejected,
    RequestStatus,
    Status,
    StopDaemon,
    decode_client_message,
)

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_MOST_UNDELIVERED = 1_000
_LINGER_MS = 500
_HTTP_STOP_S = 3.0
"""For the last words of HTTP answers; they are ready when it begins."""


@dataclass(frozen=True, slots=True)
class TcpPlan:
    """Where clients of other machines may come, and the file that knows them."""

    address: Address
    keys: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A ZeroMQ client, as the receiver of what it asked."""

    client: bytes
    """Routing id."""
    doors: Doors = field(compare=False)

    def send(self, message: Message) -> bool:
        return self.doors.send(self.client, message)


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
        http: HttpDoor | None = None,
        http_problem: str | None = None,
        tcp: TcpPlan | None = None,
    ) -> None:
        """`on_change` is called whenever the engine's state or load progress changed. Binds the sockets.

        `http_problem`: why there is no `http`, for the status. `tcp`: where clients of other machines may come.
        Raises AddressError, CurveError for that.
        """
        self.supervisor: Supervisor
        self.stop_asked = asyncio.Event()
        self._started = time.monotonic()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._on_change = on_change
        self.answering = Answering(lambda: self.supervisor, lambda: self._pool.newest_sequence())
        self._tasks: set[asyncio.Task[None]] = set()
        self._undelivered: dict[bytes, list[Message]] = {}
        """Last words for clients that do not read, tried again until they do or go."""
        self._doors = Doors(run_dir, self._context, self._on_frame, self._on_lost_client, client_queue)
        if tcp is not None:
            try:
                self._doors.open_tcp(tcp.address, Gatekeeper(self._context, tcp.keys))
            except (AddressError, CurveError):
                self._doors.close(0)
                self._context.term()
                raise
        self.supervisor = Supervisor(
            run_dir,
            self._context,
            config,
            Listeners(
                outputs=self.answering.on_outputs,
                report=self._on_report,
                prepare=self.answering.prepare_engine,
                lost=self._on_lost_engine,
                changed=self._on_engine_change,
            ),
            command=engine_command,
            patience=patience,
        )
        self._pool = PoolWatch(self.supervisor.snapshot)
        self._http, self._http_problem = http, http_problem

    async def run(self) -> None:
        """Until `stop_asked` is set; then answers get what they have so far and everything is closed."""
        self._spawn(asyncio.to_thread(sessions.sweep_unfinished))
        supervising = asyncio.create_task(self.supervisor.run())
        opening = asyncio.create_task(self._open_http())
        asked = asyncio.create_task(self.stop_asked.wait())
        try:
            await asyncio.wait((supervising, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            self.answering.end_all()
            await opening
            if self._http is not None:
                await self._http.stop(_HTTP_STOP_S)
            await self.supervisor.stop()
            await asyncio.wait((supervising,))
            self._pool.stop()
            for task in list(self._tasks):
                task.cancel()
            self.answering.close()
            self._doors.close(_LINGER_MS)
            await asyncio.to_thread(self._context.term)
        supervising.result()

    async def _open_http(self) -> None:
        if self._http is not None:
            metrics = Metrics(self._http.plan.metrics_prefix)
            service = Service(
                answering=self.answering,
                supervisor=self.supervisor,
                status=lambda: self._status(0),
                admission=Admission(self._http.plan.limits, metrics.refused),
                metrics=metrics,
                block_map=self._pool.block_map,
            )
            self.answering.observer = metrics
            try:
                await self._http.serve(service)
            except Exception:  # ZeroMQ clients are served all the same
                log.exception("HTTP cannot be served")
                self._http_problem = "it cannot be served; the daemon's log says why"
                await self._http.stop(0)
                self._http = None

    @property
    def tcp(self) -> Address | None:
        """Where clients of other machines find it."""
        return self._doors.tcp

    async def drain(self, patience_s: float) -> None:
        """Begins nothing new and waits until what runs has ended, `patience_s` seconds at most."""
        self.supervisor.refuse()
        deadline = time.monotonic() + patience_s
        while len(self.answering.requests) and time.monotonic() < deadline and not self.stop_asked.is_set():
            await asyncio.sleep(0.05)

    # -- from clients ----------------------------------------------------------------------------

    def _on_frame(self, client: bytes, frame: bytes) -> None:
        try:
            message = decode_client_message(frame)
        except ProtocolError as error:
            self._doors.send(client, refuse(frame, error))
            return
        match message:
            case Hello():
                log.debug("client %.80r", message.client)
                self._doors.send(
                    client, greet(message.version, self._doors.telemetry_endpoint, self._doors.telemetry_port)
                )
            case Chat():
                self._on_chat(client, message)
            case SetPriority():
                self.answering.set_priority(Peer(client, self._doors), message.request_id, message.priority)
            case Cancel():
                self.answering.cancel(Peer(client, self._doors), message.request_id)
            case GetStatus():
                self._doors.send(client, self._status(message.ticket))
            case GetSnapshot():
                self._spawn(self._send_snapshot(client, message.ticket))
            case ManageSession() | ListSessions() | GetUsage() | GetBlock():
                self._spawn(self._send_session_answer(client, message))
            case GetPieces():
                self._spawn(self._send_pieces(client, message))
            case StopDaemon():
                log.info("asked to stop by a client")
                self.stop_asked.set()

    def _on_chat(self, client: bytes, chat: Chat) -> None:
        generation = Generation(
            request_id=chat.request_id,
            session=chat.session,
            prompt=Conversation(
                messages=[for_template(one) for one in chat.messages],
                continue_final=chat.continue_final,
            ),
            options=chat.options,
            keep=chat.keep,
            n=chat.n,
            beam=chat.beam,
            priority=chat.priority,
        )
        try:
            self.answering.submit(Peer(client, self._doors), generation)
        except RequestError as error:
            name = chat.request_id[:MAX_NAME]
            self._doors.send(client, Failed(request_id=name, code=error.code, message=error.message, param=error.param))

    async def _send_session_answer(self, client: bytes, question: sessions.SessionQuestion) -> None:
        self._doors.send(client, await sessions.answer(question, self.supervisor.ask))

    async def _send_pieces(self, client: bytes, question: GetPieces) -> None:
        answering = self.answering
        answer = await pieces.answer(question, self.supervisor.ready, lambda: answering.text, answering.heavy)
        self._doors.send(client, answer)

    async def _send_snapshot(self, client: bytes, ticket: int) -> None:
        try:
            snapshot = await self.supervisor.snapshot()
        except RequestError as error:
            self._doors.send(client, Rejected(code=error.code, message=error.message, ticket=ticket))
        else:
            self._doors.send(client, msgspec.structs.replace(snapshot, ticket=ticket))

    # -- from the engine -------------------------------------------------------------------------

    def _on_engine_change(self) -> None:
        if self.supervisor.state == "ready":
            self._pool.start()
            # Mirrors of the engine before would take the new one's numbers, which start at 0, for old news.
            self._doors.publish(encode(takeover()))
        self._on_change(self)

    def _on_report(self, frame: bytes) -> None:
        self._doors.publish(frame)
        try:
            report = decode_report(frame)
        except ProtocolError:
            log.exception("the engine published a report that cannot be read")
            return
        self._pool.feed(report)
        self.answering.observer.step(report)

    def _on_lost_engine(self, words: str) -> None:
        if self.supervisor.state in ("loading", "restarting"):
            log.error("%s; starting another in %.3g s", words, self.supervisor.next_try_s or 0)
        self._spawn(asyncio.to_thread(sessions.sweep_unfinished))
        self._pool.stop()
        self.answering.on_lost_engine(words)

    # -- clients that are lost -------------------------------------------------------------------

    def _on_lost_client(self, client: bytes, message: Message, gone: bool) -> None:
        theirs = self.answering.drop(Peer(client, self._doors))
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
            requests=self._requests(),
            shadows=self._pool.shadows(),
            http=self._http.url if self._http else None,
            http_problem=self._http_problem,
            state_s=supervisor.state_s,
            next_try_s=supervisor.next_try_s,
        )

    def _requests(self) -> list[RequestStatus]:
        newest, now = self._pool.newest_sequences(), time.monotonic()
        return [
            RequestStatus(
                session=request.wants.session,
                tenant=request.wants.tenant,
                state="running" if newest.get(request.wants.session, -1) > request.before else "waiting",
                priority=request.priority,
                prompt_tokens=len(request.prompt),
                generated_tokens=request.completion_tokens,
                age_s=now - request.received,
            )
            for request in sorted(self.answering.requests, key=lambda request: request.priority)
        ]

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
