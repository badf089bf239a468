"""What an engine process is told at its start. The front writes it, as one JSON line, to the engine's stdin."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from engine.blocks import Policy

BLOCK_SIZES = (8, 16, 32, 64, 128)

_BOUNDS = {
    "num_blocks": (1, 2**31 - 2),  # a block's id is an int32, and block 0 is nobody's
    "kv_memory": (1, 2**63 - 1),
    "max_context": (2, 2**31 - 2),  # a token of the prompt and one of the answer
    "step_tokens": (1, 2**20),
    "max_running": (1, 2**13),  # each has a row of the block tables, on the device too
    "swap_memory": (0, 2**63 - 1),
    "threads": (1, max(256, 8 * (os.cpu_count() or 1))),  # beyond it, the system may refuse one in the middle of a step
}
"""The least and the most that each number may be."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Raises ValueError for a number that no engine can be started with; msgspec makes a ValidationError of it."""

    model: str = "smollm2"
    """A directory in Hugging Face layout, a .gguf file, or a name that `engine.models.resolve` knows."""
    block_size: int = 16
    num_blocks: int | None = None
    """None means as many as `kv_memory` holds."""
    kv_memory: int | None = None
    """The pool takes so many bytes; None means a sensible share of what is free on the device."""
    max_context: int | None = None
    """A sequence has so many tokens at most; None means the model's own limit."""
    step_tokens: int | None = None
    """Token budget: most tokens computed in one step, over all sequences. None: 512 on a CPU, 8192 on a GPU, which
    computes so many at about the same speed as more."""
    max_running: int | None = None
    """A step has so many sequences at most. None means 256 on a CPU, 512 on a GPU."""
    prefix_cache: bool = True
    policy: Policy = "paged"
    """How blocks are given to sequences; the contiguous ones are there to be compared with."""
    swap_memory: int = 0
    """So many bytes of host memory hold the KV of preempted sequences; with 0 these are always recomputed."""
    random_weights: bool = False
    """The weights are random, so that speed can be measured with a configuration alone."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of activations, weights and KV. auto: what this device computes fastest; with a CPU's C++ kernels that is float32
    with KV in bfloat16, and weights as `weights_dtype` says; on a GPU bfloat16, or float16 for float16 checkpoints."""
    weights_dtype: Literal["auto", "float32", "bf16", "int8", "int4"] = "auto"
    """How a CPU's C++ kernels hold the weights. auto: with dtype auto, 4 bits for those that a 4-bit file has, else 8;
    with dtype float32, as exact as the checkpoint."""
    cpu_kernels: Literal["auto", "torch"] = "auto"
    """auto: in C++, compiled for this machine at the first start, where it has a compiler; torch: never."""
    device: str = "auto"
    threads: int | None = None
    """So many CPU threads work on tensors; None means one per physical core."""
    command_endpoint: str = ""
    """The front binds this ZeroMQ endpoint: commands come in by it, and replies go out."""
    telemetry_endpoint: str = ""
    """The front binds this ZeroMQ endpoint, and telemetry goes out by it."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name.replace('_', '-')} must be from {least:,} to {most:,}, not {value:,}")
        if self.block_size not in BLOCK_SIZES:
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise ValueError(f"block-size must be one of {sizes}, not {self.block_size:,}")

    def limits(self, device: str) -> tuple[int, int]:
        """Returns (step_tokens, max_running) on a device."""
        tokens, running = (512, 256) if device == "cpu" else (8192, 512)
        return self.step_tokens or tokens, self.max_running or running
