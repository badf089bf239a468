"""The executor on an NVIDIA GPU: a step is launched, and its tokens are collected later.

Between the two the host is free: the tokens of one step feed the next one on the device, so that a step may be
launched before the one before it is collected. What needs the host between two steps (beams, penalties, grammars,
log probabilities) goes the plain way of `engine.runner`, one step at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.execution.cuda.graphs import Batch, DecodeGraphs
from engine.execution.cuda.tables import DeviceTables
from engine.execution.runner import Runner
from engine.protocol import SamplingParams
from engine.requests.sequence import Sequence, Span, Step, StepResult
from kernels.triton.draw import DeviceRows, draw
from kernels.triton.plan import decode_runs, program_target, upload_plan
from kernels.triton.sharing import Sharing, find_sharing
from kernels.triton.work import Runs, Work, plan_work

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel


@dataclass(slots=True)
class _Launched:
    """A step whose tokens are on their way to the host."""

    tokens: Tensor
    """Pinned."""
    there: torch.cuda.Event
    order: NDArray[np.intp] | None
    """Place among the step's spans of each token; None: their own order."""
    swap_s: float


_STEPS_PLANNED = 32
"""Steps that a decoding batch is planned for ahead."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """A batch that decodes, planned for some steps."""

    rows: NDArray[np.int32]
    changes: int
    limits: NDArray[np.int32]
    """Tokens up to which its sequences may grow."""
    order: NDArray[np.intp]
    """Place among the spans of each of the batch's entries."""
    batch: Batch

    def covers(self, rows: NDArray[np.int32], changes: int, lengths: NDArray[np.int32]) -> bool:
        """Whether a step of these sequences, of these lengths, is one it was planned for."""
        same = changes == self.changes and np.array_equal(rows, self.rows)
        return same and bool((lengths <= self.limits).all())


class CudaRunner(Runner):
    """See `Runner`; `max_running` sequences at most are in a step."""

    depth = 2
    """Steps that may be in flight."""

    def __init__(
        self, model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0, max_running: int = 512
    ) -> None:
        super().__init__(model, num_blocks, block_size, host_slots)
        width = min(num_blocks, -(-model.info.max_context // block_size)) + 1
        self._tables = DeviceTables(2 * max_running, width, block_size, model.device)
        self._graphs = DecodeGraphs(model, self.kv, self._tables, block_size, max_running)
        self._in_flight: deque[_Launched | StepResult] = deque()
        self._decoding: _Decoding | None = None

    def warm_up(self) -> None:
        """Compile what steps of every kind need, and capture the decode graphs."""
        super().warm_up()
        if self.num_blocks > 1:
            self._compile_mixed()
        with torch.inference_mode():
            for size in reversed(self._graphs.sizes):
                self._graphs.capture(size, "whole")
                self._graphs.capture(size, "split")
        torch.cuda.synchronize()

    def _compile_mixed(self) -> None:
        """Two prompts, one of them long enough for the wide kernel, then both and their decoding."""
        count = max(2, min(300, self.num_blocks * self.block_size // 2 - self.block_size))
        blocks = -(-count // self.block_size)
        sequences = [
            Sequence(
                id=-1 - number,
                request_id="",
                session="",
                tokens=[0] * count,
                prompt_len=count,
                sampling=SamplingParams(max_tokens=1, temperature=number, seed=0),
                table=[1 + number * blocks + i for i in range(blocks)],
            )
            for number in range(2)
        ]
        self.execute(Step(0, [Span(sequence, 0, count - 1) for sequence in sequences]))
        self.execute(Step(0, [Span(sequence, count - 1, 1) for sequence in sequences]))
        for pool in self.kv:
            pool[1 : 1 + 2 * blocks].zero_()

    def execute(self, step: Step) -> StepResult:
        self.launch(step)
        return self.collect()

    @torch.inference_mode()
    def launch(self, step: Step) -> None:
        """Start a step. Raises InconsistentStep before anything is written."""
        if not all(span.sequence.runs_ahead for span in step.spans):
            for span in step.spans:
                self._tables.forget(span.sequence)
            self._in_flight.append(super().execute(step))
            return
        self._check_writes(step)
        swap_s = self._move(step)
        if all(span.count == 1 and span.samples and not span.forks for span in step.spans):
            out, order = self._launch_decode(step.spans)
        else:
            out, order = self._launch_mixed(step.spans), None
        tokens = torch.empty(len(out), dtype=torch.int32, pin_memory=True)
        tokens.copy_(out, non_blocking=True)
        there = torch.cuda.Event()
        there.record()
        self._in_flight.append(_Launched(tokens, there, order, swap_s))

    def collect(self) -> StepResult:
        """The tokens of the oldest step in flight; waits for them."""
        launched = self._in_flight.popleft()
        if isinstance(launched, StepResult):
            return launched
        launched.there.synchronize()
        tokens = launched.tokens.numpy()
        if launched.order is not None:
            in_order = np.empty_like(tokens)
            in_order[launched.order] = tokens
            tokens = in_order
        return StepResult(tokens.tolist(), swap_s=launched.swap_s)

    # -- one token of each sequence ------------------------------------------------------------------

    def _launch_decode(self, spans: list[Span]) -> tuple[Tensor, NDArray[np.intp]]:
        placed = np.array(self._tables.place_newest(spans), dtype=np.int32)
        starts = np.array([span.start for span in spans], dtype=np.int32)
        newest = np.array([span.sequence.tokens[-1] for span in spans], dtype=np.int32)
        # By row: in whatever order they are scheduled, the same sequences are the same batch.
        by_row = np.argsort(placed)
        rows, lengths = placed[by_row], starts[by_row] + 1
        decoding = self._decoding
        if decoding is None or not decoding.covers(rows, self._tables.changes, lengths):
            decoding = self._decoding = self._plan_batch([spans[i] for i in by_row], rows, lengths)
        order = by_row[decoding.order]
        self._graphs.launch(decoding.batch, _ids(newest[order], placed[order]), starts[order])
        return self._graphs.out[: len(spans)], order

    def _plan_batch(self, spans: list[Span], rows: NDArray[np.int32], lengths: NDArray[np.int32]) -> _Decoding:
        """What is read how, now and in the steps to come: sequences grow, and all else stays."""
        full = (lengths - 1) // self.block_size
        sharing = find_sharing(self._tables.host, rows, full, self.block_size)
        limits = lengths + _STEPS_PLANNED
        work = self._plan(decode_runs(sharing, rows[sharing.order], limits[sharing.order]), len(spans))
        kind = self._graphs.kind_of(work, len(spans))
        if kind is None:  # more of a tree than the graphs have room for
            sharing = Sharing(np.arange(len(spans)), [], np.zeros(len(spans), dtype=np.int32), 0)
            work = self._plan(decode_runs(sharing, rows, limits), len(spans))
            kind = self._graphs.kind_of(work, len(spans))
            assert kind is not None, "a batch that shares nothing fits its graph"
        temperatures, filters = _sampling([spans[place].sequence for place in sharing.order])
        batch = Batch(rows[sharing.order], temperatures, filters, work, kind)
        return _Decoding(rows, self._tables.changes, limits, sharing.order, batch)

    def _plan(self, runs: Runs, tokens: int) -> Work:
        config = self.model.config
        return plan_work(
            runs,
            tokens,
            group=config.heads // config.kv_heads,
            kv_heads=config.kv_heads,
            programs=program_target(self.model.device),
        )

    # -- chunks of prompts, with or without decoding sequences ---------------------------------------

    def _launch_mixed(self, spans: list[Span]) -> Tensor:
        """Tokens of the spans that sample, each followed by its forks'."""
        config, device = self.model.config, self.model.device
        rows = np.array([self._tables.place(s.sequence, s.start, s.start + s.count) for s in spans], dtype=np.int32)
        counts = np.array([span.count for span in spans], dtype=np.int32)
        starts = np.array([span.start for span in spans], dtype=np.int32)
        firsts = (np.cumsum(counts) - counts).astype(np.int32)
        of_token = np.repeat(np.arange(len(spans)), counts)
        positions = np.arange(counts.sum(), dtype=np.int32) - firsts[of_token] + starts[of_token]
        known: list[int] = []
        for span in spans:
            known += span.sequence.tokens[span.start : span.start + span.count]
        work = self._plan(
            Runs(firsts, counts, rows, np.zeros_like(starts), starts + counts, counts > 1), len(positions)
        )
        self._graphs.patch(self._tables.take_patches())
        plan = upload_plan(
            positions,
            rows[of_token],
            self._tables.device,
            work,
            config.heads,
            config.kv_heads,
            config.head_dim,
            self.block_size,
            shared=False,
        )
        ids = torch.from_numpy(_ids(np.array(known, dtype=np.int32), rows[of_token]))
        ids = ids.pin_memory().to(device, non_blocking=True)
        hidden = self.model.decoder.forward(self._graphs.embed(ids), self.kv, plan)
        samplers = [
            (s, sequence) for s, span in enumerate(spans) if span.samples for sequence in (span.sequence, *span.forks)
        ]
        out = torch.empty(len(samplers), dtype=torch.int32, device=device)
        if samplers:
            last = firsts + counts - 1
            logits = self._logits(hidden, [int(last[s]) for s, _ in samplers])
            sequences = [sequence for _, sequence in samplers]
            table_rows = [self._tables.row_of(sequence) for sequence in sequences]
            draw(
                logits, self._device_rows(sequences), out, self._graphs.newest, _upload(table_rows, torch.int32, device)
            )
        return out

    def _device_rows(self, sequences: Row[Sequence]) -> DeviceRows:
        temperatures, filters = _sampling(sequences)
        top_k, top_p, min_p, seeds = zip(*(filters or [(0, 1.0, 0.0, 0)] * len(sequences)), strict=True)
        columns = (
            (temperatures, torch.float32),
            (top_k, torch.int32),
            (top_p, torch.float32),
            (min_p, torch.float32),
            (seeds, torch.int64),
            ([len(sequence.tokens) for sequence in sequences], torch.int32),
        )
        return DeviceRows(*(_upload(column, dtype, self.model.device) for column, dtype in columns))

    # -- inside ----------------------------------------------------------------------------------------

    def _move(self, step: Step) -> float:
        if not (step.swap_out or step.swap_in):
            return super()._move(step)
        torch.cuda.synchronize()
        started = time.perf_counter()
        super()._move(step)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    def _check_writes(self, step: Step) -> None:
        """As `_check`, of what this step writes: what it reads was checked when its table was."""
        self._check_moves(step)
        size = self.block_size
        try:
            blocks = [span.sequence.table[span.start // size] for span in step.spans if span.count == 1]
        except IndexError:
            self._check(step)  # says which
            raise
        for span in step.spans:
            if span.count != 1:
                blocks += self._check_span(span)
        if len(set(blocks)) < len(blocks) or not 1 <= min(blocks) <= max(blocks) <= self.num_blocks:
            self._check(step)


def _ids(tokens: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Token ids; one that is not known yet is named by its sequence's row."""
    return np.where(tokens >= 0, tokens, -rows - 1)


def _sampling(sequences: Row[Sequence]) -> tuple[list[float], list[tuple[int, float, float, int]] | None]:
    temperatures = [sequence.sampling.temperature for sequence in sequences]
    if not any(temperatures):
        return temperatures, None
    params = (sequence.sampling for sequence in sequences)
    return temperatures, [(p.top_k, p.top_p, p.min_p, p.seed) for p in params]


def _upload(values: Row[float], dtype: torch.dtype, device: str) -> Tensor:
    return torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)
