"""Sampling: exact sets for top-k and top-p, the right frequencies, and no dependence on the rest of the batch."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import torch_backend
from tests.kernels.rows import Row, pack

TORCH = torch_backend()

CHI_SQUARE_7_DOF_ONE_IN_A_MILLION = 42.0
"""Quantile 1 - 1e-6 of the chi-square distribution with 7 degrees of freedom is 41.0 (scipy.stats.chi2.ppf)."""


def sample(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0, first: int = 0
) -> list[int]:
    """One draw a row, at consecutive positions of one seed."""
    rows = len(logits)
    settings = [Row(temperature, top_k, top_p, seed=seed, position=first + place) for place in range(rows)]
    return TORCH.sample(logits, pack(settings, logits.shape[1])).tolist()


def test_temperature_zero_takes_the_largest_logit() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))

    assert sample(logits, temperature=0.0) == logits.argmax(-1).tolist() == TORCH.greedy(logits).tolist()


@pytest.mark.parametrize("temperature", [1e-12, 1e-30, 5e-324])
def test_the_coldest_temperatures_are_greedy_and_overflow_nothing(temperature: float) -> None:
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)) * 100

    assert sample(logits, temperature=temperature) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(("temperature", "seed"), [(1.0, 0), (0.5, 7), (2.0, 2**63 - 1)])
def test_tokens_come_as_often_as_their_probability_says(temperature: float, seed: int) -> None:
    draws = 8_000
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5])
    probabilities = torch.softmax(logits / temperature, -1)

    counts = torch.bincount(torch.tensor(sample(logits.expand(draws, -1), temperature, seed=seed)), minlength=8)

    chi_square = ((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert chi_square < CHI_SQUARE_7_DOF_ONE_IN_A_MILLION


def test_consecutive_positions_are_independent() -> None:
    """Pairs of neighbouring draws are as frequent as the product of their probabilities: 16 cells, 15 degrees."""
    draws = torch.tensor(sample(torch.zeros(8_000, 4)))
    pairs = torch.bincount(draws[:-1] * 4 + draws[1:], minlength=16)
    mean = (len(draws) - 1) / 16

    assert ((pairs - mean) ** 2 / mean).sum() < 60  # chi2.ppf(1 - 1e-6, 15) is 57.2


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Same seed and position, same token: alone, among others, at another place, with other settings around."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 500, generator=generator)
    settings = [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.8), (0.9, 40, 0.95), (1.0, 1, 1.0)]
    seeds, positions = [1, 1, 2, 3, 4, 5], [10, 10, 11, 12, 13, 14]

    def run(rows: list[int]) -> list[int]:
        chosen = [Row(*settings[r], seed=seeds[r], position=positions[r]) for r in rows]
        return TORCH.sample(logits[rows], pack(chosen, 500)).tolist()

    together = run([0, 1, 2, 3, 4, 5])

    assert run([5, 3, 1, 0, 2, 4]) == [together[r] for r in (5, 3, 1, 0, 2, 4)]
    assert [run([r])[0] for r in range(6)] == together


def test_seed_and_position_both_change_the_draw() -> None:
    logits = torch.zeros(20, 1000)

    assert sample(logits, seed=1) != sample(logits, seed=2)
    assert sample(logits, seed=1) != sample(logits, seed=1, first=20)
    assert len(set(sample(logits, seed=1))) > 15


@pytest.mark.parametrize("k", [1, 3, 10, 5000])
def test_top_k_draws_from_exactly_the_k_largest(k: int) -> None:
    logits = torch.linspace(0, 0.1, 20)[torch.randperm(20, generator=torch.Generator().manual_seed(0))]

    drawn = set(sample(logits.expand(1000, -1), top_k=k))

    assert drawn == set(logits.topk(min(k, 20)).indices.tolist())


@pytest.mark.parametrize(
    ("p", "kept"), [(0.05, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.71, 3), (0.9, 3), (0.95, 4), (1.0, 5)]
)
def test_top_p_draws_from_the_fewest_tokens_that_reach_p(p: float, kept: int) -> None:
    """Probabilities 0.4, 0.3, 0.2, 0.08, 0.02, in mixed order."""
    order = [3, 0, 4, 1, 2]
    logits = torch.empty(5)
    logits[order] = torch.tensor([0.4, 0.3, 0.2, 0.08, 0.02]).log()

    drawn = set(sample(logits.expand(1000, -1), top_p=p - 1e-4 if p < 1 else p))

    assert drawn == set(order[:kept])


def test_top_p_of_a_flat_distribution_over_a_large_vocabulary() -> None:
    """More candidates than the first look at the largest ones covers."""
    logits = torch.arange(20_000, dtype=torch.float32) * 1e-6

    drawn = sample(logits.expand(200, -1), top_p=0.5)

    cut = 10_000 - 30  # the larger half of the numbers holds a little more than half of the probability
    assert min(drawn) >= cut
    assert max(drawn) > 19_000
    assert min(drawn) < 11_000


def test_top_p_counts_what_top_k_and_temperature_have_left() -> None:
    """Of 0.4, 0.3, 0.2, 0.1, top-k 2 leaves 4/7 and 3/7: then top-p 0.57 keeps one token."""
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()

    assert set(sample(logits.expand(500, -1), top_k=2, top_p=0.57)) == {0}
    assert set(sample(logits.expand(500, -1), top_k=2, top_p=0.58)) == {0, 1}
