"""Grammars that wait: nobody's abandoned ones hold up anybody else's, and one tenant's many hold up only its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.core import EngineCore
from engine.protocol import AddRequest, Grammar, SamplingParams, TokenOutput
from engine.requests.sequence import Step, StepResult
from engine.sampling.grammar import jobs as grammar_jobs
from engine.sampling.grammar.compile import GrammarCompiler
from engine.sampling.grammar.errors import GrammarError, GrammarQueueFull
from engine.sampling.grammar.jobs import Compiling, FairQueue
from engine.sampling.grammar.matcher import Matcher
from engine.sampling.grammar.trial import SMALL, Trial
from tests.engine.fakes import ContentExecutor, run
from tests.models import VOCAB, write_tokenizer


def small(number: int) -> Grammar:
    return Grammar(kind="regex", text=f"small {number}")


def large(number: int) -> Grammar:
    return Grammar(kind="choice", text=json.dumps([f"choice {number} {place}" for place in range(SMALL // 10)]))


def until(predicate: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gated(GrammarCompiler):
    """Notes what it compiles; a large one ends when the test lets it, or when it is abandoned."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, VOCAB)
        self.gate = threading.Event()
        self.began: list[Grammar] = []

    def _compile(self, grammar: Grammar, trial: Trial) -> Matcher:
        self.began.append(grammar)
        if len(grammar.text) > SMALL:
            while not self.gate.wait(0.01):
                if trial.abandoned:
                    raise GrammarError("nobody waits for it")
        return super()._compile(grammar, trial)


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    write_tokenizer(tmp_path)
    compiler = Gated(tmp_path)
    yield compiler
    compiler.gate.set()


def test_what_nobody_waits_for_is_not_compiled(gated: Gated) -> None:
    jobs = [gated.compile(large(number)) for number in range(5)]
    until(lambda: jobs[0].began is not None)
    for job in jobs[:4]:
        gated.release(job)
    until(lambda: jobs[4].began is not None)
    assert gated.began == [large(0), large(4)]
    assert isinstance(jobs[0].exception(), GrammarError)
    assert all(job.cancelled() for job in jobs[1:4])
    gated.gate.set()
    assert jobs[4].result(20)


def test_one_that_another_still_waits_for_goes_on(gated: Gated) -> None:
    one, same = gated.compile(large(1)), gated.compile(large(1), "other")
    assert one is same
    gated.release(one)
    gated.gate.set()
    assert same.result(20)
    assert gated.compile(large(1)) is same


def test_an_abandoned_grammar_may_be_wanted_again(gated: Gated) -> None:
    first = gated.compile(large(1))
    until(lambda: first.began is not None)
    gated.release(first)
    again = gated.compile(large(1))
    assert again is not first
    gated.gate.set()
    assert again.result(20)


def test_a_small_grammar_does_not_wait_for_large_ones(gated: Gated) -> None:
    waiting = [gated.compile(large(number)) for number in range(6)]
    assert gated.compile(small(1)).result(20)
    assert not any(job.done() for job in waiting)


def test_one_tenant_can_fill_only_its_own_share(gated: Gated) -> None:
    jobs = [gated.compile(large(number), "greedy") for number in range(100)]
    full = [job for job in jobs if job.done()]
    assert all(isinstance(job.exception(), GrammarQueueFull) for job in full)
    assert 100 - grammar_jobs.MOST_LARGE - 1 <= len(full) <= 100 - grammar_jobs.MOST_LARGE
    other = gated.compile(large(200), "modest")
    assert not other.done()
    gated.gate.set()
    assert other.result(20)
    assert gated.began.index(large(200)) <= 2, "its turn came next"


def test_turns_go_to_who_used_least_time() -> None:
    queue = FairQueue()

    def put(tenant: str, *numbers: int) -> list[Compiling]:
        jobs = [Compiling(small(number)) for number in numbers]
        assert all(queue.put(tenant, job) for job in jobs)
        return jobs

    def take(seconds: float) -> Compiling:
        job = queue.take(only_small=False)
        assert job is not None
        queue.charge(job, seconds)
        return job

    a, b = put("a", 1, 2, 3), put("b", 4, 5, 6, 7, 8)
    assert [take(seconds) for seconds in (5.0, 1.0, 1.0, 1.0)] == [a[0], *b[:3]]
    # whoever comes later begins where the others are: it has no claim on the time before
    c = put("c", 9, 10)
    assert [take(1.0) for _ in range(6)] == [c[0], b[3], c[1], b[4], a[1], a[2]]
    assert queue.take(only_small=False) is None


class Following(ContentExecutor):
    """Takes the first token that a sequence's grammar allows."""

    def execute(self, step: Step) -> StepResult:
        super().execute(step)
        sequences = [one for span in step.spans if span.samples for one in (span.sequence, *span.forks)]
        masks = [one.shaping.mask(one.generated, VOCAB) for one in sequences if one.shaping]
        bits = [np.unpackbits(mask.view(np.uint8), bitorder="little") for mask in masks if mask is not None]
        return StepResult([int(row.argmax()) for row in bits])


def core_with(compiler: GrammarCompiler) -> EngineCore:
    executor = Following(64, 16)
    return EngineCore(executor, num_blocks=64, block_size=16, max_context=512, vocab_size=VOCAB, grammars=compiler)


def ask(name: str, grammar: Grammar, tenant: str = "") -> AddRequest:
    sampling = SamplingParams(max_tokens=1, temperature=0, seed=0, grammar=grammar)
    return AddRequest(request_id=name, session=name, prompt=(5, 6), sampling=sampling, tenant=tenant)


def outputs_until(core: EngineCore, name: str) -> TokenOutput:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for output in core.step()[0]:
            if output.request_id == name:
                return output
    raise AssertionError(f"no output of {name}")


def test_a_hundred_dropped_schemas_harm_nobody(gated: Gated) -> None:
    core = core_with(gated)
    for number in range(100):
        core.add(ask(f"dropped {number}", large(number)))
        core.abort(f"dropped {number}")
    core.add(ask("small", small(1)))
    core.add(ask("large", large(1000)))
    gated.gate.set()
    outputs = run(core)
    assert outputs.keys() == {"small", "large"}
    assert [found[-1].message for found in outputs.values()] == ["", ""]
    assert len(gated.began) < 60


def test_a_full_queue_is_told_as_one_that_may_be_tried_again(gated: Gated) -> None:
    core = core_with(gated)
    for number in range(12):
        core.add(ask(f"r{number}", large(number), "greedy"))
    refused = outputs_until(core, "r11")
    assert (refused.code, refused.message) == ("overloaded", "the grammar queue is full; try again later")
    for number in range(12):
        core.abort(f"r{number}")
    core.step()
    assert not core.has_work


def test_the_seconds_are_those_of_its_own_compilation(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sampling.grammar.queue.COMPILE_SECONDS", 0.3)
    core = core_with(gated)
    for name, number in (("first", 1), ("second", 2)):
        core.add(ask(name, large(number)))
    first = outputs_until(core, "first")
    assert "not compiled within 0.3 seconds" in first.message
    assert not any(output.request_id == "second" for output in core.step()[0]), "its own time has only just begun"
    monkeypatch.undo()
    gated.gate.set()
    second = outputs_until(core, "second")
    assert second.finish_reason == "length", second.message


def test_an_answer_may_be_aborted_before_the_grammar_is_there(gated: Gated) -> None:
    core = core_with(gated)
    core.add(msgspec.structs.replace(ask("r", large(1)), n=3))
    assert core.abort("r", 1) is None
    gated.gate.set()
    ends = sorted((output.index, output.finish_reason) for output in run(core)["r"] if output.finish_reason)
    assert ends == [(0, "length"), (1, "abort"), (2, "length")]
