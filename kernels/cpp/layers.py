"""All layers of a decoder in one call: thirty times six calls from Python would take a tenth of a one-chat step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kernels.cpp.attention import CppPlan, pool_of
from kernels.cpp.library import Decoder, Layer, Pool, library, pointer
from kernels.cpp.linear import PANEL, PanelLinear


class LayerWeights(Protocol):
    """What `fuse_layers` reads of a layer."""

    @property
    def input_norm(self) -> Tensor: ...
    @property
    def qkv(self) -> object: ...
    @property
    def q_norm(self) -> Tensor | None: ...
    @property
    def k_norm(self) -> Tensor | None: ...
    @property
    def out(self) -> object: ...
    @property
    def mlp_norm(self) -> Tensor: ...
    @property
    def gate_up(self) -> object: ...
    @property
    def down(self) -> object: ...
    @property
    def rotates(self) -> bool: ...


class FusedLayers:
    """Runs them; made by `fuse_layers`."""

    def __init__(self, decoder: Decoder, kept: object) -> None:
        self._decoder = decoder
        self._kept = kept
        """What the structures point to."""
        self._pools: tuple[object, object] = (None, None)

    def run(self, residual: Tensor, kv: Sequence[Tensor], plan: object) -> None:
        """`residual` [T, hidden], in place; keys and values go to the pools in `kv`. `plan` is for compiled kernels."""
        assert isinstance(plan, CppPlan)
        memory = torch.empty(library().pagechat_step_floats(self._decoder, len(residual)), dtype=torch.float32)
        library().pagechat_layers(
            self._decoder,
            plan.c,
            self._pools_of(kv),
            residual.data_ptr(),
            memory.data_ptr(),
            plan.pieces.data_ptr(),
            torch.get_num_threads(),
        )

    def _pools_of(self, kv: Sequence[Tensor]) -> object:
        """Made again only for other pools than the last time's: others may lie at the same addresses."""
        which = [(pool.data_ptr(), pool.shape, pool.dtype) for pool in kv]
        if which != self._pools[0]:
            self._pools = (which, (Pool * len(kv))(*map(pool_of, kv)))
        return self._pools[1]


def fuse_layers(
    layers: Sequence[LayerWeights], *, heads: int, kv_heads: int, head_dim: int, eps: float, inv_freq: Tensor
) -> FusedLayers | None:
    """None for layers that are not all in panels, or whose gate and up do not begin with a panel each."""
    structures = []
    for layer in layers:
        linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
        if not all(isinstance(one, PanelLinear) for one in linears):
            return None
        qkv, out, gate_up, down = (one.c for one in linears if isinstance(one, PanelLinear))
        if down.inputs % PANEL:
            return None
        norms = (pointer(layer.q_norm), pointer(layer.k_norm))
        structures.append(
            Layer(
                *(layer.input_norm.data_ptr(), qkv, *norms, out),
                *(layer.mlp_norm.data_ptr(), gate_up, down, layer.rotates),
            )
        )
    array = (Layer * len(structures))(*structures)
    hidden, intermediate = array[0].qkv.inputs, array[0].down.inputs
    inv_freq = inv_freq.to(torch.float32).contiguous()
    decoder = Decoder(
        array, len(array), hidden, intermediate, heads, kv_heads, head_dim, inv_freq.data_ptr(), eps, head_dim**-0.5
    )
    return FusedLayers(decoder, (array, list(layers), inv_freq))
