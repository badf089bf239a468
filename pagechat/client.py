"""The one way into a running daemon, for the app, the commands and scripts alike.

`AsyncEngineClient` lives in an asyncio loop; `EngineClient` is the same for code without one. Both only talk:
they keep no history, start no daemon (pagechat/daemon/launch.py does) and import neither Textual nor torch.

    client = await AsyncEngineClient.connect()
    async for message in client.chat([ChatMessage(role="user", content="hello")]):
        match message:
            case Delta(text=text):
                print(text, end="")

Nothing here waits for ever: when the daemon goes, everything under way raises `DaemonGone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import zmq

from engine.protocol import (
    VERSION,
    BeamParams,
    BlockContent,
    ErrorCode,
    GetBlock,
    GetUsage,
    ListSessions,
    Message,
    ProtocolError,
    SessionAction,
    SessionInfo,
    SessionList,
    SessionReply,
    SetPriority,
    Snapshot,
    StepReport,
    UsageReport,
    decode_report,
    encode,
)
from pagechat import rundir
from pagechat.protocol import (
    MAX_CLIENT_FRAME,
    Accepted,
    Cancel,
    Chat,
    ChatMessage,
    ChatOptions,
    Delta,
    Failed,
    Finished,
    GetPieces,
    GetSnapshot,
    GetStatus,
    Hello,
    ManageSession,
    Pieces,
    Rejected,
    Status,
    StopDaemon,
    Welcome,
    decode_client_message,
    decode_front_message,
)
from pagechat.remote import FILE, Remote, remote
from pagechat.sockets import LoopSocket

ChatEvent = Accepted | Delta | Finished
T = TypeVar("T")

_TELEMETRY_BACKLOG = 2000
"""Reports kept for a reader that is behind; older ones are dropped, and the reader's mirror sees the gap."""

_STOP_PATIENCE_S = 45.0
"""A daemon that is asked to stop ends its engine within seconds."""


class ClientError(Exception):
    """Base of what goes wrong between a client and its daemon."""


class NoDaemon(ClientError):
    """No daemon answers in this run directory."""


class DaemonGone(ClientError):
    """The daemon vanished while it was in use. Deltas already received stay valid."""


class RequestFailed(ClientError):
    """The daemon refused the request, or could not finish it. `code` is one of ErrorCode."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AsyncEngineClient:
    """One connection to the daemon; any number of requests at a time. Make it with `connect`."""

    def __init__(self, run_dir: Path, remote: Remote | None = None) -> None:
        self.run_dir = run_dir
        self._remote = remote
        self.welcome: Welcome
        """Who answers: set by `connect`."""
        self._context = zmq.Context()
        self._streams: dict[str, asyncio.Queue[Message | ClientError]] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tickets = itertools.count(1)
        self._subscriptions: set[Telemetry] = set()
        self._gone: ClientError | None = None
        self._gone_event = asyncio.Event()
        self._greeting: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        if remote is not None:
            remote.secure(socket)
        self._link = LoopSocket(socket, self._on_message)
        self._link.on_disconnect(self._on_disconnect)

    @classmethod
    async def connect(
        cls, run_dir: Path | None = None, name: str = "script", timeout: float = 10.0
    ) -> AsyncEngineClient:
        """Greets the daemon of `run_dir` (None: this user's). Raises NoDaemon, RequestFailed (version_mismatch).

        A daemon that is just starting gets `timeout` seconds to answer; without one NoDaemon comes at once. A run
        directory may lead to another machine (pagechat/remote.py).
        """
        directory = rundir.run_dir(run_dir)
        elsewhere = remote(directory)
        if elsewhere is None and not rundir.daemon_lives(directory):
            raise NoDaemon(f"no daemon runs in {directory}")
        client = cls(directory, elsewhere)
        who = f"the daemon of {directory}"
        if elsewhere is not None:
            who = f"the daemon at {elsewhere.url} (does it still know the key in {directory / FILE}?)"
        try:
            client._link.socket.connect(elsewhere.url if elsewhere else rundir.endpoint(directory, "clients"))
            client._post(Hello(version=VERSION, client=name))
            async with asyncio.timeout(timeout):
                client.welcome = await asyncio.shield(client._greeting)
        except TimeoutError:
            await client.close()
            raise NoDaemon(f"{who} did not answer within {timeout:g} s") from None
        except DaemonGone:
            await client.close()
            raise NoDaemon(f"{who} ended the connection") from None
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> AsyncEngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        session: str | None = None,
        options: ChatOptions | None = None,
        request_id: str | None = None,
        keep: bool = False,
        n: int = 1,
        beam: BeamParams | None = None,
        continue_final: bool = False,
        priority: int = 0,
    ) -> AsyncGenerator[ChatEvent, None]:
        """Yields Accepted, then Delta..., then Finished. Raises RequestFailed, DaemonGone.

        `session` labels the request's blocks in telemetry (None: the request id). `request_id` must not be that
        of another request of this client. Leaving the iteration early cancels the request. `keep`: the session
        goes on, and its next turn should find this one's blocks in place. With `n` answers their Deltas come
        interleaved, told apart by `index`, and each has a Finished. `beam`: the n best of a beam search instead.
        `continue_final`: the last message is an answer to go on with; the text that comes is what follows it.
        Requests with a lower `priority` are served first, and those of one priority in the order they came.
        """
        request_id = request_id or uuid.uuid4().hex
        if request_id in self._streams:
            raise RequestFailed("bad_request", f"request id {request_id!r} is in use")
        chat = Chat(
            request_id=request_id,
            session=session or request_id,
            messages=list(messages),
            options=options or ChatOptions(),
            keep=keep,
            n=n,
            beam=beam,
            continue_final=continue_final,
            priority=priority,
        )
        frame = _checked(chat)
        stream = self._streams[request_id] = asyncio.Queue()
        unfinished, ended = n, False
        try:
            self._send(frame)
            while not ended:
                item = await stream.get()
                unfinished -= isinstance(item, Finished)
                ended = unfinished == 0 or isinstance(item, Failed | ClientError)
                if isinstance(item, ClientError):
                    raise item.with_traceback(None)
                if isinstance(item, Failed):
                    raise RequestFailed(item.code, item.message)
                if isinstance(item, ChatEvent):
                    yield item
        finally:
            del self._streams[request_id]
            if not ended and self._gone is None:
                self._post(Cancel(request_id=request_id))

    async def cancel(self, request_id: str) -> None:
        """Ends a request: its `chat` gets Finished with finish_reason "abort" and the text so far."""
        self._post(Cancel(request_id=request_id))

    async def set_priority(self, request_id: str, priority: int) -> None:
        """Changes the turn of a request that waits or runs; nothing happens when it has ended."""
        self._post(SetPriority(request_id=request_id, priority=priority))

    async def status(self) -> Status:
        """What the daemon and its engine do now; answered in every state of the engine."""
        ticket = next(self._tickets)
        return await self._ask(ticket, GetStatus(ticket=ticket))

    async def snapshot(self) -> Snapshot:
        """The block pool now. Waits while the engine loads; raises RequestFailed when it cannot be had."""
        ticket = next(self._tickets)
        return await self._ask(ticket, GetSnapshot(ticket=ticket))

    async def sessions(self) -> list[SessionInfo]:
        """The sessions the engine knows, least recently used first. Waits and raises as `snapshot`."""
        ticket = next(self._tickets)
        found: SessionList = await self._ask(ticket, ListSessions(ticket=ticket))
        return found.sessions

    async def manage_session(
        self, action: SessionAction, session: str, target: str = "", tokens: int | None = None
    ) -> SessionReply:
        """Fork a session (to `target`), pin, unpin or close it, save it to disk or restore it from there.

        A fork shares the blocks of the first `tokens` tokens, None: all of them. What the engine cannot do is said in
        the reply (`ok`). Waits and raises as `snapshot`.
        """
        ticket = next(self._tickets)
        question = ManageSession(ticket=ticket, action=action, session=session, target=target, tokens=tokens)
        reply: SessionReply = await self._ask(ticket, question)
        return reply

    async def pieces(self, messages: Sequence[ChatMessage], continue_final: bool = False) -> list[str]:
        """How the model reads these messages: the text of each token of the prompt. Raises RequestFailed."""
        ticket = next(self._tickets)
        question = GetPieces(ticket=ticket, messages=list(messages), continue_final=continue_final)
        found: Pieces = await self._ask(ticket, question)
        return found.pieces

    async def block(self, block: int) -> BlockContent:
        """By what name the prefix cache finds a block. Waits and raises as `snapshot`."""
        ticket = next(self._tickets)
        found: BlockContent = await self._ask(ticket, GetBlock(ticket=ticket, block=block))
        return found

    async def usage(self) -> UsageReport:
        """Who has used what since the engine started. Waits and raises as `snapshot`."""
        ticket = next(self._tickets)
        report: UsageReport = await self._ask(ticket, GetUsage(ticket=ticket))
        return report

    def telemetry(self) -> Telemetry:
        """Subscribes now; iterate it for the reports. Take a `snapshot` after this call to start a mirror."""
        self._check()
        subscription = Telemetry(self._context, self.welcome, self._remote, self._subscriptions)
        self._subscriptions.add(subscription)
        return subscription

    async def stop_daemon(self) -> None:
        """Asks the daemon to stop and returns when it has gone."""
        self._post(StopDaemon())
        async with asyncio.timeout(_STOP_PATIENCE_S):
            await self._gone_event.wait()
            while rundir.daemon_lives(self.run_dir):
                await asyncio.sleep(0.02)

    async def wait_gone(self) -> None:
        """Returns when the connection to the daemon has ended."""
        await self._gone_event.wait()

    async def close(self) -> None:
        """Ends the connection; the daemon aborts what still runs for it."""
        for request_id in self._streams if self._gone is None else ():
            with contextlib.suppress(ClientError):
                self._post(Cancel(request_id=request_id))
        self._end(DaemonGone("the client was closed"))
        self._link.close(linger_ms=200)
        # term() waits for the linger, so not in the loop's thread
        await asyncio.to_thread(self._context.term)

    # -- the connection ------------------------------------------------------------------------

    def _check(self) -> None:
        if self._gone is not None:
            raise self._gone.with_traceback(None)

    def _post(self, message: Message) -> None:
        self._send(_checked(message))

    def _send(self, frame: bytes) -> None:
        self._check()
        self._link.send(frame)

    async def _ask(self, ticket: int, question: Message) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = answer
        try:
            self._post(question)
            return await answer
        finally:
            del self._answers[ticket]

    def _on_message(self, frames: list[bytes]) -> None:
        try:
            message = decode_front_message(frames[0])
        except ProtocolError as error:
            self._end(DaemonGone(f"the daemon sent something that is no message of ours: {error}"))
            return
        match message:
            case Accepted() | Delta() | Finished() | Failed():
                if stream := self._streams.get(message.request_id):
                    stream.put_nowait(message)
            case Status() | Snapshot() | SessionReply() | SessionList() | UsageReport() | BlockContent() | Pieces():
                self._settle(message.ticket, message)
            case Welcome():
                if not self._greeting.done():
                    self._greeting.set_result(message)
            case Rejected(ticket=int() as ticket):
                self._settle(ticket, RequestFailed(message.code, message.message))
            case Rejected():
                self._fail_all(RequestFailed(message.code, message.message))

    def _settle(self, ticket: int, answer: Message | ClientError) -> None:
        waiting = self._answers.get(ticket)
        if waiting is not None and not waiting.done():
            if isinstance(answer, ClientError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

    def _fail_all(self, error: ClientError) -> None:
        for stream in self._streams.values():
            stream.put_nowait(error)
        for waiting in (self._greeting, *self._answers.values()):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # marks it as seen: nobody may be waiting for the greeting any more

    def _on_disconnect(self) -> None:
        self._link.drain()  # last words
        self._end(DaemonGone("the daemon has gone"))

    def _end(self, error: ClientError) -> None:
        if self._gone is None:
            self._gone = error
            self._fail_all(error)
            for subscription in list(self._subscriptions):
                subscription.end(error)
            self._gone_event.set()


class Telemetry(AsyncIterator[StepReport]):
    """The daemon's step reports from now on. Ends with DaemonGone; `close` it when done."""

    def __init__(
        self, context: zmq.Context[Any], welcome: Welcome, remote: Remote | None, registry: set[Telemetry]
    ) -> None:
        self._frames: deque[bytes] = deque(maxlen=_TELEMETRY_BACKLOG)
        self._arrived = asyncio.Event()
        self._error: ClientError | None = None
        self._registry = registry
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        endpoint = welcome.telemetry
        if remote is not None and welcome.telemetry_port is not None:
            remote.secure(socket)
            endpoint = remote.telemetry(welcome.telemetry_port)
        socket.connect(endpoint)
        self._link = LoopSocket(socket, self._on_frames)

    def _on_frames(self, frames: list[bytes]) -> None:
        self._frames.append(frames[0])
        self._arrived.set()

    async def __anext__(self) -> StepReport:
        while not self._frames:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._link.closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return decode_report(self._frames.popleft())

    def end(self, error: ClientError) -> None:
        """No more reports will come: those that arrived, then `error`."""
        self._error = error
        self.close()

    def close(self) -> None:
        self._registry.discard(self)
        self._link.close()
        self._arrived.set()


class EngineClient:
    """`AsyncEngineClient` for code without a loop: the same calls, blocking. A thread keeps the connection."""

    def __init__(self, run_dir: Path | None = None, name: str = "script", timeout: float = 10.0) -> None:
        """Connects. Raises NoDaemon, RequestFailed (version_mismatch)."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._call(AsyncEngineClient.connect(run_dir, name, timeout))
        except BaseException:
            self._end_loop()
            raise

    @classmethod
    def connect(cls, run_dir: Path | None = None, name: str = "script", timeout: float = 10.0) -> EngineClient:
        return cls(run_dir, name, timeout)

    @property
    def welcome(self) -> Welcome:
        return self._client.welcome

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        session: str | None = None,
        options: ChatOptions | None = None,
        request_id: str | None = None,
        keep: bool = False,
        n: int = 1,
        beam: BeamParams | None = None,
        continue_final: bool = False,
        priority: int = 0,
    ) -> Iterator[ChatEvent]:
        """As AsyncEngineClient.chat. Leaving the iteration early cancels the request."""
        events: queue.SimpleQueue[ChatEvent | BaseException | None] = queue.SimpleQueue()

        async def pump() -> None:
            stream = self._client.chat(
                messages,
                session=session,
                options=options,
                request_id=request_id,
                keep=keep,
                n=n,
                beam=beam,
                continue_final=continue_final,
                priority=priority,
            )
            try:
                async with contextlib.aclosing(stream):
                    async for event in stream:
                        events.put(event)
                events.put(None)
            except BaseException as error:
                events.put(error)

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (event := events.get()) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            pumping.cancel()

    def cancel(self, request_id: str) -> None:
        self._call(self._client.cancel(request_id))

    def set_priority(self, request_id: str, priority: int) -> None:
        self._call(self._client.set_priority(request_id, priority))

    def status(self) -> Status:
        return self._call(self._client.status())

    def snapshot(self) -> Snapshot:
        return self._call(self._client.snapshot())

    def sessions(self) -> list[SessionInfo]:
        return self._call(self._client.sessions())

    def manage_session(
        self, action: SessionAction, session: str, target: str = "", tokens: int | None = None
    ) -> SessionReply:
        return self._call(self._client.manage_session(action, session, target, tokens))

    def pieces(self, messages: Sequence[ChatMessage], continue_final: bool = False) -> list[str]:
        return self._call(self._client.pieces(messages, continue_final))

    def block(self, block: int) -> BlockContent:
        return self._call(self._client.block(block))

    def usage(self) -> UsageReport:
        return self._call(self._client.usage())

    def telemetry(self) -> Iterator[StepReport]:
        """Subscribes now; iterate the result for the reports. Ends with DaemonGone."""

        async def subscribe() -> Telemetry:
            return self._client.telemetry()

        subscription = self._call(subscribe())

        async def following() -> StepReport | None:
            return await anext(subscription, None)

        def reports() -> Iterator[StepReport]:
            try:
                while (report := self._call(following())) is not None:
                    yield report
            finally:
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(subscription.close)

        return reports()

    def stop_daemon(self) -> None:
        self._call(self._client.stop_daemon())

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._client.close())
            self._end_loop()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _checked(message: Message) -> bytes:
    """The frame, if the daemon can accept it: what it would reject is refused here, where the caller sees it."""
    try:
        frame = encode(message)
        decode_client_message(frame)
    except (ProtocolError, UnicodeEncodeError, TypeError, OverflowError, ValueError) as error:
        raise RequestFailed("bad_request", str(error)) from None
    if len(frame) > MAX_CLIENT_FRAME:
        raise RequestFailed("bad_request", f"the request takes {len(frame):,} bytes; {MAX_CLIENT_FRAME:,} is the limit")
    return frame
