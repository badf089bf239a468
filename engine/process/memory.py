"""How much memory the KV pool gets: of what the device has free, on a GPU after the largest step was tried."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.models.errors import ModelError
from engine.process.config import EngineConfig

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel

_CPU_SHARE, _CPU_MOST = 0.25, 2 << 30
"""A chat engine on somebody's machine is one program among others: a quarter of what is free, two GiB at most (46,000
tokens of the default model). Pages of the pool take memory when first written, not before."""
_CPU_FOR_ONE_CONTEXT = 0.6
"""Share that may be taken so that at least one sequence of full length fits."""
_GPU_SHARE = 0.9
"""Of the device, for weights, the largest step's activations and KV together, as vLLM's default."""
_GPU_SLACK = 1 << 29
"""For what is not measured: CUDA graphs, compiled kernels, the allocator's rounding."""


def choose_num_blocks(config: EngineConfig, model: LoadedModel) -> int:
    """Usable blocks of the pool: as configured, else as many as fit. Raises ModelError, with the numbers, for none."""
    block_bytes = model.kv_bytes_per_token * config.block_size
    free = available_bytes(model.device)
    if config.num_blocks is not None:
        wanted = (config.num_blocks + 1) * block_bytes  # one more: the null block
        if config.num_blocks < 1 or wanted > free:
            raise ModelError(
                f"{config.num_blocks} blocks of {config.block_size} tokens take {_mib(wanted)}; "
                f"{_mib(free)} are free on {model.device}."
            )
        return config.num_blocks
    if config.kv_memory is not None:
        if config.kv_memory > free:
            raise ModelError(f"{_mib(config.kv_memory)} for KV, but {_mib(free)} are free on {model.device}.")
        budget = config.kv_memory
    elif model.device == "cpu":
        context = (-(-model.info.max_context // config.block_size) + 1) * block_bytes
        budget = int(max(min(free * _CPU_SHARE, _CPU_MOST), min(context, free * _CPU_FOR_ONE_CONTEXT)))
    else:
        budget = _gpu_budget(config, model)
    blocks = budget // block_bytes - 1
    if blocks < 1:
        raise ModelError(
            f"Not even one block fits: a block of {config.block_size} tokens takes {_mib(block_bytes)}, the pool needs "
            f"two, and {_mib(budget)} are set aside for it ({_mib(free)} free on {model.device})."
        )
    return blocks


def _gpu_budget(config: EngineConfig, model: LoadedModel) -> int:
    """What is left of this process's share, or of what other processes leave, after the largest step."""
    activations = _measure_activations(config, model)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(model.device)
    ours = torch.cuda.memory_reserved(model.device)
    return int(min(total * _GPU_SHARE - ours, free) - activations - _GPU_SLACK)


@torch.inference_mode()
def _measure_activations(config: EngineConfig, model: LoadedModel) -> int:
    """Bytes that a step of as many tokens, and the logits of as many sequences, as there may be takes beside KV."""
    from engine.execution.runner import Runner, prompt_step

    step_tokens, max_running = config.limits(model.device)
    count = min(step_tokens, model.info.max_context)
    blocks = -(-count // config.block_size)
    runner = Runner(model, blocks, config.block_size)
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    runner.execute(prompt_step([(0, count)], config.block_size))
    peak = torch.cuda.max_memory_allocated(model.device) - before
    return peak + max_running * model.config.vocab_size * model.dtype.itemsize


def available_bytes(device: str) -> int:
    """Memory that can be taken without pushing something else out: of the GPU, or of this machine or container."""
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_system_available(), *_cgroup_available(Path("/sys/fs/cgroup"))]
    return max(0, min(limits))


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # no Linux: half of all there is


def _cgroup_available(root: Path) -> list[int]:
    """What the container's limit leaves, for cgroup 2 and 1; nothing without a limit."""
    found = []
    for limit, usage in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(limit.read_text()) - int(usage.read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return found


def _mib(nbytes: float) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"
