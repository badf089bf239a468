"""The other half of a layer, with its weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.backend import Backend, Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """norm, down(silu(gate) * up): added to the residual."""

    norm: Tensor
    eps: float
    gate_up: Linear
    """Gate, up: one product."""
    down: Linear

    def add_to(self, residual: Tensor, on: Backend) -> None:
        """residual [T, hidden] in place."""
        on.add_linear(on.norm_swiglu(residual, self.norm, self.eps, self.gate_up), self.down, residual)
