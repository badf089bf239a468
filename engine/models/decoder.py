"""A decoder-only transformer of the Llama family, over the operations of kernels/ and a paged KV cache.

Knows tokens, positions and a plan of where they lie; knows no sequence, block table or request.

```
ids -> embedding -> [ norm -> qkv -> rope, write KV -> attention -> out -> +
                      norm -> gate_up -> silu * -> down -> + ] * layers -> norm -> head -> logits
```
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import DecoderConfig, RopeConfig
from engine.models.loading.weights import Checkpoint, RandomWeights
from kernels import ops
from kernels.ops import AttentionPlan, Form, Linear

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. qkv is queries, keys, values; gate_up is gate, up: one product each."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    rotates: bool


class Decoder:
    """The weights, and the three parts of a forward pass."""

    def __init__(
        self, config: DecoderConfig, embedding: Tensor, layers: list[Layer], norm: Tensor, head: Linear
    ) -> None:
        self.config = config
        self.embedding = embedding
        """[vocab, hidden], in the checkpoint's dtype: rows are converted as they are looked up."""
        self.layers = layers
        self.norm = norm
        self.head = head
        self.dtype = norm.dtype
        self.inv_freq = inverse_frequencies(config.rope, config.head_dim).to(norm.device)
        self._fused = ops.fuse_layers(
            layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            inv_freq=self.inv_freq,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """[T, hidden] of token ids [T]."""
        return self.embedding.index_select(0, ids).to(self.dtype)

    def forward(self, residual: Tensor, kv: Sequence[Tensor], plan: AttentionPlan) -> Tensor:
        """Hidden states [T, hidden] before the last norm, of embedded tokens that lie as `plan` says; in place.

        `kv` holds each layer's pool; the tokens' keys and values are written there.
        """
        if self._fused is not None:
            self._fused.run(residual, kv, plan)
            return residual
        config, eps = self.config, self.config.rms_norm_eps
        scale = config.head_dim**-0.5
        angles = ops.rope_angles(plan.positions, self.inv_freq, 1.0, self.dtype)
        for layer, pool in zip(self.layers, kv, strict=True):
            qkv = ops.norm_linear(residual, layer.input_norm, eps, layer.qkv).view(len(residual), -1, config.head_dim)
            norms = (layer.q_norm, layer.k_norm, eps) if layer.q_norm is not None and layer.k_norm is not None else None
            q = ops.rope_and_cache(qkv, config.heads, angles if layer.rotates else None, pool, plan, norms)
            ops.add_linear(ops.paged_attention(q, pool, plan, scale).flatten(1), layer.out, residual)
            ops.add_linear(ops.norm_swiglu(residual, layer.mlp_norm, eps, layer.gate_up), layer.down, residual)
        return residual

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, vocab] of the rows of `forward`'s result that are wanted, [R, hidden]."""
        return ops.norm_linear(hidden, self.norm, self.config.rms_norm_eps, self.head)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Rotary frequencies, float32 [head_dim / 2]; as transformers' modeling_rope_utils computes them."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return inv_freq / rope.factor
    if rope.type == "llama3":
        return _llama3_frequencies(inv_freq, rope)
    return inv_freq


def _llama3_frequencies(inv_freq: Tensor, rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    longest = rope.original_context / rope.low_freq_factor
    shortest = rope.original_context / rope.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > longest, inv_freq / rope.factor, inv_freq)
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = ~(wavelength < shortest) * ~(wavelength > longest)
    return torch.where(between, blended, scaled)


def build_decoder(
    config: DecoderConfig,
    checkpoint: Checkpoint | RandomWeights,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[int, int], None],
    choose_form: Callable[[Tensor], Form] | None = None,
) -> Decoder:
    """The decoder with the checkpoint's weights, in `dtype` on `device`. `progress` gets layers done and in all.
    `choose_form`, for the C++ kernels of the CPU, says how each matrix is held.

    Raises ModelError for a tensor that is missing, of a wrong shape, or left over.
    """
    hidden, head_dim = config.hidden_size, config.head_dim
    q_size, kv_size = config.heads * head_dim, config.kv_heads * head_dim

    def vector(name: str, size: int) -> Tensor:
        return checkpoint.take(name, size, device=device, dtype=dtype)

    def matrix(name: str, outputs: int, inputs: int) -> Tensor:
        """What `pack` takes: as the file has it where a form is chosen for it, else as it is computed with."""
        if choose_form is not None:
            return checkpoint.take(name, outputs, inputs)
        return checkpoint.take(name, outputs, inputs, device=device, dtype=dtype)

    def pack(weight: Tensor, bias: Tensor | None) -> Linear:
        return ops.pack_linear(weight, bias, None if choose_form is None else choose_form(weight))

    def packed(names: Sequence[str], sizes: Sequence[int], inputs: int, bias: bool) -> Linear:
        """One product for several linear layers of the checkpoint that read the same input."""
        weights = [matrix(f"{n}.weight", size, inputs) for n, size in zip(names, sizes, strict=True)]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        biases = [vector(f"{n}.bias", size) for n, size in zip(names, sizes, strict=True)] if bias else None
        return pack(weight, torch.cat(biases) if biases else None)

    def layer(index: int) -> Layer:
        here = f"model.layers.{index}"
        attention, mlp = f"{here}.self_attn", f"{here}.mlp"
        return Layer(
            input_norm=vector(f"{here}.input_layernorm.weight", hidden),
            qkv=packed(
                [f"{attention}.{part}_proj" for part in "qkv"], [q_size, kv_size, kv_size], hidden, config.qkv_bias
            ),
            q_norm=vector(f"{attention}.q_norm.weight", head_dim) if config.qk_norm else None,
            k_norm=vector(f"{attention}.k_norm.weight", head_dim) if config.qk_norm else None,
            out=packed([f"{attention}.o_proj"], [hidden], q_size, config.output_bias),
            mlp_norm=vector(f"{here}.post_attention_layernorm.weight", hidden),
            gate_up=packed(
                [f"{mlp}.{part}_proj" for part in ("gate", "up")],
                [config.intermediate_size] * 2,
                hidden,
                config.mlp_bias,
            ),
            down=packed([f"{mlp}.down_proj"], [hidden], config.intermediate_size, config.mlp_bias),
            rotates=config.rope_layers[index],
        )

    table, own_head = "model.embed_tokens.weight", "lm_head.weight"
    if config.tied_embeddings and table not in checkpoint:
        table = own_head  # one tensor for both, under the other one's name
    embedding = checkpoint.take(table, config.vocab_size, hidden, device=device)
    as_computed = embedding if choose_form is not None else checkpoint.in_range(table, embedding, dtype)
    layers = []
    for index in range(config.num_layers):
        layers.append(layer(index))
        progress(index + 1, config.num_layers)
    norm = vector("model.norm.weight", hidden)
    if config.tied_embeddings and not _has_another_head(config, checkpoint, embedding):
        head = pack(as_computed, None)
    else:
        head = packed(["lm_head"], [config.vocab_size], hidden, False)
    # A tied checkpoint may repeat the embedding as lm_head; old ones carry the rotary frequencies, which are computed.
    checkpoint.check_all_taken((".rotary_emb.inv_freq",), ignored=(own_head,) if config.tied_embeddings else ())
    return Decoder(config, embedding, layers, norm, head)


def _has_another_head(config: DecoderConfig, checkpoint: Checkpoint | RandomWeights, embedding: Tensor) -> bool:
    """Whether the files of a model whose config ties the head to the embedding hold a head of other numbers.

    The head of the files is the one the model was trained with, then, and is used, as transformers does.
    """
    if isinstance(checkpoint, RandomWeights) or "lm_head.weight" not in checkpoint:
        return False
    if checkpoint.same("lm_head.weight", embedding):
        return False
    _log.warning(
        "config.json ties lm_head.weight to the embedding (tie_word_embeddings), but the model's files hold an "
        "lm_head.weight of other numbers: it is used, and the two are not tied."
    )
    return True
