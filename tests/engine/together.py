"""Two runners behind one engine: each step goes to both, as bytes, and both must say the same."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from engine.core import EngineCore
from engine.execution.step_input import UNKNOWN, StepInput, StepResult, decode_step, encode_step
from engine.protocol import AddRequest, BeamParams, SamplingParams, TokenLogprobs, TokenOutput
from engine.scheduling.async_steps import Runner


class Together:
    """`first` may run ahead; `second` computes each step at once, with the first one's tokens for UNKNOWN ones."""

    def __init__(self, first: Runner, second: Runner) -> None:
        assert second.depth == 1
        self.depth = first.depth
        self.compilations = 0
        self._first, self._second = first, second
        self._waiting: deque[StepInput] = deque()
        self._newest: dict[int, int] = {}
        self.steps = 0

    def launch(self, step: StepInput) -> None:
        frame = encode_step(step)
        self._first.launch(decode_step(frame))
        self._waiting.append(decode_step(frame))

    def collect(self) -> StepResult:
        step, found = self._waiting.popleft(), self._first.collect()
        ids, owners = step.token_ids.copy(), np.repeat(step.rows, step.counts)
        for place in np.flatnonzero(ids == UNKNOWN).tolist():
            ids[place] = self._newest[int(owners[place])]
        edits = tuple(self._with_newest(edit, int(step.sample_rows[edit.sample])) for edit in step.edits)
        self._second.launch(dataclasses.replace(step, token_ids=ids, edits=edits))
        expected = self._second.collect()
        self._newest.update(zip(step.sample_rows.tolist(), found.tokens, strict=True))
        self.steps += 1
        assert found.tokens == expected.tokens
        for one, other in zip(found.beams, expected.beams, strict=True):
            assert one[1] == pytest.approx(other[1], abs=1e-4)
            assert one[0][0] == other[0][0]
        assert_alike(found.logprobs, expected.logprobs)
        for mine, theirs in zip(found.prompt_scores, expected.prompt_scores, strict=True):
            assert_alike(mine, theirs)
        return found

    def _with_newest(self, edit: Any, row: int) -> Any:
        """The edit as the host would have written it, had it known the newest token."""
        if not edit.newest_unknown:
            return edit
        newest, tokens, counts = self._newest[row], edit.tokens.tolist(), edit.counts.tolist()
        if newest not in tokens:
            tokens, counts = [*tokens, newest], [*counts, 0]
        counts[tokens.index(newest)] += 1
        new = {"tokens": np.array(tokens, np.int32), "counts": np.array(counts, np.int32), "newest_unknown": False}
        return dataclasses.replace(edit, **new)


def assert_alike(mine: list[TokenLogprobs | None], theirs: list[TokenLogprobs | None]) -> None:
    """The same tokens, as likely but for rounding."""
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if one and other:
            assert one.token == other.token
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)


def random_history(core: EngineCore, seed: int, requests: int = 40) -> dict[str, list[TokenOutput]]:
    """Requests of every kind come while others run, in a pool that is too small: chats that go on with other settings,
    forks, beams, penalties, log probabilities, aborts. Runs until all have ended; the outputs by request."""
    rng = random.Random(seed)
    outputs: dict[str, list[TokenOutput]] = {}

    def step() -> None:
        for output in core.step()[0]:
            outputs.setdefault(output.request_id, []).append(output)

    stem = [rng.randrange(200) for _ in range(21)]
    for name in range(requests):
        session = f"chat{rng.randrange(6)}"
        known = core.sessions.get(session)
        history = list(known.tokens or ()) if known and rng.random() < 0.7 else stem[: rng.choice([0, 7, 21])]
        prompt = [*history[:90], *(rng.randrange(200) for _ in range(rng.randint(1, 12)))]
        how: dict[str, Any] = rng.choice(
            [
                {},
                {},
                {"temperature": 0.9, "top_k": 40},
                {"temperature": 1.3, "top_p": 0.8, "min_p": 0.02},
                {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
                {"logit_bias": ((3, 5.0), (4, -8.0)), "min_tokens": 3},
                {"allowed_token_ids": tuple(range(10, 60)), "temperature": 1.0},
                {"logprobs": 3},
                {"prompt_logprobs": 2, "logprobs": 0, "repetition_penalty": 1.1},
            ]
        )
        sampling = SamplingParams(
            **{"temperature": 0.0, **how}, max_tokens=rng.randint(1, 24), seed=name, stop_token_ids=(5, 11)
        )
        plain = not how or set(how) <= {"temperature", "top_k"}
        beam = BeamParams(width=3) if not how and rng.random() < 0.2 else None
        n = 3 if beam or (plain and rng.random() < 0.2) else 1
        core.add(
            AddRequest(
                request_id=str(name),
                session=session,
                prompt=tuple(prompt),
                sampling=sampling,
                n=n,
                beam=beam,
                keep=rng.random() < 0.6,
                priority=rng.choice([0, 0, 0, -1, 1]),
            )
        )
        for _ in range(rng.randint(0, 5)):
            step()
        if rng.random() < 0.1:
            core.abort(str(rng.randrange(name + 1)))
    while core.has_work:
        step()
    core.blocks.check()
    return outputs
