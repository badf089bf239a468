"""Large grammars that would end or hold up the engine do so to another process."""

from __future__ import annotations

import json
import threading
import time

import pytest

from engine.protocol import Grammar
from engine.sampling.grammar import trial as grammar_trial
from engine.sampling.grammar.queue import GrammarError
from engine.sampling.grammar.trial import SMALL, Trial


def test_a_long_chain_of_references_which_overflows_the_stack_is_refused() -> None:
    rules = [f"r{number}: r{number + 1} r{number + 1}" for number in range(5000)]
    with pytest.raises(GrammarError, match="too deeply nested to compile; simplify it"):
        Trial().run(Grammar(kind="lark", text="\n".join(["start: r0", *rules, 'r5000: "a"'])))


def test_a_regex_that_takes_minutes_is_refused_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "TRIAL_SECONDS", 1)
    with pytest.raises(GrammarError, match="takes more than 1 seconds"):
        Trial().run(Grammar(kind="regex", text=".*" * 65_000))


def test_a_large_grammar_may_be_used() -> None:
    Trial().run(Grammar(kind="choice", text=json.dumps([f"choice {number}" for number in range(1000)])))


def test_what_is_wrong_with_a_large_grammar_is_left_to_the_compiler() -> None:
    Trial().run(Grammar(kind="regex", text="(" * (SMALL + 1)))


def test_a_small_grammar_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial.subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    Trial().run(Grammar(kind="regex", text="a" * SMALL))


def test_a_trial_that_is_abandoned_ends_at_once() -> None:
    trial = Trial()
    threading.Timer(0.5, trial.abandon).start()
    began = time.monotonic()
    with pytest.raises(GrammarError, match="nobody waits"):
        trial.run(Grammar(kind="regex", text=".*" * 65_000))
    assert time.monotonic() - began < 4  # TRIAL_SECONDS is 5
    with pytest.raises(GrammarError, match="nobody waits"):
        trial.run(Grammar(kind="regex", text=".*" * 65_000))
