"""This module decides how much of the free memory the KV pool gets; on a GPU it tries the largest step first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.models.errors import ModelError
from engine.process.available import available_bytes, mib
from engine.process.config import EngineConfig

if TYPE_CHECKING:
    from engine.execution.step_input import StepInput
    from engine.models.loading.load import LoadedModel

_CPU_SHARE, _CPU_MOST = 0.25, 2 << 30
"""A chat engine on somebody's machine is one program among others: a quarter of what is free, two GiB at most (46,000
tokens of the default model). Pages of the pool take memory when first written, not before."""
_CPU_FOR_ONE_CONTEXT = 0.6
"""The pool may take this share, so that at least one sequence of full length fits."""
_GPU_SHARE = 0.9
"""Weights, the largest step's activations and KV may take this share of the device together, as by vLLM's default."""
_GPU_SLACK = 1 << 29
"""So many bytes are left for what is not measured: CUDA graphs, compiled kernels, the allocator's rounding."""
_MOST_LOGPROBS = 20
"""A request may ask for the log probabilities of so many tokens beside each of its own."""


def choose_num_blocks(config: EngineConfig, model: LoadedModel) -> int:
    """Returns the usable blocks of the pool: as configured, else as many as fit.

    Raises ModelError, with the numbers, when they do not fit.
    """
    block_bytes = model.kv_bytes_per_token * config.block_size
    free = available_bytes(model.device)
    if config.num_blocks is not None:
        wanted = (config.num_blocks + 1) * block_bytes  # the null block is one more
        if config.num_blocks < 1 or wanted > free:
            raise ModelError(
                f"{config.num_blocks} blocks of {config.block_size} tokens take {mib(wanted)}; "
                f"{mib(free)} are free on {model.device}."
            )
        return config.num_blocks
    if config.kv_memory is not None:
        if config.kv_memory > free:
            raise ModelError(f"{mib(config.kv_memory)} for KV, but {mib(free)} are free on {model.device}.")
        budget = config.kv_memory
    elif model.device == "cpu":
        context = (-(-model.info.max_context // config.block_size) + 1) * block_bytes
        budget = int(max(min(free * _CPU_SHARE, _CPU_MOST), min(context, free * _CPU_FOR_ONE_CONTEXT)))
    else:
        budget = _gpu_budget(config, model)
    blocks = budget // block_bytes - 1
    if blocks < 1:
        raise ModelError(
            f"Not even one block fits: a block of {config.block_size} tokens takes {mib(block_bytes)}, the pool needs "
            f"two, and {mib(budget)} are set aside for it ({mib(free)} free on {model.device})."
        )
    return blocks


def _gpu_budget(config: EngineConfig, model: LoadedModel) -> int:
    """Returns the bytes that the largest step leaves of this process's share, or of what other processes leave."""
    activations = _measure_activations(config, model)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(model.device)
    ours = torch.cuda.memory_reserved(model.device)
    return int(min(total * _GPU_SHARE - ours, free) - activations - _GPU_SLACK)


def _measure_activations(config: EngineConfig, model: LoadedModel) -> int:
    """Returns the bytes that the largest step, the runner itself and its graphs' logits take beside KV.

    Raises ModelError, with the numbers, when already that does not fit.
    """
    from engine.execution.make import make_runner

    step_tokens, max_running = config.limits(model.device)
    step, blocks = largest_step(
        step_tokens=step_tokens,
        max_running=max_running,
        max_context=model.info.max_context,
        block_size=config.block_size,
        vocab_size=model.config.vocab_size,
    )
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    try:
        make_runner(model, blocks, config.block_size, 0, max_running).execute(step)
    except torch.OutOfMemoryError:
        free, _ = torch.cuda.mem_get_info(model.device)
        raise ModelError(
            f"The largest step, {len(step.token_ids):,} tokens of {len(step.rows):,} sequences, does not fit into "
            f"{model.device} beside the weights ({mib(free)} are left); lower step-tokens or max-running."
        ) from None
    kv = (blocks + 1) * config.block_size * model.kv_bytes_per_token
    peak = torch.cuda.max_memory_allocated(model.device) - before - kv
    return peak + max_running * model.config.vocab_size * model.dtype.itemsize


def largest_step(
    *, step_tokens: int, max_running: int, max_context: int, block_size: int, vocab_size: int
) -> tuple[StepInput, int]:
    """Returns the step that takes most memory, and the number of blocks it lies in.

    It has as many tokens as a step may have, of as many sequences as may run, the first ones as long as they may be.
    Each is sampled with all filters, and with what makes float32 rows of its logits: penalties, bias, a mask and log
    probabilities. The first one's prompt is scored too.
    """
    import numpy as np

    from engine.execution.runner import prompt_step
    from engine.execution.step_input import SAMPLING, LogitsEdit, PromptScores

    sequences = min(max_running, step_tokens)
    left = min(step_tokens, sequences * max_context) - sequences
    counts = []
    for _ in range(sequences):
        more = min(left, max_context - 1)
        counts.append(1 + more)
        left -= more
    mask = np.full(-(-vocab_size // 32), -1, np.int32)
    edits = tuple(
        LogitsEdit(
            sample=sample,
            tokens=np.arange(min(count, vocab_size), dtype=np.int32),
            counts=np.zeros(min(count, vocab_size), np.int32),
            repetition=1.1,
            frequency=0.1,
            presence=0.1,
            bias_tokens=np.zeros(1, np.int32),
            bias_values=np.ones(1, np.float32),
            mask=mask,
        )
        for sample, count in enumerate(counts)
    )
    settings = np.zeros(sequences, SAMPLING)
    settings["temperature"], settings["top_p"], settings["min_p"] = 1.0, 0.95, 0.01
    settings["top_k"] = min(40, vocab_size)
    scores = (PromptScores(0, 0, np.zeros(counts[0] - 1, np.int32), _MOST_LOGPROBS),) if counts[0] > 1 else ()
    step = prompt_step(
        [(0, count) for count in counts],
        block_size,
        settings=settings,
        logprobs=np.full(sequences, min(_MOST_LOGPROBS, vocab_size), np.int32),
        edits=edits,
        prompt_scores=scores,
    )
    return step, sum(-(-count // block_size) for count in counts)


def choose_host_slots(config: EngineConfig, model: LoadedModel, num_blocks: int) -> int:
    """Returns the blocks of host memory that preempted sequences get. Raises ModelError where there is less."""
    if not config.swap_memory:
        return 0
    block_bytes = model.kv_bytes_per_token * config.block_size
    if config.swap_memory < block_bytes:
        raise ModelError(f"swap-memory {mib(config.swap_memory)} holds no block: one takes {mib(block_bytes)}.")
    free = available_bytes("cpu")
    pool = (num_blocks + 1) * block_bytes if model.device == "cpu" else 0
    if config.swap_memory + pool > free:
        beside = f", beside a pool of {mib(pool)} that is in host memory too" if pool else ""
        raise ModelError(
            f"swap-memory {mib(config.swap_memory)} was asked for, but {mib(free)} of host memory are free{beside}."
        )
    return config.swap_memory // block_bytes
