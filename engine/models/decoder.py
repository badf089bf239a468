"""A decoder-only transformer, as its description says, over a kernels' backend and a paged KV cache.

Knows tokens, positions and a plan of where they lie; knows no sequence, block table or request.

```
ids -> embedding -> [ norm -> qkv -> rope, write KV -> attention -> out -> +
                      norm -> gate_up -> silu * -> down -> + ] * layers -> norm -> head -> logits
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.models.attention import Attention, inverse_frequencies
from engine.models.config import DecoderConfig
from engine.models.mlp import GatedMlp
from kernels.backend import Backend, FusedLayers, LayerWeights, Linear, Plan


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    attention: Attention
    mlp: GatedMlp


class Decoder:
    """The weights, and the three parts of a forward pass."""

    def __init__(
        self,
        config: DecoderConfig,
        backend: Backend,
        embedding: Tensor,
        layers: list[Layer],
        norm: Tensor,
        head: Linear,
    ) -> None:
        self.config = config
        self.backend = backend
        self.embedding = embedding
        """[vocab, hidden], in the checkpoint's dtype: rows are converted as they are looked up."""
        self.layers = layers
        self.norm = norm
        self.head = head
        self.dtype = norm.dtype
        ropes = {layer.attention.rope for layer in layers if layer.attention.rope is not None}
        self._frequencies = {rope: inverse_frequencies(rope, config.head_dim).to(norm.device) for rope in ropes}
        self._fused = self._fuse()

    def embed(self, ids: Tensor) -> Tensor:
        """[T, hidden] of token ids [T]."""
        return self.embedding.index_select(0, ids).to(self.dtype)

    def forward(self, residual: Tensor, kv: Sequence[Tensor], plan: Plan) -> Tensor:
        """Hidden states [T, hidden] before the last norm, of embedded tokens that lie as `plan` says; in place.

        `kv` holds each layer's pool; the tokens' keys and values are written there.
        """
        if self._fused is not None:
            self._fused.run(residual, kv, plan)
            return residual
        on = self.backend
        angles = {
            rope: on.rope_angles(plan.positions, inv_freq, 1.0, self.dtype)
            for rope, inv_freq in self._frequencies.items()
        }
        for layer, pool in zip(self.layers, kv, strict=True):
            layer.attention.add_to(residual, pool, plan, angles, on)
            layer.mlp.add_to(residual, on)
        return residual

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab] of the rows of `forward`'s result that are wanted, [R, hidden]."""
        return self.backend.norm_linear(hidden, self.norm, self.config.norm.eps, self.head)

    def weights_dtype(self) -> str:
        """Of the layers' largest matrices."""
        return self.backend.weights_dtype(self.layers[0].mlp.gate_up)

    def _fuse(self) -> FusedLayers | None:
        """All layers as one operation, where they rotate alike and norm alike and the backend has one for them."""
        first = self.config.layers[0].attention
        eps = {half.eps for layer in self.layers for half in (layer.attention, layer.mlp)}
        eps |= {layer.attention.qk_norms[2] for layer in self.layers if layer.attention.qk_norms is not None}
        if len(self._frequencies) != 1 or len(eps) != 1:
            return None
        (inv_freq,) = self._frequencies.values()
        return self.backend.fuse_layers(
            [_weights(layer) for layer in self.layers],
            heads=first.heads,
            kv_heads=first.kv_heads,
            head_dim=first.head_dim,
            scale=first.scale,
            eps=eps.pop(),
            inv_freq=inv_freq,
        )


def _weights(layer: Layer) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    q_norm, k_norm, _ = attention.qk_norms or (None, None, 0.0)
    return LayerWeights(
        input_norm=attention.norm,
        qkv=attention.qkv,
        q_norm=q_norm,
        k_norm=k_norm,
        out=attention.out,
        mlp_norm=mlp.norm,
        gate_up=mlp.gate_up,
        down=mlp.down,
        rotates=attention.rope is not None,
    )
