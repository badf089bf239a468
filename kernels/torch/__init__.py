"""Plain torch: for any CPU, and the reference for every other backend. Contracts are in kernels/backend.py."""

from kernels.torch.attention import copy_blocks, move_blocks, paged_attention, plan_attention, rope_and_cache_kv
from kernels.torch.elementwise import rms_norm, rope_angles, silu_and_mul, zeros
from kernels.torch.linear import add_linear, linear, norm_linear, norm_swiglu, pack_linear
from kernels.torch.sampling import greedy, logprobs, sample

__all__ = [
    "add_linear",
    "copy_blocks",
    "greedy",
    "linear",
    "logprobs",
    "move_blocks",
    "norm_linear",
    "norm_swiglu",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope_and_cache_kv",
    "rope_angles",
    "sample",
    "silu_and_mul",
    "zeros",
]
