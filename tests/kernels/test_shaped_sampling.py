"""Penalties, bias, masks and min-p, against transformers' logits processors and formulas written out here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from kernels import ops
from tests.kernels.rows import Row, pack

CHI_SQUARE_7_DOF_ONE_IN_A_MILLION = 42.0
"""Quantile 1 - 1e-6 of the chi-square distribution with 7 degrees of freedom is 41.0 (scipy.stats.chi2.ppf)."""

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5])


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw(logits: torch.Tensor, row: Row, draws: int = 1_000) -> torch.Tensor:
    """How often each token of one row's logits comes, at consecutive positions."""
    rows = [replace(row, position=position) for position in range(draws)]
    tokens = ops.sample(logits.expand(draws, -1), pack(rows, len(logits)))
    return torch.bincount(tokens, minlength=len(logits))


def fits(counts: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """True when the counts are likely under the probabilities, by Pearson's test; nothing impossible was counted."""
    possible = probabilities > 0
    expected = counts.sum() * probabilities[possible]
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    return not counts[~possible].any() and bool(chi_square < CHI_SQUARE_7_DOF_ONE_IN_A_MILLION)


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    logits = noise(200, 40)
    seen = [{int(token): 0 for token in set(noise(20, seed=row).mul(10).abs().int().tolist())} for row in range(200)]
    expected = [
        RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([list(tokens)]), logits[row : row + 1].clone())[0]
        for row, tokens in enumerate(seen)
    ]
    rows = [Row(seen=tokens, repetition=1.5) for tokens in seen]

    got = ops.sample(logits, pack(rows, 40))

    assert got.tolist() == torch.stack(expected).argmax(-1).tolist()
    assert (got != logits.argmax(-1)).sum() > 20, "the penalty changed many of them"


@pytest.mark.parametrize(("frequency", "presence"), [(0.7, 0.0), (0.0, 0.9), (-0.5, 1.5), (2.0, -2.0)])
def test_frequency_and_presence_count_generated_tokens_only(frequency: float, presence: float) -> None:
    """OpenAI: logit[j] - count[j] * frequency - (count[j] > 0) * presence."""
    seen = {0: 2, 7: 1, 1: 0}
    expected = LOGITS.clone()
    expected[0] -= 2 * frequency + presence
    expected[7] -= frequency + presence

    counts = draw(LOGITS, Row(temperature=1.0, seen=seen, frequency=frequency, presence=presence))

    assert fits(counts, expected.softmax(-1))
    assert not fits(counts, LOGITS.softmax(-1))


def test_the_repetition_penalty_comes_before_the_other_two() -> None:
    """1.0 / 2 - 0.6 is below 0; had 0.6 been taken off first, 0.4 / 2 would still be above it."""
    logits = torch.tensor([1.0, 0.0])

    assert ops.sample(logits[None], pack([Row(seen={0: 1}, repetition=2.0, presence=0.6)], 2)).tolist() == [1]


def test_bias_is_added_to_what_the_penalties_left() -> None:
    expected = LOGITS.clone()
    expected[0] = expected[0] / 2 - 0.3 + 1.0
    expected[5] += 2.0

    counts = draw(LOGITS, Row(temperature=0.8, seen={0: 1}, repetition=2.0, presence=0.3, bias={0: 1.0, 5: 2.0}))

    assert fits(counts, (expected / 0.8).softmax(-1))


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, 100])
def test_a_mask_leaves_only_its_tokens(vocab: int) -> None:
    logits = noise(vocab)
    allowed = frozenset({0, vocab - 1, vocab // 2})
    without = torch.full_like(logits, -torch.inf)
    without[list(allowed)] = logits[list(allowed)]

    assert ops.sample(logits[None], pack([Row(allowed=allowed)], vocab)).item() == without.argmax()
    assert fits(draw(logits, Row(temperature=1.0, allowed=allowed)), without.softmax(-1))


def test_bits_beyond_the_vocabulary_do_not_matter() -> None:
    rows = pack([Row(allowed=frozenset({3}))], 40)
    assert rows.mask is not None
    rows.mask.bits[0, 1] |= -(2**8) * 2**8  # tokens 48 .. 63 of a vocabulary of 40

    assert ops.sample(torch.zeros(1, 40), rows).tolist() == [3]


def test_the_only_token_left_is_taken_whatever_its_noise() -> None:
    """The uniform number of token 5 there is so near to 1 that float32 rounds it to 1, hence its noise is -inf.

    Found by hashing: one (seed, position, token) in 2^25 is like this.
    """
    row = Row(temperature=1.0, seed=0, position=6_965_001, allowed=frozenset({5}))

    assert ops.sample(torch.zeros(1, 8), pack([row], 8)).tolist() == [5]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_what_transformers_keeps(temperature: float, min_p: float) -> None:
    expected = MinPLogitsWarper(min_p)(None, (LOGITS / temperature)[None].clone())[0]

    assert fits(draw(LOGITS, Row(temperature=temperature, min_p=min_p)), expected.softmax(-1))


@pytest.mark.parametrize(("min_p", "top_k", "top_p"), [(0.1, 5, 0.9), (0.2, 3, 0.6), (0.01, 7, 0.8), (0.4, 2, 0.99)])
def test_filters_apply_in_the_order_of_vllm(min_p: float, top_k: int, top_p: float) -> None:
    """Temperature, min-p, top-k, top-p, each by transformers' own processor."""
    scores = (LOGITS / 1.3)[None].clone()
    for warper in (MinPLogitsWarper(min_p), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
        scores = warper(None, scores)

    counts = draw(LOGITS, Row(temperature=1.3, min_p=min_p, top_k=top_k, top_p=top_p))

    assert fits(counts, scores[0].softmax(-1))


def test_filters_count_only_what_the_mask_allows() -> None:
    allowed = frozenset({3, 4, 5, 6})
    counts = draw(LOGITS, Row(temperature=1.0, top_k=2, allowed=allowed))

    assert counts.nonzero().squeeze(-1).tolist() == [3, 4]


def test_logits_stay_as_they_are() -> None:
    logits = noise(2, 8)
    before = logits.clone()
    rows = [Row(seen={1: 1}, repetition=2.0, bias={2: 5.0}, allowed=frozenset({1, 2})), Row(temperature=1.0)]

    ops.sample(logits, pack(rows, 8))

    assert torch.equal(logits, before)


def test_penalties_of_half_precision_logits_are_taken_in_float32() -> None:
    """In bfloat16, 100 - 0.2 is 100 again, and the lowest id would win."""
    logits = torch.full((1, 2), 100.0, dtype=torch.bfloat16)

    assert ops.sample(logits, pack([Row(seen={0: 1}, presence=0.2)], 2)).tolist() == [1]


tokens = st.integers(0, 69)
rows_of_any_kind = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.integers(0, 80),
    top_p=st.floats(0.05, 1.0),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**20),
    seen=st.dictionaries(tokens, st.integers(0, 3), max_size=5),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=4),
    allowed=st.none() | st.frozensets(tokens, min_size=1, max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_of_any_kind, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_row_of_any_kind_does_not_depend_on_its_neighbours(rows: list[Row], random: object) -> None:
    logits = noise(len(rows), 70)
    together = ops.sample(logits, pack(rows, 70)).tolist()
    order = list(range(len(rows)))
    random.shuffle(order)

    assert ops.sample(logits[order], pack([rows[r] for r in order], 70)).tolist() == [together[r] for r in order]
    assert [ops.sample(logits[r : r + 1], pack([rows[r]], 70)).item() for r in order] == [together[r] for r in order]
    assert all(row.allowed is None or token in row.allowed for row, token in zip(rows, together, strict=True))


@pytest.mark.parametrize("count", [0, 1, 20, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_log_softmax_in_float32(count: int, dtype: torch.dtype) -> None:
    logits = (noise(5, 100) * 4).to(dtype)
    chosen = torch.tensor([3, 50, 99, 0, 7])
    expected = torch.log(torch.softmax(logits.double(), -1))

    found = ops.logprobs(logits, chosen, count)

    assert torch.allclose(found.chosen.double(), expected[range(5), chosen], atol=1e-5)
    assert found.ranks.tolist() == [1 + int((expected[r] > expected[r, t]).sum()) for r, t in enumerate(chosen)]
    assert found.top.shape == found.top_tokens.shape == (5, min(count, 100))
    assert torch.allclose(found.top.double(), expected.sort(-1, descending=True).values[:, :count], atol=1e-5)
    assert torch.allclose(found.top.double(), expected.gather(1, found.top_tokens), atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_is_no_distribution_gets_token_0_and_harms_nobody(bad: float, dtype: torch.dtype) -> None:
    rows = [
        Row(),
        Row(temperature=1.0),
        Row(temperature=1.0, top_k=3),
        Row(temperature=1.0, top_p=0.5),
        Row(temperature=1.0, min_p=0.1),
        Row(temperature=1e-30, seen={1: 2}, repetition=1.3),
        Row(temperature=0.7, bias={2: 5.0}),
    ]
    logits = noise(2 * len(rows), 40).to(dtype)
    expected = ops.sample(logits, pack(rows * 2, 40))
    spoilt = logits.clone()
    spoilt[: len(rows)] = bad
    if bad != float("-inf"):
        spoilt[: len(rows), 1:] = logits[: len(rows), 1:]  # one is enough

    got = ops.sample(spoilt, pack(rows * 2, 40))

    assert got[: len(rows)].tolist() == [0] * len(rows)
    assert got[len(rows) :].tolist() == expected[len(rows) :].tolist()
    assert ops.greedy(spoilt).tolist() == [0] * len(rows) + logits[len(rows) :].argmax(-1).tolist()


def test_a_mask_that_leaves_only_impossible_tokens_gives_the_first_of_them() -> None:
    logits = LOGITS.clone()
    logits[[3, 5]] = float("-inf")
    rows = [Row(temperature=temperature, allowed=frozenset({3, 5})) for temperature in (0.0, 1.0)]
    assert ops.sample(logits.expand(2, -1), pack(rows, 8)).tolist() == [3, 3]


@pytest.mark.parametrize("size", [1e4, 3e4])
@pytest.mark.parametrize("repetition", [0.01, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-38, 2.0])
def test_at_their_bounds_penalties_leave_a_distribution(size: float, repetition: float, temperature: float) -> None:
    """The bounds are those of engine.protocol.sampling; bfloat16 logits of 30,000 are far beyond any model's."""
    logits = (noise(6, 40) * size).to(torch.bfloat16)
    seen = dict.fromkeys(range(0, 40, 2), 10**6)
    rows = [
        Row(temperature, seed=seed, top_k=2**31 - 1, top_p=top_p, min_p=min_p, seen=seen, repetition=repetition)
        for seed, (top_p, min_p) in enumerate([(1.0, 0.0), (1e-45, 0.0), (1.0, 1.0), (0.5, 0.5)])
    ]
    rows += [replace(rows[0], frequency=two, presence=two, bias={3: 50 * two}) for two in (-2.0, 2.0)]
    tokens = ops.sample(logits, pack(rows, 40))
    assert all(0 <= token < 40 for token in tokens.tolist())
