"""The runner on an NVIDIA GPU: a step is launched, and what it brings is collected later.

Between the two the host is free: the tokens of one step feed the next one on the device, so that a step may be
launched before the one before it is collected. A step in which every sequence decodes is one CUDA graph; what single
samples want beside it (penalties, masks, log probabilities, beams) is launched behind the graph, for their rows alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.cuda.graphs import Batch, DecodeGraphs
from engine.execution.cuda.inputs import upload
from engine.execution.cuda.requested import Requested, Sources, device_rows
from engine.execution.cuda.tables import DeviceTables
from engine.execution.runner import Runner, prompt_step, tell_nobody
from engine.execution.step_input import SAMPLING, Ints, LogitsEdit, PromptScores, StepInput, StepResult
from kernels.triton.compilations import compilations
from kernels.triton.draw import draw
from kernels.triton.plan import decode_runs, program_target, upload_plan
from kernels.triton.sharing import Sharing, find_sharing
from kernels.triton.work import Runs, Work, plan_work

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel

_STEPS_PLANNED = 32
"""Steps that a decoding batch is planned for ahead."""
_BATCHES_KEPT = 4
"""Plans that are kept. Batches that take turns (some sequences sit out every other step) need one each."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """A batch that decodes, planned for some steps."""

    changes: int
    limits: Ints
    """Tokens up to which its sequences may grow."""
    order: NDArray[np.intp]
    """Place among the rows, in ascending order, of each of the batch's entries."""
    batch: Batch


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose results are on their way to the host."""

    requested: Requested
    there: torch.cuda.Event
    swap_s: float


class CudaRunner(Runner):
    """See `Runner`; `max_running` sequences at most are in a step."""

    depth = 2

    def __init__(
        self, model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0, max_running: int = 256
    ) -> None:
        super().__init__(model, num_blocks, block_size, host_slots)
        width = min(num_blocks, -(-model.info.max_context // block_size)) + 1
        self._max_running = max_running
        self._device_tables = DeviceTables(2 * max_running, width, model.device)
        self._graphs = DecodeGraphs(model, self.kv, self._device_tables, block_size, max_running)
        self._in_flight: deque[_Launched] = deque()
        self._batches: OrderedDict[bytes, _Decoding] = OrderedDict()
        self._captured = 0

    @property
    def compilations(self) -> int:
        """Kernels compiled and graphs captured since `warm_up`."""
        return compilations.since_mark + self._graphs.captured - self._captured

    def warm_up(self, tell: Callable[[str, int, int], None] = tell_nobody) -> None:
        """Capture the decode graphs, and run each kind of step once. The kernels are compiled: loading did that."""
        compilations.watch()
        with torch.inference_mode():
            self._graphs.capture_all(tell)
        for step in self._steps_of_every_kind():
            self.execute(step)
        torch.cuda.synchronize()
        for pool in self.kv:
            pool[1:].zero_()
        compilations.mark()
        self._captured = self._graphs.captured

    def _steps_of_every_kind(self) -> list[StepInput]:
        """Prompts short and long, alone, together and beside decoding sequences, and all that samples can want."""
        size, most = self.block_size, self.num_blocks * self.block_size
        long = max(1, min(300, most // 2 - size))
        spans = [[(0, 1)], [(0, min(2, most))], [(0, long)], [(min(1, most - 1), 1)]]
        if self._max_running > 1 and self.num_blocks > 1:
            spans += [[(0, long)] * 2, [(long, 1)] * 2, [(0, long), (long - 1, 1)]]
        spans = [each for each in spans if sum(-(-(start + count) // size) for start, count in each) <= self.num_blocks]
        steps = [prompt_step(each, size) for each in spans]
        token = np.zeros(1, np.int32)
        edit = LogitsEdit(
            sample=0,
            tokens=token,
            counts=token,
            repetition=1.1,
            newest_unknown=True,
            bias_tokens=token,
            bias_values=np.zeros(1, np.float32),
            mask=np.full(-(-self.model.config.vocab_size // 32), -1, np.int32),
        )
        warm = np.zeros(1, SAMPLING)
        warm["temperature"], warm["top_p"] = 1.0, 0.9
        settings = np.resize(warm, 1)
        for step in list(steps):
            if len(step.sampled) == 1:
                scores = (PromptScores(0, 0, token, 1),)
                more = {"edits": (edit,), "logprobs": np.ones(1, np.int32), "settings": settings}
                steps.append(dataclasses.replace(step, prompt_scores=scores, **more))  # type: ignore[arg-type]
                none = {"sampled": token[:0], "sample_rows": token[:0], "settings": settings[:0]}
                steps.append(dataclasses.replace(step, beams=((0, 2),), logprobs=token[:0], **none))  # type: ignore[arg-type]
        return steps

    def execute(self, step: StepInput) -> StepResult:
        """Launch and collect."""
        self.launch(step)
        return self.collect()

    @torch.inference_mode()
    def launch(self, step: StepInput) -> None:
        """Start a step. Raises InconsistentStep before anything is written."""
        tables, device = self._device_tables, self.model.device
        tables.apply(step.patches)
        tables.check(step, self.block_size, self.num_blocks, self.model.config.vocab_size)
        swap_s = self._move(step)
        before = None
        if any(edit.newest_unknown for edit in step.edits):  # read before this step's tokens take their place
            (rows,) = upload([step.sample_rows[[edit.sample for edit in step.edits]].astype(np.int64)], device)
            before = self._graphs.newest[rows]
        decodes = step.is_decode and len(step.rows) and not step.prompt_scores
        sources = self._launch_decode(step) if decodes else self._launch_mixed(step)
        requested = Requested.launch(step, sources, self.model.decoder.logits, self._graphs.newest, before, device)
        there = torch.cuda.Event()
        there.record()
        self._in_flight.append(_Launched(requested, there, swap_s))

    def collect(self) -> StepResult:
        """Wait for the oldest step in flight and return what it brings."""
        launched = self._in_flight.popleft()
        launched.there.synchronize()
        return launched.requested.result(launched.swap_s)

    # -- one token of each sequence ------------------------------------------------------------------

    def _launch_decode(self, step: StepInput) -> Sources:
        # By row: in whatever order they are scheduled, the same sequences are the same batch.
        by_row = np.argsort(step.rows)
        settings = np.zeros(len(step.rows), SAMPLING)  # beams have none
        settings[step.sampled] = step.settings
        decoding = self._planned(step.rows[by_row], step.starts[by_row] + 1, settings[by_row])
        order = by_row[decoding.order]
        ids = _ids(step.token_ids[order], step.rows[order])
        self._graphs.launch(decoding.batch, ids, step.starts[order], step.patches)
        entries = np.empty(len(order), np.int64)
        entries[order] = np.arange(len(order))
        return Sources(self._graphs.logits, self._graphs.out, entries[step.sampled], entries[_beam_spans(step)])

    def _planned(self, rows: Ints, lengths: Ints, settings: NDArray[np.void]) -> _Decoding:
        """The batch of these sequences, in ascending order of their rows, from a step before where that planned it.

        A plan holds while the rows are the same, nothing but appended blocks changed in their tables, and no sequence
        has outgrown it. Settings are compared too: a session's next turn stands in the row of the turn before.
        """
        key = rows.tobytes()
        decoding = self._batches.get(key)
        if (
            decoding is None
            or decoding.changes != self._device_tables.changes
            or not bool((lengths <= decoding.limits).all())
        ):
            decoding = self._plan_batch(rows, lengths, settings)
        elif decoding.batch.settings.tobytes() != settings[decoding.order].tobytes():
            batch = dataclasses.replace(decoding.batch, settings=settings[decoding.order])
            decoding = dataclasses.replace(decoding, batch=batch)
        self._batches[key] = decoding
        self._batches.move_to_end(key)
        if len(self._batches) > _BATCHES_KEPT:
            self._batches.popitem(last=False)
        return decoding

    def _plan_batch(self, rows: Ints, lengths: Ints, settings: NDArray[np.void]) -> _Decoding:
        """Plan what is read how, now and in the steps to come: sequences grow, and all else stays."""
        full = (lengths - 1) // self.block_size
        sharing = find_sharing(self._device_tables.host, rows, full, self.block_size)
        limits = lengths + _STEPS_PLANNED
        work = self._plan(decode_runs(sharing, rows[sharing.order], limits[sharing.order]), len(rows))
        kind = self._graphs.kind_of(work, len(rows))
        if kind is None:  # more of a tree than the graphs have room for
            sharing = Sharing(np.arange(len(rows)), [], np.zeros(len(rows), dtype=np.int32), 0)
            work = self._plan(decode_runs(sharing, rows, limits), len(rows))
            kind = self._graphs.kind_of(work, len(rows))
            assert kind is not None, "a batch that shares nothing fits its graph"
        batch = Batch(rows[sharing.order], settings[sharing.order], work, kind)
        return _Decoding(self._device_tables.changes, limits, sharing.order, batch)

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

    def _launch_mixed(self, step: StepInput) -> Sources:
        config, device = self.model.config, self.model.device
        rows, starts, counts, firsts = step.rows, step.starts, step.counts, step.firsts
        of_token = np.repeat(np.arange(len(rows)), counts)
        positions = np.arange(counts.sum(), dtype=np.int32) - firsts[of_token] + starts[of_token]
        work = self._plan(
            Runs(firsts, counts, rows, np.zeros_like(starts), starts + counts, counts > 1), len(positions)
        )
        self._graphs.patch(step.patches)
        plan = upload_plan(
            positions,
            rows[of_token],
            self._device_tables.device,
            work,
            config.heads,
            config.kv_heads,
            config.head_dim,
            self.block_size,
            shared=False,
        )
        spans = np.concatenate((step.sampled, _beam_spans(step)))
        last = (firsts + counts - 1)[spans].astype(np.int64)
        ids, last_rows, table_rows = upload([_ids(step.token_ids, rows[of_token]), last, step.sample_rows], device)
        hidden = self.model.decoder.forward(self._graphs.embed(ids), self.kv, plan)
        samples = len(step.sampled)
        logits = self.model.decoder.logits(hidden[last_rows]) if len(spans) else hidden[:0]
        out = torch.empty(samples, dtype=torch.int32, device=device)
        if samples:
            draw(logits[:samples], device_rows(step, slice(None), device), out, self._graphs.newest, table_rows)
        return Sources(logits, out, np.arange(samples), np.arange(samples, len(spans)), hidden)

    # -- inside ----------------------------------------------------------------------------------------

    def _move(self, step: StepInput) -> float:
        if not (len(step.swap_out) or len(step.swap_in)):
            return super()._move(step)
        torch.cuda.synchronize()
        started = time.perf_counter()
        super()._move(step)
        torch.cuda.synchronize()
        return time.perf_counter() - started


def _ids(tokens: Ints, rows: Ints) -> Ints:
    """Token ids; one that is UNKNOWN is named by its sequence's row."""
    return np.where(tokens >= 0, tokens, -rows - 1).astype(np.int32)


def _beam_spans(step: StepInput) -> Ints:
    return np.array([span for span, _ in step.beams], np.int32)
