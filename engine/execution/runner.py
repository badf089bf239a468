"""Executes a step: block moves, one forward pass over all its spans, and the next tokens of those that end there.

Owns the KV pool's tensors, on the device and in host memory. Which block belongs to whom is not its
business: it follows the step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.execution.sampler import best_tokens, sample_next, score_prompt
from engine.protocol import SamplingParams, TokenLogprobs
from engine.requests.sequence import Sequence, Span, Step, StepResult
from kernels import ops

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel


def make_runner(
    model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0, max_running: int = 256
) -> Runner:
    """The executor for the model's device; `max_running` sequences at most will be in a step."""
    if model.device == "cpu":
        return Runner(model, num_blocks, block_size, host_slots)
    from engine.execution.cuda.runner import CudaRunner  # needs Triton

    return CudaRunner(model, num_blocks, block_size, host_slots, max_running)


class InconsistentStep(RuntimeError):
    """A step that would read or write memory that is not its sequences' own. Always a bug of the scheduler."""


class Runner:
    """The model, the pool of `num_blocks` blocks (and the null block) it reads and writes, and the host slots."""

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.block_size = block_size
        config = model.config
        self.kv = [
            ops.new_kv(num_blocks, config.kv_heads, block_size, config.head_dim, model.kv_dtype, model.device)
            for _ in range(config.num_layers)
        ]
        shape = (host_slots, *self.kv[0].shape[1:])
        pin = model.device != "cpu" and host_slots > 0
        self._host = [torch.empty(shape, dtype=model.kv_dtype, pin_memory=pin) for _ in self.kv]

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

    def warm_up(self) -> None:
        """Run a prefill and a decode step over the null block's neighbour, so that the first request pays no set-up."""
        sequence = Sequence(
            id=0,
            request_id="",
            session="",
            tokens=[0, 0],
            prompt_len=2,
            sampling=SamplingParams(max_tokens=1, temperature=0, seed=0),
            table=[1],
        )
        for start, count in ((0, 2), (1, 1)):
            self.execute(Step(0, [Span(sequence, start, count)]))
        for pool in self.kv:
            pool[1].zero_()

    @torch.inference_mode()
    def time_swap(self) -> tuple[int, float]:
        """(blocks moved, seconds): some blocks out to host memory and back, which changes nothing. Needs host slots."""
        count = min(8, self.num_blocks, len(self._host[0]))
        pairs = [(block + 1, block) for block in range(count)]
        step = Step(0, [], pairs, [], [(slot, block) for block, slot in pairs])
        self._move(step)  # the first touch of host memory is slower than any later one
        return 2 * count, self._move(step)

    @torch.inference_mode()
    def execute(self, step: Step) -> StepResult:
        """The next tokens of the spans that reach their sequence's end. Raises InconsistentStep before any write."""
        self._check(step)
        swap_s = self._move(step)
        config, device = self.model.config, self.model.device
        ids: list[int] = []
        rows: list[int] = []
        samplers: list[Sequence] = []
        searchers: list[tuple[Sequence, int]] = []
        for span in step.spans:
            ids += span.sequence.tokens[span.start : span.start + span.count]
            if span.samples and span.sequence.group:
                searchers.append((span.sequence, len(ids) - 1))
            elif span.samples:
                for sequence in (span.sequence, *span.forks):
                    samplers.append(sequence)
                    rows.append(len(ids) - 1)
        plan = ops.plan_attention(
            [ops.SpanTable(span.start, span.count, span.sequence.table) for span in step.spans],
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_size=self.block_size,
            dtype=self.model.dtype,
            device=device,
            compiled=self.model.compiled,
        )
        embedded = self.model.decoder.embed(torch.tensor(ids, device=device))
        hidden = self.model.decoder.forward(embedded, self.kv, plan)
        tokens, logprobs = sample_next(self._logits(hidden, rows), samplers) if samplers else ([], [])
        prompt_logprobs = self._score_prompts(hidden, step.spans)
        top = {}
        if searchers:
            logits = self._logits(hidden, [row for _, row in searchers])
            for (sequence, _), row in zip(searchers, logits, strict=True):
                assert sequence.group is not None
                top[sequence.id] = best_tokens(row, sequence.group.search.candidates)
        return StepResult(tokens, top, logprobs, prompt_logprobs, swap_s)

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

    def _logits(self, hidden: Tensor, rows: list[int]) -> Tensor:
        return self.model.decoder.logits(hidden[torch.tensor(rows, device=hidden.device)])

    def _score_prompts(self, hidden: Tensor, spans: list[Span]) -> dict[int, list[TokenLogprobs]]:
        """Log probabilities of the prompt tokens that follow those of each span, where its request wants them."""
        found: dict[int, list[TokenLogprobs]] = {}
        row = 0
        for span in spans:
            sequence, count = span.sequence, span.sequence.sampling.prompt_logprobs
            if count is not None and sequence.scores_prompt:
                start, end = sequence.scored, min(span.start + span.count, sequence.prompt_len - 1)
                hidden_rows = hidden[row + start - span.start : row + end - span.start]
                following = sequence.tokens[start + 1 : end + 1]
                if following:
                    found[sequence.id] = score_prompt(self.model.decoder.logits, hidden_rows, following, count)
            row += span.count
        return found

    def _move(self, step: Step) -> float:
        """Swap out, copy, swap in. Returns the seconds the swaps took."""
        started = time.perf_counter()
        if step.swap_out:
            for pool, host in zip(self.kv, self._host, strict=True):
                ops.move_blocks(pool, host, step.swap_out)
        out_s = time.perf_counter() - started
        if step.copies:
            for pool in self.kv:
                ops.copy_blocks(pool, step.copies)
        started = time.perf_counter()
        if step.swap_in:
            for pool, host in zip(self.kv, self._host, strict=True):
                ops.move_blocks(host, pool, step.swap_in)
        return out_s + time.perf_counter() - started

    def _check(self, step: Step) -> None:
        """Spans lie within their tokens and tables, tables within the pool, and no block is written twice."""
        self._check_moves(step)
        written: set[int] = set()
        for span in step.spans:
            blocks = self._check_span(span)
            if not written.isdisjoint(blocks):
                raise InconsistentStep(f"Sequence {span.sequence.id}: writes a block that another sequence writes.")
            written.update(blocks)

    def _check_span(self, span: Span) -> list[int]:
        """The blocks that the span writes."""
        vocab = self.model.config.vocab_size
        sequence, end = span.sequence, span.start + span.count
        first, last = span.start // self.block_size, (end - 1) // self.block_size
        if span.count < 1 or span.start < 0 or end > len(sequence.tokens) or last >= len(sequence.table):
            raise InconsistentStep(
                f"Sequence {sequence.id}: tokens {span.start}..{end - 1} of {len(sequence.tokens)}, "
                f"with {len(sequence.table)} blocks of {self.block_size}."
            )
        if min(sequence.table[: last + 1]) < 1 or max(sequence.table[: last + 1]) > self.num_blocks:
            raise InconsistentStep(f"Sequence {sequence.id}: a block outside 1..{self.num_blocks}.")
        tokens = sequence.tokens[span.start : end]
        if min(tokens) < 0 or max(tokens) >= vocab:
            raise InconsistentStep(f"Sequence {sequence.id}: a token outside 0..{vocab - 1}.")
        return sequence.table[first : last + 1]

    def _check_moves(self, step: Step) -> None:
        device_blocks = [block for block, _ in step.swap_out] + [block for _, block in step.swap_in]
        device_blocks += [block for pair in step.copies for block in pair]
        if device_blocks and not 1 <= min(device_blocks) <= max(device_blocks) <= self.num_blocks:
            raise InconsistentStep(f"A move from or to a block outside 1..{self.num_blocks}.")
        written_by_moves = [destination for _, destination in [*step.copies, *step.swap_in]]
        if len(set(written_by_moves)) < len(written_by_moves):
            raise InconsistentStep("Two moves to the same block.")
