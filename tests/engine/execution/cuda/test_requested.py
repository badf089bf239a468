"""What a step asks for beside plain tokens, launched on a device, is what the sampler that computes at once finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.execution.cuda.requested import Requested, Sources, device_rows
from engine.execution.sampler import sample_step
from engine.execution.step_input import FAILED, SAMPLING, LogitsEdit, PromptScores, StepInput
from kernels.backend import torch_backend
from kernels.triton.draw import draw

VOCAB = 300
NEWEST = 17
"""The token that every row was given last."""


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def packed(allowed: list[int]) -> np.ndarray:
    flags = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    flags[allowed] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def step_of(edits: list[LogitsEdit], temperatures: list[float], logprobs: list[int]) -> StepInput:
    count = len(temperatures)
    settings = np.zeros(count, SAMPLING)
    settings["temperature"], settings["top_p"], settings["seed"] = temperatures, 0.9, range(count)
    rows = np.arange(count, dtype=np.int32)
    return StepInput(
        number=0,
        rows=rows + 3,
        starts=rows + 5,
        counts=np.ones(count, np.int32),
        token_ids=np.full(count, -1, np.int32),
        sampled=rows,
        sample_rows=rows + 3,
        settings=settings,
        logprobs=ints(*logprobs),
        edits=tuple(edits),
    )


def launched(step: StepInput, logits: torch.Tensor, order: np.ndarray) -> tuple[Requested, torch.Tensor]:
    """As the GPU's runner does behind a graph whose batch stands in another order than the step."""
    newest = torch.full((12,), NEWEST, dtype=torch.int32)
    before = newest[torch.from_numpy(step.sample_rows[[edit.sample for edit in step.edits]]).long()]
    entries = np.argsort(order)
    out = torch.empty(len(step.sampled), dtype=torch.int32)
    draw(logits[order], device_rows(step, order, "cpu"), out, newest, torch.from_numpy(step.sample_rows[order]))
    sources = Sources(logits[order], out, entries[step.sampled], entries[[span for span, _ in step.beams]].astype(int))
    return Requested.launch(step, sources, lambda hidden: hidden, newest, before, "cpu"), newest


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_edits_count_the_token_that_only_the_device_knows(temperature: float) -> None:
    """Penalties, a bias and a mask of some rows, among rows that want none of it."""
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(1)) * 3
    logits[:, NEWEST] = 9.0
    penalties = {"repetition": 1.7, "frequency": 0.5, "presence": 1.5}
    bias = {"bias_tokens": ints(7, 9), "bias_values": np.float32([4, -30])}
    mask = {"mask": packed([1, 5, NEWEST, 299])}
    known = [  # as the host will know it, a step later
        LogitsEdit(1, tokens=ints(4, NEWEST), counts=ints(2, 1), **penalties),
        LogitsEdit(2, tokens=ints(NEWEST, 8), counts=ints(3, 0), **penalties, **bias),
        LogitsEdit(4, **mask),
    ]
    unknown = [
        LogitsEdit(1, tokens=ints(4), counts=ints(2), newest_unknown=True, **penalties),
        LogitsEdit(2, tokens=ints(NEWEST, 8), counts=ints(2, 0), newest_unknown=True, **penalties, **bias),
        LogitsEdit(4, **mask),
    ]
    order = np.array([3, 0, 4, 2, 1])

    requested, newest = launched(step_of(unknown, [temperature] * 5, [-1, 3, -1, 0, -1]), logits, order)
    found = requested.result(0.0)

    tokens, logprobs = sample_step(logits, step_of(known, [temperature] * 5, [-1, 3, -1, 0, -1]), torch_backend())
    assert found.tokens == tokens
    assert newest[3:8].tolist() == tokens
    assert [one and (one.token, one.rank, len(one.top)) for one in found.logprobs] == [
        one and (one.token, one.rank, len(one.top)) for one in logprobs
    ]
    assert [one.logprob for one in found.logprobs if one] == pytest.approx([one.logprob for one in logprobs if one])


def test_a_row_that_is_not_finite_fails_alone() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(2))
    logits[1, 100], logits[2, 299] = float("nan"), float("inf")
    step = step_of([LogitsEdit(2, mask=packed([1, 299]))], [0.0, 0.7, 0.0, 0.7], [-1, 1, -1, 1])

    requested, newest = launched(step, logits, np.arange(4))
    found = requested.result(0.0)

    tokens, _ = sample_step(logits, step, torch_backend())
    assert found.tokens == tokens
    assert [token == FAILED for token in tokens] == [False, True, True, False]
    assert newest.min() >= 0, "what the next step looks up is a token"


def test_beams_and_prompts_come_in_the_order_of_the_step() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    step = step_of([], [0.0, 0.0, 0.0], [-1, -1, -1])
    nothing = ints()
    scores = (PromptScores(1, 0, ints(5, 6), 2),)
    step = StepInput(
        0, step.rows, step.starts, ints(1, 3, 1), ints(*[1] * 5), beams=((2, 4), (0, 2)), prompt_scores=scores
    )
    hidden = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(4))
    sources = Sources(logits, torch.empty(0, dtype=torch.int32), nothing, np.array([2, 0]), hidden)

    found = Requested.launch(step, sources, lambda rows: rows, torch.zeros(12, dtype=torch.int32), None, "cpu").result(
        0
    )

    assert [ids for ids, _ in found.beams] == [logits[2].topk(4).indices.tolist(), logits[0].topk(2).indices.tolist()]
    expected = hidden[1:3].log_softmax(-1)
    assert [one.logprob for one in found.prompt_scores[0]] == pytest.approx(
        [float(expected[0, 5]), float(expected[1, 6])]
    )
    assert found.tokens == []
