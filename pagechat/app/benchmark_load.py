"""What the benchmark of the app puts on it: a client whose answers and telemetry are prepared beforehand."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence

from engine.core import EngineCore
from engine.execution.step_input import StepInput, StepResult
from engine.protocol import (
    AddRequest,
    BlockContent,
    ModelInfo,
    SamplingParams,
    SessionAction,
    SessionInfo,
    SessionReply,
    Snapshot,
    StepReport,
)
from pagechat.protocol import Accepted, ChatMessage, ChatOptions, Delta, Finished, Status, ThroughputStatus
from pagechat.store import Role

TABS = 4
TOKENS_PER_S = 50
NUM_BLOCKS = 65_536
SEQUENCES = 200
"""In the pool, each a token a step."""
REPORTS = 900
REPORT_EVERY_S = 0.1
ANSWER = (
    "A *page table* maps what a program sees to where it lies.\n\n- the program asks for a page\n"
    "- the table knows its frame\n\n```python\nframe = table[page]\n```\n\nAnd so on, page after page. "
)
WORDS = ANSWER.replace("\n", " \n").split(" ")


class _NoModel:
    """Gives every sequence the same token."""

    depth = 1
    compilations = 0

    def launch(self, step: StepInput) -> None:
        self._samples = len(step.sampled)

    def collect(self) -> StepResult:
        return StepResult(tokens=[7] * self._samples)


def _telemetry(num_blocks: int) -> tuple[Snapshot, list[StepReport]]:
    """A pool with long chats all over it, and the steps that follow."""
    core = EngineCore(
        _NoModel(), num_blocks=num_blocks, block_size=16, max_context=32_768, vocab_size=256, step_tokens=2**20
    )
    for number in range(SEQUENCES if num_blocks == NUM_BLOCKS else 0):
        prompt = tuple((number * 31 + place) % 256 for place in range(2_000 + 10 * number))
        sampling = SamplingParams(max_tokens=REPORTS + 100, temperature=0, seed=0)
        name = f"chat{number}"
        core.add(AddRequest(request_id=name, session=name, prompt=prompt, sampling=sampling))
    while core.scheduler.waiting:
        core.step()
    core.flush()
    snapshot = core.snapshot(1)
    reports = [report for _, report in (core.step() for _ in range(REPORTS)) if report is not None]
    return snapshot, reports


class LoadedReports:
    def __init__(self, reports: list[StepReport]) -> None:
        self._reports = reports

    async def __aiter__(self) -> AsyncIterator[StepReport]:
        for report in self._reports:
            await asyncio.sleep(REPORT_EVERY_S)
            yield report
        await asyncio.Event().wait()

    def close(self) -> None:
        pass


class LoadedClient:
    """Stands in for `AsyncEngineClient`."""

    def __init__(self, num_blocks: int) -> None:
        """A pool of less than `NUM_BLOCKS` is empty and stays so."""
        self._num_blocks = num_blocks
        self._prepared: tuple[Snapshot, list[StepReport]] | None = None

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
        name = request_id or ""
        yield Accepted(request_id=name, prompt_tokens=10)
        began = time.monotonic()
        for number, word in enumerate(itertools.cycle(WORDS), start=1):
            await asyncio.sleep(max(0.0, began + number / TOKENS_PER_S - time.monotonic()))
            yield Delta(request_id=name, text=f"{word} ", tokens=number)

    async def cancel(self, request_id: str) -> None:
        pass

    async def set_priority(self, request_id: str, priority: int) -> None:
        pass

    async def status(self) -> Status:
        model = ModelInfo(
            name="none",
            path="",
            architecture="",
            parameters=0,
            vocab_size=256,
            max_context=32_768,
            dtype="float32",
            device="cpu",
        )
        return Status(
            ticket=1,
            state="ready",
            pid=1,
            daemon_version="",
            uptime_s=0.0,
            model=model,
            device="cpu",
            load=None,
            error=None,
            engine_pid=1,
            pool=None,
            scheduler=None,
            throughput=ThroughputStatus(prompt_tokens_per_s=0, generated_tokens_per_s=0),
        )

    async def snapshot(self) -> Snapshot:
        return self._telemetry()[0]

    async def sessions(self) -> list[SessionInfo]:
        return []

    async def manage_session(
        self, action: SessionAction, session: str, target: str = "", tokens: int | None = None
    ) -> SessionReply:
        return SessionReply(ticket=1, ok=True, message="")

    async def block(self, block: int) -> BlockContent:
        return BlockContent(ticket=1, block=block, name=None)

    async def pieces(self, messages: Sequence[ChatMessage], continue_final: bool = False) -> list[str]:
        return []

    def telemetry(self) -> LoadedReports:
        return LoadedReports(self._telemetry()[1])

    async def stop_daemon(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def prepare(self) -> None:
        """Make what will be told; takes seconds for a large pool."""
        self._telemetry()

    def _telemetry(self) -> tuple[Snapshot, list[StepReport]]:
        if self._prepared is None:
            self._prepared = _telemetry(self._num_blocks)
        return self._prepared


def long_chat(tokens: int) -> list[tuple[Role, str]]:
    """Questions and answers of about so many tokens in all; a token is about a word here."""
    messages: list[tuple[Role, str]] = []
    while tokens > 0:
        answer = ANSWER * 10
        messages += [("user", "And what is a page table, in more detail?"), ("assistant", answer)]
        tokens -= len(answer.split()) + 10
    return messages
