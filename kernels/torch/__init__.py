"""Plain torch: the CPU implementation, and the reference for every other. Contracts are in kernels/ops.py."""

from kernels.torch.attention import copy_blocks, move_blocks, paged_attention, plan_attention, rope_and_cache
from kernels.torch.elementwise import add_rms_norm, rms_norm, rope_angles, silu_mul, zeros
from kernels.torch.linear import linear, pack_linear
from kernels.torch.sampling import greedy, logprobs, sample

__all__ = [
    "add_rms_norm",
    "copy_blocks",
    "greedy",
    "linear",
    "logprobs",
    "move_blocks",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope_and_cache",
    "rope_angles",
    "sample",
    "silu_mul",
    "zeros",
]
