"""A described decoder and its checkpoint to weights in memory, in the backend's layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.models.attention import Attention
from engine.models.config import AttentionConfig, DecoderConfig, GatedMlpConfig, LayerConfig, NormConfig
from engine.models.decoder import Decoder, Layer
from engine.models.families.family import CheckpointNames
from engine.models.loading.weights import Checkpoint, RandomWeights
from engine.models.mlp import GatedMlp
from engine.models.registry import FAMILIES
from kernels.backend import Backend, Linear

_log = logging.getLogger(__name__)


def build_decoder(
    config: DecoderConfig,
    checkpoint: Checkpoint | RandomWeights,
    dtype: torch.dtype,
    backend: Backend,
    progress: Callable[[int, int], None],
) -> Decoder:
    """The decoder with the checkpoint's weights, computed in `dtype`. `progress` gets layers done and in all.

    Raises ModelError for a tensor that is missing, of a wrong shape, or left over.
    """
    return _Builder(config, checkpoint, dtype, backend).decoder(progress)


class _Builder:
    def __init__(
        self, config: DecoderConfig, checkpoint: Checkpoint | RandomWeights, dtype: torch.dtype, backend: Backend
    ) -> None:
        self._config, self._checkpoint, self._dtype, self._backend = config, checkpoint, dtype, backend
        self._names: CheckpointNames = FAMILIES[config.family].names

    def decoder(self, progress: Callable[[int, int], None]) -> Decoder:
        config, checkpoint, names = self._config, self._checkpoint, self._names
        table, own_head = f"{names.embedding}.weight", f"{names.head}.weight"
        if config.tied_embeddings and table not in checkpoint:
            table = own_head  # one tensor for both, under the other one's name
        shape = (config.vocab_size, config.hidden_size)
        embedding = checkpoint.take(table, *shape, device=self._backend.device)
        rounds = self._backend.rounds_weights
        as_computed = embedding if rounds else checkpoint.in_range(table, embedding, self._dtype)
        layers = []
        for number, layer in enumerate(config.layers):
            layers.append(self._layer(number, layer))
            progress(number + 1, config.num_layers)
        norm = self._vector(f"{names.norm}.weight", config.hidden_size)
        if config.tied_embeddings and not self._has_another_head(own_head, embedding):
            head = self._backend.pack_linear(as_computed, None)
        else:
            head = self._packed([names.head], [config.vocab_size], config.hidden_size, False)
        # A tied checkpoint may repeat the embedding as its head.
        ignored = (own_head,) if config.tied_embeddings else ()
        checkpoint.check_all_taken(names.ignored_suffixes, ignored)
        return Decoder(config, self._backend, embedding, layers, norm, head)

    def _layer(self, number: int, layer: LayerConfig) -> Layer:
        # `refuse_what_is_not_computed` has refused anything else.
        assert isinstance(layer.mlp, GatedMlpConfig)
        assert layer.before_attention is not None
        assert layer.before_mlp is not None
        attention = self._attention(number, layer.attention, layer.before_attention)
        return Layer(attention, self._mlp(number, layer.mlp, layer.before_mlp))

    def _attention(self, number: int, attention: AttentionConfig, norm: NormConfig) -> Attention:
        names, hidden, head_dim = self._names, self._config.hidden_size, attention.head_dim
        q_size, kv_size = attention.heads * head_dim, attention.kv_heads * head_dim
        qk_norms = None
        if attention.qk_norm is not None:
            q_norm, k_norm = (
                self._vector(f"{name.format(number)}.weight", head_dim) for name in (names.q_norm, names.k_norm)
            )
            qk_norms = q_norm, k_norm, attention.qk_norm.eps
        qkv = [name.format(number) for name in names.qkv]
        return Attention(
            norm=self._vector(f"{names.input_norm.format(number)}.weight", hidden),
            eps=norm.eps,
            qkv=self._packed(qkv, [q_size, kv_size, kv_size], hidden, attention.qkv_bias),
            qk_norms=qk_norms,
            out=self._packed([names.out.format(number)], [hidden], q_size, attention.output_bias),
            heads=attention.heads,
            head_dim=head_dim,
            scale=attention.scale,
            rope=attention.rope,
        )

    def _mlp(self, number: int, mlp: GatedMlpConfig, norm: NormConfig) -> GatedMlp:
        names, hidden, size = self._names, self._config.hidden_size, mlp.intermediate_size
        return GatedMlp(
            norm=self._vector(f"{names.mlp_norm.format(number)}.weight", hidden),
            eps=norm.eps,
            gate_up=self._packed([name.format(number) for name in names.gate_up], [size] * 2, hidden, mlp.bias),
            down=self._packed([names.down.format(number)], [hidden], size, mlp.bias),
        )

    def _vector(self, name: str, size: int) -> Tensor:
        return self._checkpoint.take(name, size, device=self._backend.device, dtype=self._dtype)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Tensor:
        if self._backend.rounds_weights:
            return self._checkpoint.take(name, outputs, inputs)
        return self._checkpoint.take(name, outputs, inputs, device=self._backend.device, dtype=self._dtype)

    def _packed(self, names: Sequence[str], sizes: Sequence[int], inputs: int, bias: bool) -> Linear:
        """One product for several linear layers of the checkpoint that read the same input."""
        weights = [self._matrix(f"{n}.weight", size, inputs) for n, size in zip(names, sizes, strict=True)]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        biases = [self._vector(f"{n}.bias", size) for n, size in zip(names, sizes, strict=True)] if bias else None
        return self._backend.pack_linear(weight, torch.cat(biases) if biases else None)

    def _has_another_head(self, name: str, embedding: Tensor) -> bool:
        """Whether the files of a model whose config ties the head to the embedding hold a head of other numbers.

        The head of the files is the one the model was trained with, then, and is used, as transformers does.
        """
        checkpoint = self._checkpoint
        if isinstance(checkpoint, RandomWeights) or name not in checkpoint or checkpoint.same(name, embedding):
            return False
        _log.warning(
            "config.json ties %s to the embedding (tie_word_embeddings), but the model's files hold a tensor of that "
            "name with other numbers: it is used, and the two are not tied.",
            name,
        )
        return True
