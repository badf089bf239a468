"""Which number types a model and its KV are computed in, and which GPUs can: decided before anything is loaded.

Pure functions of what the machine, the checkpoint and the user say, so that every combination can be tested anywhere.
"""

from __future__ import annotations

import torch

from engine.models.errors import ModelError

_LEAST_CAPABILITY = (8, 0)
"""NVIDIA's Ampere (2020): the first with bfloat16, and the oldest that Triton compiles these kernels for."""
_FLOAT32_TILE = 172_544
"""Bytes that the attention kernel takes for 128 queries of more than 128 numbers."""
MOST_GPU_GROUP = 128
"""Query heads that may share a key/value head on a GPU: rows of the attention kernel's larger tile."""
MOST_GPU_HEAD_DIM = 256
"""Numbers a head that the attention kernel's tiles have room for."""


def check_gpu(name: str, capability: tuple[int, int]) -> None:
    """Raises ModelError for a card that the GPU kernels are not for: it would fail while they are compiled."""
    if capability < _LEAST_CAPABILITY:
        raise ModelError(
            f"The GPU {name} has compute capability {capability[0]}.{capability[1]}; the kernels need 8.0 or newer "
            "(Ampere, as A100, RTX 30 and later). Use --device cpu."
        )


def check_gpu_shape(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ModelError for attention of a shape that the GPU kernels have no tile for."""
    if heads // kv_heads > MOST_GPU_GROUP:
        raise ModelError(
            f"{heads // kv_heads} query heads share a key/value head (num_attention_heads {heads}, "
            f"num_key_value_heads {kv_heads}); on a GPU {MOST_GPU_GROUP} may at most."
        )
    if head_dim > MOST_GPU_HEAD_DIM:
        raise ModelError(f"head_dim is {head_dim}; on a GPU {MOST_GPU_HEAD_DIM} is the most.")


def check_gpu_room(name: str, shared_memory: int, head_dim: int, dtype: torch.dtype) -> None:
    """Raises ModelError where a tile of queries does not fit the card's shared memory (bytes a program may have)."""
    if dtype == torch.float32 and head_dim > 128 and shared_memory < _FLOAT32_TILE:
        raise ModelError(
            f"In float32, attention with head_dim {head_dim} needs {_FLOAT32_TILE >> 10} KiB of shared memory; "
            f"the GPU {name} has {shared_memory >> 10} KiB. Use --dtype bfloat16 or float16."
        )


def gpu_dtypes(asked: str, checkpoint: torch.dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """Of what a GPU computes, and of KV.

    auto keeps a float16 checkpoint in float16: bfloat16 has three bits fewer and would change its numbers. All others
    are computed in bfloat16; a float32 checkpoint is rounded to it, which `ModelInfo.dtype` says.
    """
    dtype = _asked(asked) or (torch.float16 if checkpoint == torch.float16 else torch.bfloat16)
    return dtype, dtype


def cpu_dtypes(
    asked: str, checkpoint: torch.dtype | None, *, compiled: bool, fast_bfloat16: bool
) -> tuple[torch.dtype, torch.dtype]:
    """Of what a CPU computes, and of KV. `compiled`: with the C++ kernels; `fast_bfloat16`: it multiplies bfloat16 in
    hardware.

    auto is float32 and KV in bfloat16 with C++ kernels. With torch it is bfloat16 where that is fast and the checkpoint
    is not float16, whose numbers it would change, else float32. A CPU without such instructions reads bfloat16 weights
    of one sequence faster, but is many times slower on a batch.
    """
    dtype = _asked(asked)
    if dtype is not None:
        return dtype, dtype
    if compiled:
        return torch.float32, torch.bfloat16
    dtype = torch.bfloat16 if fast_bfloat16 and checkpoint != torch.float16 else torch.float32
    return dtype, dtype


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it, as far as torch knows."""
    probes = (getattr(torch.cpu, probe, None) for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(probe is not None and probe() for probe in probes)


def _asked(name: str) -> torch.dtype | None:
    if name == "auto":
        return None
    dtype: torch.dtype = getattr(torch, name)
    return dtype
