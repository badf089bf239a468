"""RMSNorm, SwiGLU, rotary angles and empty memory: the small operations between the matrix products."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy leaves the zeroing to the kernel, page by page on first use; torch.zeros writes all of it at once.
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def rope_angles(positions: Tensor, inv_freq: Tensor, scaling: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[T, 1, D] each, in `dtype`. The first half of the sines is negated: with the halves of a head swapped, rotation
    is x * cos + swapped * sin."""
    angles = positions.to(torch.float32)[:, None, None] * inv_freq
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)
