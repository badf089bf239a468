"""Attention in C++ against plain loops in float64, and that no token's result depends on what stands beside it."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import Backend, Plan, SpanTable
from kernels.cpp import choose_form
from kernels.cpp.backend import CppBackend
from tests.kernels.test_attention import BORDERS, HEAD_DIM, TORCH, Scene, attend, expected, make_scene

CPP = CppBackend(choose_form)
LONG = [(700, 1), (255, 1), (256, 1), (257, 1), (511, 1), (0, 300), (250, 20), (600, 100)]
"""On both sides of a chunk's border (256 slots), and over several."""


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (8, 1)])
def test_a_mixed_batch_attends_as_plain_attention_does(block_size: int, heads: int, kv_heads: int) -> None:
    """Unused slots are NaN."""
    scene = make_scene(BORDERS, heads, kv_heads, block_size, seed=block_size + heads, backend=CPP)

    torch.testing.assert_close(attend(scene, heads, 0.25), expected(scene, heads, 0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_dim", [20, 32, 64, 72, 128])
def test_heads_of_other_widths(head_dim: int) -> None:
    """32 columns are a panel, 8 words are transposed at a time; what is left over is done otherwise."""
    scene = make_scene([*BORDERS, (300, 5)], 6, 2, 16, backend=CPP, head_dim=head_dim)

    torch.testing.assert_close(attend(scene, 6, 0.25), expected(scene, 6, 0.25), rtol=1e-5, atol=1e-5)


def test_long_contexts() -> None:
    scene = make_scene(LONG, 6, 2, 16, backend=CPP)

    torch.testing.assert_close(attend(scene, 6, 0.25), expected(scene, 6, 0.25), rtol=1e-5, atol=1e-5)


def test_more_heads_to_a_key_than_a_task_takes() -> None:
    scene = make_scene([(40, 1), (0, 5)], 128, 1, 16, backend=CPP)

    torch.testing.assert_close(attend(scene, 128, 0.25), expected(scene, 128, 0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_dim", [16, 20, 64, 72])
def test_a_bfloat16_pool_is_attended_to_within_its_rounding(head_dim: int) -> None:
    """Where the CPU multiplies pairs of 16-bit floats, queries and softmax weights are rounded to them too: each by
    2^-9 at most, with scores of up to 5 here."""
    scene = make_scene([*BORDERS, (300, 5), (600, 1)], 6, 2, 16, backend=CPP, head_dim=head_dim)
    scene.kv, scene.qkv = scene.kv.bfloat16(), scene.qkv.bfloat16().float()
    for part in (scene.keys, scene.values):
        part[:] = [numbers.bfloat16().float() for numbers in part]

    got, exact = attend(scene, 6, head_dim**-0.5), expected(scene, 6, head_dim**-0.5)
    torch.testing.assert_close(got, exact, rtol=0, atol=6e-3)
    assert (got - exact).square().mean().sqrt() < 6e-4


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_no_token_of_the_sequence_wrote_changes_no_bit(poison: float, dtype: torch.dtype) -> None:
    clean, dirty = (make_scene(BORDERS, 6, 2, 32, poison=p, backend=CPP) for p in (0.0, poison))
    for scene in (clean, dirty):
        scene.kv = scene.kv.to(dtype)

    assert torch.equal(attend(clean, 6, 0.25), attend(dirty, 6, 0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_gets_the_same_bits_alone_among_others_and_in_any_chunk_of_its_prompt(dtype: torch.dtype) -> None:
    together = make_scene(LONG, 6, 2, 16, backend=CPP)
    together.kv = together.kv.to(dtype)
    result = attend(together, 6, 0.25)
    first = 0
    for span in together.spans:
        for begin, count in {
            (0, span.count),
            (0, 1),
            (span.count // 2, span.count - span.count // 2),
            (span.count - 1, 1),
        }:
            if count:
                part = SpanTable(span.start + begin, count, span.table)
                tokens = slice(first + begin, first + begin + count)
                got = CPP.paged_attention(together.qkv[tokens, :6], together.kv, plan([part]), 0.25)
                assert torch.equal(got, result[tokens])
        first += span.count


def plan(spans: list[SpanTable]) -> Plan:
    return CPP.plan_attention(spans, heads=6, kv_heads=2, head_dim=HEAD_DIM, block_size=16, dtype=torch.float32)


def test_rotation_norms_and_kv_write_are_torchs() -> None:
    def scene(backend: Backend) -> Scene:
        return make_scene([(6, 4), (0, 1), (300, 1)], 4, 2, 8, poison=-1.0, backend=backend)

    inv_freq = 1.0 / (10_000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    norms = (torch.rand(HEAD_DIM), torch.rand(HEAD_DIM), 1e-5)
    results = []
    for one in (scene(TORCH), scene(CPP)):
        angles = one.on.rope_angles(one.plan.positions, inv_freq, 1.0, torch.float32)
        q = one.on.rope_and_cache_kv(one.qkv.clone(), 4, angles, one.kv, one.plan, norms)
        results.append((q, one.kv))

    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
