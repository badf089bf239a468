"""Triton: the GPU implementation of kernels/backend.py. On a CPU, only Triton's interpreter runs it (tests do).

attention.py, elementwise.py, linear.py, sampling.py, copies.py   the kernels
work.py, sharing.py   what the attention kernel does in a step, found on the host
plan.py   a step's plan on the device
launch.py, draw.py   the operations: how each kernel is started; backend.py puts them together
compilations.py   when Triton compiles, and what; warm_up.py   every variant a model needs, compiled at the start
"""

from kernels.torch.sampling import logprobs
from kernels.triton.draw import greedy, sample
from kernels.triton.launch import (
    add_linear,
    copy_blocks,
    linear,
    move_blocks,
    norm_linear,
    norm_swiglu,
    pack_linear,
    paged_attention,
    rms_norm,
    rope_and_cache_kv,
    rope_angles,
    silu_and_mul,
    zeros,
)
from kernels.triton.plan import plan_attention

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
