"""The sampling kernels in Triton's interpreter give the very tokens of their torch twin."""

from __future__ import annotations

import warnings

import pytest
import torch

import kernels.torch as plain
import kernels.triton as triton_kernels
from tests.kernels.rows import Row, pack

SETTINGS = [
    Row(0.0, seed=1, position=9),
    Row(1.0, seed=2**63 - 1, position=8),
    Row(0.7, top_k=40, seed=3, position=7),
    Row(1.3, top_p=0.8, seed=4, position=6),
    Row(0.9, top_k=10, top_p=0.7, min_p=0.02, seed=5, position=2**31),
    Row(1e-30, min_p=0.1, seed=6, position=4),
    Row(1.0, min_p=0.05, seed=6, position=5),
]


@pytest.mark.parametrize("vocab", [37, 5000])
@pytest.mark.parametrize("round_number", range(3))
def test_drawn_tokens_are_those_of_the_twin(vocab: int, round_number: int) -> None:
    logits = torch.randn(len(SETTINGS), vocab, generator=torch.Generator().manual_seed(round_number)) * 3
    rows = pack(SETTINGS, vocab)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # integers of the interpreter wrap around, as they should
        got = triton_kernels.sample(logits, rows)

    assert got.tolist() == plain.sample(logits, rows).tolist()


def test_penalties_biases_and_masks_edit_the_logits_first() -> None:
    vocab = 70
    settings = [
        Row(0.0, repetition=1.5, frequency=0.4, presence=0.2, seen={3: 2, 5: 0, 60: 1}),
        Row(1.0, seed=4, bias={7: 30.0, 8: -100.0}),
        Row(0.0),
        Row(0.8, seed=5, allowed=frozenset({1, 2, 31, 32, 69})),
        Row(0.0, repetition=0.5, presence=-1.0, seen={1: 1}, bias={2: 1.0}, allowed=frozenset({1, 2, 3})),
    ]
    rows = pack(settings, vocab)
    logits = torch.randn(len(settings), vocab, generator=torch.Generator().manual_seed(0)) * 3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        got = triton_kernels.sample(logits, rows)

    assert got.tolist() == plain.sample(logits, rows).tolist()
    assert got[1] == 7
