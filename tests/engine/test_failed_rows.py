"""A row whose logits are not finite fails alone: its request ends with words, and everybody else's tokens stay."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from engine.core import EngineCore
from engine.execution.step_input import FAILED, StepInput, StepResult
from engine.protocol import AddRequest
from tests.engine.fakes import AheadExecutor, ContentExecutor, expected_answer, request, run, tokens_of

PROMPT = [1, 2, 3]
BROKEN_SEED = 77


class Breaking(ContentExecutor):
    """A model that says NaN from a place on, to sequences of one seed."""

    from_place = 0

    def execute(self, step: StepInput) -> StepResult:
        result = super().execute(step)
        broken = (step.settings["seed"] == BROKEN_SEED) & (step.places >= self.from_place)
        tokens = [FAILED if bad else token for token, bad in zip(result.tokens, broken.tolist(), strict=True)]
        return msgspec.structs.replace(result, tokens=tokens)


class BreakingAhead(Breaking, AheadExecutor):
    def launch(self, step: StepInput) -> None:
        super().launch(step)
        # as the device does: what is fed to the next step must name a token
        self._newest = {row: max(0, token) for row, token in self._newest.items()}


def broken(name: str, n: int = 1, seed: int = BROKEN_SEED) -> AddRequest:
    message = request(name, PROMPT, 20, n=n, keep=True)
    return msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, seed=seed))


@pytest.mark.parametrize("executor", [Breaking, BreakingAhead])
@pytest.mark.parametrize("good", [0, 1, 5])
def test_it_ends_its_own_request_with_words(executor: Callable[[int, int], Breaking], good: int) -> None:
    fake = executor(64, 4)
    fake.from_place = len(PROMPT) + good
    core = EngineCore(fake, num_blocks=64, block_size=4, max_context=256, vocab_size=50)
    for number in range(3):
        core.add(request(f"fine {number}", PROMPT, 20))
    core.add(broken("broken"))
    outputs = run(core)
    last = outputs["broken"][-1]
    assert (last.finish_reason, last.code, last.tokens) == ("error", "internal", ())
    assert "not finite" in last.message
    assert tokens_of(outputs["broken"]) == expected_answer(PROMPT, 20, seed=BROKEN_SEED)[:good]
    for number in range(3):
        assert tokens_of(outputs[f"fine {number}"]) == expected_answer(PROMPT, 20)
    # nothing is left, nothing of it is charged, and the engine goes on
    core.blocks.check()
    usage = {one.name: one.generated_tokens for one in core.accounting.usage(0).sessions}
    assert usage["chat-broken"] == good
    assert len(tokens_of(run_one(core, request("after", PROMPT, 4)))) == 4


@pytest.mark.parametrize("executor", [Breaking, BreakingAhead])
def test_one_of_several_answers_ends_all_of_its_request(executor: Callable[[int, int], Breaking]) -> None:
    # answer i has seed + i: the second one breaks
    core = EngineCore(executor(64, 4), num_blocks=64, block_size=4, max_context=256, vocab_size=50)
    core.add(broken("broken", n=3, seed=BROKEN_SEED - 1))
    core.add(request("fine", PROMPT, 20))
    outputs = run(core)
    assert [output.finish_reason for output in outputs["broken"] if output.finish_reason] == ["error"]
    assert tokens_of(outputs["fine"]) == expected_answer(PROMPT, 20)
    assert core.blocks.pool.available == 64
    core.blocks.check()


def run_one(core: EngineCore, message: AddRequest) -> list:
    core.add(message)
    return run(core)[message.request_id]
