"""The attention kernels in Triton's interpreter, against attention in plain loops; and the host's part of the work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels.triton as triton_kernels
from kernels.triton.plan import plan_decode
from kernels.triton.sharing import WORTH_READING_ONCE, find_sharing
from kernels.triton.work import WIDE_ROWS, Runs, narrow_rows, plan_work
from tests.kernels.test_attention import HEAD_DIM, Scene, expected, make_scene

SPANS = [(0, 1), (15, 1), (16, 1), (70, 1), (0, 2), (5, 3), (30, 40), (300, 1)]


def attend(scene: Scene, heads: int, kv_heads: int, block_size: int, **options: float) -> torch.Tensor:
    plan = triton_kernels.plan_attention(
        scene.spans,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        block_size=block_size,
        dtype=scene.kv.dtype,
        device="cpu",
    )
    plan.parts.fill_(float("nan"))
    q = triton_kernels.rope_and_cache_kv(scene.qkv.clone(), heads, None, scene.kv, plan)
    return triton_kernels.paged_attention(q, scene.kv, plan, 0.25, **options)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "block_size"), [(4, 4, 16), (6, 2, 32), (8, 1, 64), (24, 2, 16), (24, 1, 16), (71, 1, 32)]
)
def test_a_mixed_batch_attends_as_plain_attention_does(heads: int, kv_heads: int, block_size: int) -> None:
    """Decode, prefill and a split sequence, on both sides of block borders; unused slots and outputs are NaN."""
    scene = make_scene(SPANS, heads, kv_heads, block_size)

    got = attend(scene, heads, kv_heads, block_size)

    torch.testing.assert_close(got, expected(scene, heads, 0.25), rtol=1e-5, atol=1e-5)


def test_float16() -> None:
    scene = make_scene(SPANS[2:6], 4, 2, 16)
    exact = expected(scene, 4, 0.25)
    scene.qkv, scene.kv = scene.qkv.half(), scene.kv.half()

    got = attend(scene, 4, 2, 16)

    torch.testing.assert_close(got.float(), exact, rtol=5e-3, atol=5e-3)


def test_a_window_hides_what_is_too_far_back_and_a_cap_bounds_the_scores() -> None:
    scene = make_scene([(40, 1), (0, 30)], 2, 1, 16)

    got = attend(scene, 2, 1, 16, window=9, soft_cap=2.0)

    rows, first = [], 0
    for span, keys, values in zip(scene.spans, scene.keys, scene.values, strict=True):
        for i in range(span.count):
            seen = slice(max(0, span.start + i - 8), span.start + i + 1)
            scores = 2.0 * torch.tanh(scene.qkv[first + i, :2] @ keys[seen, 0].T * 0.25 / 2.0)
            rows.append(scores.softmax(-1) @ values[seen, 0])
        first += span.count
    torch.testing.assert_close(got, torch.stack(rows), rtol=1e-5, atol=1e-5)


def test_blocks_that_several_tables_hold_are_read_once_and_change_nothing() -> None:
    """Six sequences share 512 tokens, three of them 256 more; one shares nothing."""
    lengths = [800, 790, 769, 600, 515, 513, 90]
    scene = make_scene([(n - 1, 1) for n in lengths], 4, 2, 16)
    tables = [list(span.table) for span in scene.spans]
    for i, common in enumerate([768, 768, 768, 512, 512, 512]):
        tables[i][: common // 16] = tables[0][: common // 16]
        scene.keys[i][:common], scene.values[i][:common] = scene.keys[0][:common], scene.values[0][:common]

    plan, order = plan_decode(lengths, tables, heads=4, kv_heads=2, head_dim=HEAD_DIM, block_size=16, device="cpu")
    q = triton_kernels.rope_and_cache_kv(scene.qkv[torch.from_numpy(order).long()], 4, None, scene.kv, plan)
    got = triton_kernels.paged_attention(q, scene.kv, plan, 0.25)

    items = torch.cat((plan.narrow.items.view(-1, 6), plan.wide.items.view(-1, 6)))
    assert int((items[:, 4] - items[:, 3]).sum()) == 512 + sum(lengths) - 6 * 512
    wanted = expected(scene, 4, 0.25)[torch.from_numpy(order).long()]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@st.composite
def trees(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Block tables with random sharing of prefixes, and how many full blocks each has."""
    count = draw(st.integers(1, 12))
    tables = np.zeros((count, 200), dtype=np.int32)
    fresh = iter(range(1, 10_000))
    full = np.zeros(count, dtype=np.int32)
    for i in range(count):
        full[i] = draw(st.integers(0, 190))
        tables[i, : full[i] + 1] = [next(fresh) for _ in range(full[i] + 1)]
        if i and draw(st.booleans()):
            parent = draw(st.integers(0, i - 1))
            common = draw(st.integers(0, int(min(full[i], full[parent]))))
            tables[i, :common] = tables[parent, :common]
    return tables, full


@settings(max_examples=200, deadline=None)
@given(trees())
def test_every_key_of_every_sequence_is_read_exactly_once_for_it(tree: tuple[np.ndarray, np.ndarray]) -> None:
    """Own part and shared nodes together cover each sequence's blocks, with the very blocks its table has."""
    tables, full = tree
    rows = np.arange(len(tables), dtype=np.int32)

    sharing = find_sharing(tables, rows, full, 16)

    assert sorted(sharing.order.tolist()) == rows.tolist()
    for place, sequence in enumerate(sharing.order):
        covered = np.zeros(201 * 16, dtype=int)
        covered[sharing.own[place] : full[sequence] * 16 + 1] += 1
        for first, count, start, stop in sharing.nodes:
            assert (count - 1) * (stop - start) >= WORTH_READING_ONCE
            if first <= place < first + count:
                covered[start:stop] += 1
                leader = sharing.order[first]
                assert (tables[sequence, : stop // 16] == tables[leader, : stop // 16]).all()
        assert (covered[: full[sequence] * 16 + 1] == 1).all()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3000), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([1, 4, 12, 16, 17, 24, 71, 128]),
)
def test_items_cover_each_run_once_and_parts_are_merged_whole(shapes: list[tuple[int, int, bool]], group: int) -> None:
    kv_heads = 2
    runs, first = [], 0
    for row, (queries, before, causal) in enumerate(shapes):
        runs.append((first, queries, row, 0, before + queries, causal))
        first += queries

    work = plan_work(Runs.of(runs), first, group=group, kv_heads=kv_heads, programs=64)

    read = dict.fromkeys(range(first), 0)
    parts_of: dict[int, list[int]] = {query: [] for query in range(first)}
    for items, most in ((work.narrow, narrow_rows(group)), (work.wide, WIDE_ROWS)):
        for begin, queries, _, start, stop, part in items.tolist():
            assert queries * group <= most
            assert start < stop
            for i in range(queries):
                read[begin + i] += stop - start
                if part >= 0:
                    parts_of[begin + i].append(part + i)
    for begin, queries, _, start, stop, causal in runs:
        for i in range(queries):
            seen = stop - start - (queries - 1 - i if causal else 0)
            assert seen <= read[begin + i] <= stop - start
    merged = {query: sorted(work.entries[a:b].tolist()) for query, a, b in work.merges.tolist()}
    assert merged == {query: sorted(parts) for query, parts in parts_of.items() if parts}
    assert sorted(p for parts in parts_of.values() for p in parts) == list(range(work.parts))


@pytest.mark.parametrize("group", [1, 8, 16, 17, 24, 71, 128])
def test_however_many_heads_share_a_key_value_head_decoding_takes_the_narrow_kernel(group: int) -> None:
    """A graph of decode steps has room for a narrow item a sequence, and for no wide one where nothing is shared."""
    runs = Runs.of([(i, 1, i, 0, 500 + i, False) for i in range(64)])

    work = plan_work(runs, 64, group=group, kv_heads=1, programs=528)

    assert not len(work.wide)
    assert len(work.narrow) >= 64


@pytest.mark.parametrize(
    ("lengths", "pieces"),
    [
        ([1024] * 64, 1),  # 512 programs are at work at once as it is
        ([1168] * 16, 4),  # four times as many are, so as to be done in one round
        ([32768], 64),
        ([100] * 3, 1),
        ([4096] * 256, 1),
    ],
)
def test_runs_are_cut_so_that_all_programs_have_something_to_read(lengths: list[int], pieces: int) -> None:
    runs = Runs.of([(i, 1, i, 0, length, False) for i, length in enumerate(lengths)])

    work = plan_work(runs, len(lengths), group=4, kv_heads=8, programs=528)

    assert len(work.narrow) == pieces * len(lengths)


def test_a_ragged_batch_is_cut_where_it_is_long() -> None:
    lengths = [int(100 * 160 ** (i / 63)) for i in range(64)]
    runs = Runs.of([(i, 1, i, 0, length, False) for i, length in enumerate(lengths)])

    work = plan_work(runs, 64, group=4, kv_heads=8, programs=528)

    sizes = work.narrow[:, 4] - work.narrow[:, 3]
    assert sizes.max() < 16000 / 3
    assert (np.diff(sizes) <= 0).all(), "longest first"
    assert sum(lengths) == sizes.sum()
