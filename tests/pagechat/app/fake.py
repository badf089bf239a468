"""A daemon without a model: the real engine core and real telemetry, driven by scripted answers.

A test says what the "model" answers (`script`), how fast, and when the daemon dies; everything else (blocks,
events, snapshots, abort, prefix hits) is the engine's own code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from engine.core import EngineCore
from engine.protocol import (
    AddRequest,
    BlockContent,
    GetBlock,
    LoadProgress,
    ModelInfo,
    SamplingParams,
    SessionAction,
    SessionInfo,
    SessionReply,
    Snapshot,
    StepReport,
)
from engine.sessions.residents import UnknownSession
from pagechat.client import DaemonGone, RequestFailed
from pagechat.protocol import (
    Accepted,
    ChatMessage,
    ChatOptions,
    Delta,
    Finished,
    SchedulerStatus,
    Status,
    ThroughputStatus,
    Timing,
    Usage,
)
from tests.engine.fakes import ContentExecutor

MODEL = ModelInfo(
    name="smollm2",
    path="/nowhere",
    architecture="LlamaForCausalLM",
    parameters=134_515_008,
    vocab_size=256,
    max_context=2048,
    dtype="float32",
    device="cpu",
)


@dataclass
class FakeReports:
    daemon: FakeDaemon
    queue: asyncio.Queue[StepReport | Exception] = field(default_factory=asyncio.Queue)

    async def __aiter__(self) -> AsyncIterator[StepReport]:
        while True:
            item = await self.queue.get()
            if isinstance(item, Exception):
                raise item
            yield item

    def close(self) -> None:
        self.daemon.subscribers.discard(self.queue)


@dataclass
class _Run:
    request_id: str
    answers: list[list[str]]
    """The pieces of each answer."""
    queue: asyncio.Queue[Accepted | Delta | Finished | Exception]
    started: float
    session: str
    prompt_tokens: int
    priority: int = 0
    ttft: float | None = None
    said: dict[int, list[str]] = field(default_factory=dict)
    """What each answer has said."""
    ended: set[int] = field(default_factory=set)


class FakeDaemon:
    """What clients connect to. `step_s` is the pause between two steps; 0 waits for `go(steps)`."""

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        block_size: int = 16,
        step_s: float = 0.005,
        keeps: bool = False,
        script: Callable[[str], Sequence[str]] = lambda prompt: [f"echo {prompt}"],
    ) -> None:
        self.keeps = keeps
        """Sessions keep their blocks between turns, as those of the real app do."""
        self.num_blocks, self.block_size, self.step_s, self.script = num_blocks, block_size, step_s, script
        self.state = "ready"
        self.model = MODEL
        self.load: LoadProgress | None = None
        self.error: str | None = None
        self.dead: str | None = None
        self.respawns = False
        """True: connecting to it when it is dead starts a new one."""
        self.engine_pid = 1000
        self.asked: list[list[ChatMessage]] = []
        self.kept: list[str | None] = []
        """Sessions of the requests that asked to keep their blocks."""
        self.options: list[ChatOptions | None] = []
        """Of each request."""
        self.continued: list[bool] = []
        self.subscribers: set[asyncio.Queue[StepReport | Exception]] = set()
        self.runs: dict[str, _Run] = {}
        self._allowed = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.new_engine()

    def new_engine(self) -> None:
        self.core = EngineCore(
            ContentExecutor(self.num_blocks, self.block_size),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_context=MODEL.max_context,
            vocab_size=MODEL.vocab_size,
        )
        self.engine_pid += 1

    async def connect(self) -> FakeClient:
        if self.dead and self.respawns:
            self.dead = self.error = None
            self.state = "ready"
            self.new_engine()
        if self.dead:
            raise DaemonGone(self.dead)
        return FakeClient(self)

    def go(self, steps: int = 1) -> None:
        """Allow that many more steps."""
        self._allowed += steps
        self._wake.set()

    def die(self, reason: str = "the daemon has gone") -> None:
        self.dead = reason
        for run in self.runs.values():
            run.queue.put_nowait(DaemonGone(reason))
        self.runs.clear()
        for queue in self.subscribers:
            queue.put_nowait(DaemonGone(reason))

    def start(self, run: _Run, prompt: bytes) -> None:
        self.core.add(
            AddRequest(
                request_id=run.request_id,
                session=run.session,
                prompt=tuple(prompt),
                sampling=SamplingParams(max_tokens=max(map(len, run.answers)), temperature=0, seed=0),
                keep=self.keeps,
                n=len(run.answers),
                priority=run.priority,
            )
        )
        self.runs[run.request_id] = run
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop())

    def abort(self, request_id: str) -> None:
        run = self.runs.get(request_id)
        if run is not None:
            self.core.abort(request_id)
            self._publish(self.core.flush())
            for index in range(len(run.answers)):
                self._finish(run, "abort", 0, index)

    async def _loop(self) -> None:
        while self.runs:
            if self.step_s:
                await asyncio.sleep(self.step_s)
            else:
                while not self._allowed:
                    self._wake.clear()
                    await self._wake.wait()
                self._allowed -= 1
                await asyncio.sleep(0)
            outputs, report = self.core.step()
            self._publish(report)
            for output in outputs:
                run = self.runs.get(output.request_id)
                if run is None:
                    continue
                if output.finish_reason == "error":
                    del self.runs[run.request_id]
                    run.queue.put_nowait(RequestFailed(output.code or "internal", output.message))
                    continue
                run.ttft = run.ttft or time.monotonic() - run.started
                said, pieces = run.said.setdefault(output.index, []), run.answers[output.index]
                if len(said) < len(pieces):
                    said.append(pieces[len(said)])
                    run.queue.put_nowait(
                        Delta(request_id=run.request_id, text=said[-1], tokens=len(said), index=output.index)
                    )
                if output.finish_reason:
                    self._finish(run, "stop", output.cached_tokens, output.index)
            if not self.core.has_work and self.runs:
                return

    def _finish(self, run: _Run, reason: str, cached: int, index: int) -> None:
        if index in run.ended:
            return
        run.ended.add(index)
        if len(run.ended) == len(run.answers):
            self.runs.pop(run.request_id, None)
        said = run.said.get(index, [])
        usage = Usage(prompt_tokens=run.prompt_tokens, cached_tokens=cached, completion_tokens=len(said))
        timing = Timing(ttft_s=run.ttft, total_s=time.monotonic() - run.started)
        run.queue.put_nowait(
            Finished(
                request_id=run.request_id,
                text="".join(said),
                finish_reason=reason,
                usage=usage,
                timing=timing,
                index=index,
            )
        )

    def _publish(self, report: StepReport | None) -> None:
        if report is not None:
            for queue in self.subscribers:
                queue.put_nowait(report)


class FakeClient:
    """The calls of `AsyncEngineClient` that the app makes."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        session: str | None = None,
        options: ChatOptions | None = None,
        request_id: str | None = None,
        keep: bool = False,
        n: int = 1,
        continue_final: bool = False,
        priority: int = 0,
    ) -> AsyncIterator[Accepted | Delta | Finished]:
        self._check()
        self.daemon.asked.append(list(messages))
        self.daemon.options.append(options)
        self.daemon.continued.append(continue_final)
        if keep:
            self.daemon.kept.append(session)
        prompt = "\n".join(message.content for message in messages).encode()
        run = _Run(
            request_id or "request",
            [list(self.daemon.script(messages[-1].content)) for _ in range(n)],
            asyncio.Queue(),
            time.monotonic(),
            session or "",
            len(prompt),
            priority,
        )
        self.daemon.start(run, prompt)
        yield Accepted(request_id=run.request_id, prompt_tokens=len(prompt))
        unfinished = n
        try:
            while unfinished:
                item = await run.queue.get()
                if isinstance(item, Exception):
                    raise item
                unfinished -= isinstance(item, Finished)
                yield item
        finally:
            self.daemon.abort(run.request_id)

    async def cancel(self, request_id: str) -> None:
        self._check()
        self.daemon.abort(request_id)

    async def set_priority(self, request_id: str, priority: int) -> None:
        self._check()
        self.daemon.core.set_priority(request_id, priority)

    async def status(self) -> Status:
        self._check()
        daemon = self.daemon
        return Status(
            ticket=1,
            state=daemon.state,
            pid=1,
            daemon_version="0",
            uptime_s=1.0,
            model=daemon.model if daemon.state == "ready" else None,
            device="cpu",
            load=daemon.load,
            error=daemon.error,
            engine_pid=daemon.engine_pid,
            pool=None,
            scheduler=SchedulerStatus(running=0, waiting=0, preemptions=0),
            throughput=ThroughputStatus(prompt_tokens_per_s=0, generated_tokens_per_s=0),
        )

    async def snapshot(self) -> Snapshot:
        self._check()
        self.daemon._publish(self.daemon.core.flush())
        return self.daemon.core.snapshot(1)

    async def sessions(self) -> list[SessionInfo]:
        self._check()
        return self.daemon.core.live_sessions.infos()

    async def manage_session(
        self, action: SessionAction, session: str, target: str = "", tokens: int | None = None
    ) -> SessionReply:
        self._check()
        core, shared = self.daemon.core, 0
        try:
            if action == "fork":
                shared = core.live_sessions.fork(session, target, tokens)
            elif action == "close":
                core.sessions.close(session)
            else:
                core.sessions.pin(session, action == "pin")
        except UnknownSession:
            return SessionReply(ticket=1, ok=False, message=f"no session {session!r} here")
        self.daemon._publish(core.flush())
        return SessionReply(ticket=1, ok=action != "fork" or shared > 0, message=action, tokens=shared)

    async def block(self, block: int) -> BlockContent:
        self._check()
        return self.daemon.core.block_content(GetBlock(ticket=1, block=block))

    async def pieces(self, messages: Sequence[ChatMessage], continue_final: bool = False) -> list[str]:
        self._check()
        return list("\n".join(message.content for message in messages))

    def telemetry(self) -> FakeReports:
        self._check()
        reports = FakeReports(self.daemon)
        self.daemon.subscribers.add(reports.queue)
        return reports

    async def stop_daemon(self) -> None:
        self.daemon.die("stopped")

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.daemon.dead:
            raise DaemonGone(self.daemon.dead)
