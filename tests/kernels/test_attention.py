"""Paged attention and the KV write, against attention written out in plain loops over contiguous keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernels.backend import Backend, Plan, SpanTable, torch_backend

TORCH = torch_backend()

HEAD_DIM = 16


@dataclass
class Scene:
    """Sequences with all their keys and values, and the paged pool that holds those before each span."""

    spans: list[SpanTable]
    qkv: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    kv: torch.Tensor
    plan: Plan
    on: Backend


def make_scene(
    spans: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    block_size: int,
    poison: float = float("nan"),
    seed: int = 0,
    backend: Backend = TORCH,
    head_dim: int = HEAD_DIM,
) -> Scene:
    """`spans` are (start, count). Blocks are scattered over the pool; whatever no sequence wrote holds `poison`."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-(start + count) // block_size) for start, count in spans]
    order = (rng.permutation(sum(needed) + 3) + 1).tolist()
    kv = torch.full((sum(needed) + 4, 2, kv_heads, block_size, head_dim), poison)
    kv[0] = 0
    tables, keys, values, fresh = [], [], [], []
    for (start, count), blocks in zip(spans, needed, strict=True):
        table = [order.pop() for _ in range(blocks)]
        k, v = torch.randn(2, start + count, kv_heads, head_dim, generator=generator)
        for position in range(start):
            block, offset = table[position // block_size], position % block_size
            kv[block, 0, :, offset], kv[block, 1, :, offset] = k[position], v[position]
        q = torch.randn(count, heads, head_dim, generator=generator)
        fresh.append(torch.cat((q, k[start:], v[start:]), dim=1))
        tables.append(SpanTable(start, count, table))
        keys.append(k)
        values.append(v)
    plan = backend.plan_attention(
        tables,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.float32,
    )
    return Scene(tables, torch.cat(fresh), keys, values, kv, plan, backend)


def expected(scene: Scene, heads: int, scale: float) -> torch.Tensor:
    """Each query against each key of its own past, one head and one token at a time, in float64."""
    rows, first = [], 0
    for span, keys, values in zip(scene.spans, scene.keys, scene.values, strict=True):
        for i in range(span.count):
            q = scene.qkv[first + i, :heads].double()
            k, v = keys[: span.start + i + 1].double(), values[: span.start + i + 1].double()
            group = heads // k.shape[1]
            out = [torch.softmax(k[:, h // group] @ q[h] * scale, 0) @ v[:, h // group] for h in range(heads)]
            rows.append(torch.stack(out))
        first += span.count
    return torch.stack(rows).float()


def attend(scene: Scene, heads: int, scale: float) -> torch.Tensor:
    q = scene.on.rope_and_cache_kv(scene.qkv.clone(), heads, None, scene.kv, scene.plan)
    return scene.on.paged_attention(q, scene.kv, scene.plan, scale)


BORDERS = [(0, 1), (7, 1), (8, 1), (31, 1), (127, 1), (128, 1), (0, 2), (0, 33), (5, 3), (16, 16), (30, 40), (1, 127)]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (8, 1)])
def test_a_mixed_batch_attends_as_plain_attention_does(block_size: int, heads: int, kv_heads: int) -> None:
    """Decode and prefill, first tokens and later ones, on both sides of every block border; unused slots are NaN."""
    scene = make_scene(BORDERS, heads, kv_heads, block_size, seed=block_size + heads)

    got = attend(scene, heads, 0.25)

    torch.testing.assert_close(got, expected(scene, heads, 0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_random_batches_of_decodes_of_very_different_length(seed: int) -> None:
    """Long and short sequences fall into several groups; the order of the step's tokens is kept."""
    rng = np.random.default_rng(seed)
    spans = [(int(rng.integers(0, 900) if rng.random() < 0.3 else rng.integers(0, 60)), 1) for _ in range(25)]
    scene = make_scene(spans, 6, 2, 16, seed=seed)

    got = attend(scene, 6, 0.3)

    assert len(scene.plan.decodes) > 1
    torch.testing.assert_close(got, expected(scene, 6, 0.3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_what_no_token_of_the_sequence_wrote_changes_no_bit(poison: float) -> None:
    """A block's last owner may have left anything in the slots that its next owner has not written yet."""
    clean = make_scene(BORDERS, 6, 2, 32, poison=0.0)
    dirty = make_scene(BORDERS, 6, 2, 32, poison=poison)

    assert torch.equal(attend(clean, 6, 0.25), attend(dirty, 6, 0.25))


def test_a_token_gets_the_same_result_alone_and_among_others() -> None:
    together = make_scene([(40, 1), (3, 20), (200, 1), (17, 1)], 6, 2, 16)
    result = attend(together, 6, 0.25)
    first = 0
    for span in together.spans:
        tokens = slice(first, first + span.count)
        plan = TORCH.plan_attention([span], heads=6, kv_heads=2, head_dim=HEAD_DIM, block_size=16, dtype=torch.float32)
        alone = TORCH.paged_attention(together.qkv[tokens, :6], together.kv, plan, 0.25)
        torch.testing.assert_close(alone, result[tokens], rtol=1e-5, atol=1e-5)
        first += span.count


def test_keys_and_values_land_in_the_slots_of_their_positions() -> None:
    scene = make_scene([(6, 4), (0, 1)], 4, 2, 8, poison=-1.0)
    before = scene.kv.clone()

    TORCH.rope_and_cache_kv(scene.qkv.clone(), 4, None, scene.kv, scene.plan)

    written = torch.zeros(scene.kv.shape[0], 8, dtype=torch.bool)
    token = 0
    for span in scene.spans:
        for position in range(span.start, span.start + span.count):
            block, offset = span.table[position // 8], position % 8
            assert torch.equal(scene.kv[block, 0, :, offset], scene.qkv[token, 4:6])
            assert torch.equal(scene.kv[block, 1, :, offset], scene.qkv[token, 6:8])
            written[block, offset] = True
            token += 1
    untouched = ~written[:, None, None, :, None].expand_as(before)
    assert torch.equal(scene.kv[untouched], before[untouched])


def test_rotation_is_that_of_transformers() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    positions = torch.tensor([0, 1, 7, 500])
    inv_freq = 1.0 / (10_000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    angles = torch.cat((positions[:, None] * inv_freq,) * 2, dim=-1)
    scene = make_scene([(p, 1) for p in positions.tolist()], 4, 2, 8)
    q, k = scene.qkv[:, :4], scene.qkv[:, 4:6]
    q_expected, k_expected = apply_rotary_pos_emb(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], angles.cos()[None], angles.sin()[None]
    )

    cos_sin = TORCH.rope_angles(positions, inv_freq, 1.0, torch.float32)
    got = TORCH.rope_and_cache_kv(scene.qkv.clone(), 4, cos_sin, scene.kv, scene.plan)

    torch.testing.assert_close(got, q_expected[0].transpose(0, 1), rtol=1e-6, atol=1e-6)
    for i, span in enumerate(scene.spans):
        stored = scene.kv[span.table[span.start // 8], 0, :, span.start % 8]
        torch.testing.assert_close(stored, k_expected[0, :, i], rtol=1e-6, atol=1e-6)


def test_block_copies_read_every_source_before_they_write() -> None:
    kv = torch.arange(6.0)[:, None, None, None, None].expand(6, 2, 1, 4, 2).contiguous()

    TORCH.copy_blocks(kv, [(1, 2), (2, 3), (5, 1)])

    assert kv[:, 0, 0, 0, 0].tolist() == [0, 5, 1, 2, 4, 5]
    assert torch.equal(kv.amin(dim=(1, 2, 3, 4)), kv.amax(dim=(1, 2, 3, 4)))
