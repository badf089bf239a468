"""C++ for the CPU, compiled on the user's machine for the user's machine. Contracts are in kernels/backend.py.

Weights stay in 4, 8 or 16 bits and are unpacked in registers. Sums are float32, and so are activations, but where the
CPU multiplies bytes they meet 4- and 8-bit weights as whole numbers, and where it multiplies pairs of bfloat16 they
meet a bfloat16 pool as such. A row's result is the same to the last bit whatever stands beside it, and however its
prompt was cut: there is one order of every sum.

build.py      compiles source/ once, keeps the library in a cache, and tries it before it is used
compilers.py  which compilers there are, and with which flags each makes it
trial.py      what is tried: every operation, against torch
library.py    the library's functions and structures
memory.py     memory for weights
linear.py     attention.py   layers.py   the operations; what is not here is torch's
"""

from kernels.cpp.attention import paged_attention, plan_attention, rope_and_cache_kv
from kernels.cpp.build import detail, start
from kernels.cpp.layers import fuse_layers
from kernels.cpp.linear import add_linear, choose_form, linear, norm_linear, norm_swiglu, pack_linear

__all__ = [
    "add_linear",
    "choose_form",
    "detail",
    "fuse_layers",
    "linear",
    "norm_linear",
    "norm_swiglu",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "rope_and_cache_kv",
    "start",
]
