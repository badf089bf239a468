"""Matrix products with weights in panels; see source/weights.h for their layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpp.library import FORMS, Form, Linear, library, pointer
from kernels.cpp.memory import Slabs
from kernels.torch.elementwise import silu_and_mul

_PLAIN, _ADD, _SWIGLU = 0, 1, 2
PANEL = 32
_SAMPLED_OUTPUTS = 64
_OFF_GRID = 0.01
"""Share of groups that may lie off the grid: of a file's 4-bit numbers none does; of others nearly all do."""

_slabs = Slabs()


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """A weight [out, in] in panels, and its bias."""

    form: Form
    data: Tensor
    bias: Tensor | None
    out_features: int
    in_features: int
    c: Linear


def choose_form(weight: Tensor) -> Form:
    """int4 for weights that lie on a 4-bit grid, as those of a 4-bit file do, so that nothing is lost; else int8."""
    weight = _readable(weight)
    outputs, inputs = weight.shape
    step = max(1, outputs // _SAMPLED_OUTPUTS)
    groups = -(-outputs // step) * (inputs // 32)
    if not groups:
        return "int8"
    off = library().pagechat_off_grid(weight.data_ptr(), weight.dtype == torch.bfloat16, outputs, inputs, step)
    return "int4" if off <= _OFF_GRID * groups else "int8"


def pack_linear(weight: Tensor, bias: Tensor | None, form: Form) -> PanelLinear:
    """`weight` of any float dtype; the result holds no reference to it."""
    weight = _readable(weight)
    outputs, inputs = weight.shape
    number = FORMS.index(form)
    data = _slabs.zeros(library().pagechat_packed_bytes(number, outputs, inputs))
    library().pagechat_pack(
        number,
        weight.data_ptr(),
        weight.dtype == torch.bfloat16,
        outputs,
        inputs,
        data.data_ptr(),
        torch.get_num_threads(),
    )
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    c = Linear(data.data_ptr(), pointer(bias), outputs, inputs, number)
    return PanelLinear(form, data, bias, outputs, inputs, c)


def _readable(weight: Tensor) -> Tensor:
    return (weight if weight.dtype == torch.bfloat16 else weight.to(torch.float32)).contiguous()


def _floats(rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.float32)


def _run(
    x: Tensor, packed: PanelLinear, mode: int, out: Tensor, norm: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    x = x.contiguous()
    memory = torch.empty(library().pagechat_linear_floats(packed.in_features, len(x)), dtype=torch.float32)
    library().pagechat_linear(
        packed.c,
        mode,
        x.data_ptr(),
        len(x),
        pointer(norm),
        eps,
        memory.data_ptr(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def linear(x: Tensor, packed: PanelLinear) -> Tensor:
    return _run(x, packed, _PLAIN, _floats(len(x), packed.out_features))


def norm_linear(x: Tensor, norm: Tensor, eps: float, packed: PanelLinear) -> Tensor:
    return _run(x, packed, _PLAIN, _floats(len(x), packed.out_features), norm, eps)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, packed: PanelLinear) -> Tensor:
    width = packed.out_features // 2
    if width % PANEL:  # gate and up of an output are not in the same place of two panels
        return silu_and_mul(norm_linear(x, norm, eps, packed))
    return _run(x, packed, _SWIGLU, _floats(len(x), width), norm, eps)


def add_linear(x: Tensor, packed: PanelLinear, residual: Tensor) -> None:
    _run(x, packed, _ADD, residual)
