"""Computes steps on a CPU: block moves, one forward pass, and what the step asks for. The GPU's runner is made of it.

Owns the KV pool's tensors, on the device and in host memory. Which block belongs to whom is not its
business: it follows the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from engine.execution.sampler import best_tokens, sample_step, score_prompt
from engine.execution.step_input import SAMPLING, UNKNOWN, Ints, StepInput, StepResult
from engine.execution.tables import InconsistentStep, TableRows, check_step
from engine.protocol import TokenLogprobs
from kernels.backend import SpanTable

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel


def tell_nobody(what: str, done: int, total: int) -> None:
    """Stands in for a listener where there is none."""


class Runner:
    """The model, the pool of `num_blocks` blocks (and the null block) it reads and writes, and the host slots."""

    depth = 1

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.block_size = block_size
        config = model.config
        self.kv = [
            model.backend.new_kv(num_blocks, config.kv_heads, block_size, config.head_dim, model.kv_dtype)
            for _ in range(config.num_layers)
        ]
        shape = (host_slots, *self.kv[0].shape[1:])
        pin = model.device != "cpu" and host_slots > 0
        self._host = [torch.empty(shape, dtype=model.kv_dtype, pin_memory=pin) for _ in self.kv]
        self._tables = TableRows()
        self._launched: StepInput | None = None

    @property
    def compilations(self) -> int:
        """A CPU's kernels are compiled when the model is loaded, so this is 0."""
        return 0

    @property
    def bytes_per_block(self) -> int:
        """K and V of all layers."""
        return self.model.kv_bytes_per_token * self.block_size

    @property
    def kv_layout(self) -> str:
        """Names the order and sizes of KV in memory, for whatever keeps KV outside the pool."""
        config = self.model.config
        return f"layers={config.num_layers} blocks 2 kv_heads={config.kv_heads} block_size head_dim={config.head_dim}"

    @property
    def kv_dtype(self) -> str:
        return str(self.model.kv_dtype).removeprefix("torch.")

    def warm_up(self, tell: Callable[[str, int, int], None] = tell_nobody) -> None:
        """Run a prefill and a decode step over the null block's neighbour, so that the first request pays no set-up.

        `tell` gets what is being made, how much is done, and of how much (0: nobody knows).
        """
        self.execute(prompt_step([(0, 2)], self.block_size))
        self.execute(prompt_step([(1, 1)], self.block_size))
        for pool in self.kv:
            pool[1].zero_()

    @torch.inference_mode()
    def time_swap(self) -> tuple[int, float]:
        """(blocks moved, seconds): some blocks out to host memory and back, which changes nothing. Needs host slots."""
        count = min(8, self.num_blocks, len(self._host[0]))
        out = np.array([(block + 1, block) for block in range(count)], np.int32)
        nothing = np.zeros(0, np.int32)
        step = StepInput(0, nothing, nothing, nothing, nothing, swap_out=out, swap_in=out[:, ::-1].copy())
        self._move(step)  # the first touch of host memory is slower than any later one
        return 2 * count, self._move(step)

    def launch(self, step: StepInput) -> None:
        """Keep a step for `collect`, which computes it."""
        assert self._launched is None, "one step at a time"
        self._launched = step

    def collect(self) -> StepResult:
        """Compute the step that was launched. Raises InconsistentStep before anything is written."""
        step, self._launched = self._launched, None
        assert step is not None, "launched before it is collected"
        return self.execute(step)

    @torch.inference_mode()
    def execute(self, step: StepInput) -> StepResult:
        """Launch and collect. Raises InconsistentStep before any KV is written."""
        config, decoder = self.model.config, self.model.decoder
        self._tables.apply(step)
        tables = self._tables.tables(step, self.block_size)
        check_step(step, tables, self.block_size, self.num_blocks, config.vocab_size)
        if (step.token_ids == UNKNOWN).any():
            raise InconsistentStep(f"A token outside 0..{config.vocab_size - 1}: one that is not known yet.")
        swap_s = self._move(step)
        starts, counts = step.starts.tolist(), step.counts.tolist()
        plan = self.model.backend.plan_attention(
            [SpanTable(*span) for span in zip(starts, counts, tables, strict=True)],
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_size=self.block_size,
            dtype=self.model.dtype,
        )
        hidden = decoder.forward(decoder.embed(torch.from_numpy(step.token_ids).to(self.model.device)), self.kv, plan)
        last = step.firsts + step.counts - 1
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        beams: list[tuple[list[int], list[float]]] = []
        if len(step.sampled):
            tokens, logprobs = sample_step(self._logits(hidden, last[step.sampled]), step, self.model.backend)
        if step.beams:
            logits = self._logits(hidden, last[[span for span, _ in step.beams]])
            beams = [best_tokens(row, count) for row, (_, count) in zip(logits, step.beams, strict=True)]
        scores = []
        for wanted in step.prompt_scores:
            first = int(step.firsts[wanted.span]) + wanted.first
            rows = hidden[first : first + len(wanted.following)]
            scores.append(score_prompt(decoder.logits, rows, wanted.following, wanted.count, self.model.backend))
        return StepResult(tokens=tokens, logprobs=logprobs, beams=beams, prompt_scores=scores, swap_s=swap_s)

    @torch.inference_mode()
    def read_blocks(self, blocks: list[int]) -> Tensor:
        """Their KV, on the CPU: [layers, blocks, 2, kv_heads, block_size, head_dim]."""
        index = torch.tensor(blocks, device=self.model.device)
        return torch.stack([pool.index_select(0, index).cpu() for pool in self.kv])

    @torch.inference_mode()
    def write_blocks(self, blocks: list[int], kv: Tensor) -> None:
        """The inverse of `read_blocks`."""
        index = torch.tensor(blocks, device=self.model.device)
        for pool, content in zip(self.kv, kv, strict=True):
            pool.index_copy_(0, index, content.to(pool.device, pool.dtype))

    def _logits(self, hidden: Tensor, rows: Ints) -> Tensor:
        return self.model.decoder.logits(hidden[torch.from_numpy(rows).to(hidden.device)])

    def _move(self, step: StepInput) -> float:
        """Swap out, copy, swap in. Returns the seconds the swaps took."""
        started = time.perf_counter()
        if len(step.swap_out):
            for pool, host in zip(self.kv, self._host, strict=True):
                self.model.backend.move_blocks(pool, host, step.swap_out.tolist())
        out_s = time.perf_counter() - started
        if len(step.copies):
            for pool in self.kv:
                self.model.backend.copy_blocks(pool, step.copies.tolist())
        started = time.perf_counter()
        if len(step.swap_in):
            for pool, host in zip(self.kv, self._host, strict=True):
                self.model.backend.move_blocks(host, pool, step.swap_in.tolist())
        return out_s + time.perf_counter() - started


def prompt_step(
    spans: list[tuple[int, int]], block_size: int, blocks: list[int] | None = None, **more: object
) -> StepInput:
    """A step of sequences of token 0, each `start` tokens long before and `count` longer after it, greedily sampled.

    They lie in `blocks` (None: 1, 2, ...) one after the other, in rows 0, 1, ...: for warming up and measuring.
    """
    starts, counts = (np.array(column, np.int32) for column in zip(*spans, strict=True))
    rows = np.arange(len(spans), dtype=np.int32)
    sizes = -(-(starts + counts) // block_size)
    row_of_block = np.repeat(rows, sizes)
    index = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    patches = np.stack((row_of_block, index, blocks or np.arange(1, sizes.sum() + 1)), axis=1).astype(np.int32)
    fields: dict[str, object] = {
        "sampled": rows,
        "sample_rows": rows,
        "settings": np.zeros(len(rows), SAMPLING),
        "logprobs": np.full(len(rows), -1, np.int32),
    }
    return StepInput(
        0,
        rows,
        starts,
        counts,
        np.zeros(counts.sum(), np.int32),
        patches=patches,
        **{**fields, **more},  # type: ignore[arg-type]
    )
