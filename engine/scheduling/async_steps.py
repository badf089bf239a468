"""Async scheduling: the host decides on the next step while the device still computes the last one.

```
host    schedule 1 | schedule 2 | process 1, schedule 3 | process 2, schedule 4 | ...
device             | step 1 ......... | step 2 ............... | step 3 ........... | ...
```

A step is scheduled by lengths, and those are known before the tokens are. So each sequence that a step samples for is
promised a token, UNKNOWN for now, and the runner puts the real one in its place when the next step needs it. The
promise is kept when the step is processed. Only the end of an answer that a token brings (a stop token) is seen a step
late, and costs that one token.

A sequence whose next step needs its token here (a grammar, a beam) is promised nothing. It has nothing to compute until
its step is processed, so it sits out the steps between, and nobody waits for it:

```
step     1    2    3    4    5
plain    x    x    x    x    x
grammar  x         x         x
```
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.execution.builder import StepBuilder
from engine.execution.step_input import UNKNOWN, StepInput, StepResult
from engine.requests.sequence import BeamGroup, Sequence
from engine.scheduling.step import ScheduledStep


class Runner(Protocol):
    """A runner computes steps."""

    depth: int
    """Most steps that may be launched and not collected. With 1, a step is computed when it is collected."""

    @property
    def compilations(self) -> int:
        """Kernels compiled and graphs captured since `warm_up` ended: each made a step wait."""

    def launch(self, step: StepInput) -> None:
        """Start a step. A token that is UNKNOWN in it is the one that its row was given last."""

    def collect(self) -> StepResult:
        """The result of the oldest step launched."""


class Sample(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A token that a step will bring. A step makes many of them, hence no dataclass: these are made faster."""

    sequence: Sequence
    place: int
    """Among the sequence's tokens."""
    promised: bool
    """The sequence goes on as if it had the token."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One step on its way."""

    step: ScheduledStep
    at: float
    """The time at which its scheduling began, by time.perf_counter."""
    samples: list[Sample]
    """They stand in the order of `StepResult.tokens`."""
    groups: list[tuple[BeamGroup, int]]
    """The beams of the step, in the order of `StepResult.beams`, each group once, with its first beam's preemptions."""
    scored: list[Sequence]
    """They stand in the order of `StepResult.prompt_scores`."""


class AsyncSteps:
    """All steps on their way, oldest first."""

    def __init__(self, runner: Runner, builder: StepBuilder) -> None:
        self._runner = runner
        self._builder = builder
        self._launched: deque[Launched] = deque()
        self._processed = 0.0

    def __len__(self) -> int:
        return len(self._launched)

    @property
    def compilations(self) -> int:
        """See `Runner`."""
        return self._runner.compilations

    @property
    def depth(self) -> int:
        """Most steps that may be on their way."""
        return self._runner.depth

    def launch(self, step: ScheduledStep, at: float) -> Launched:
        """Start a step; its sequences are promised their tokens where the runner can go on without them."""
        data = self._builder.build(step)
        self._runner.launch(data)
        ahead = self._runner.depth > 1
        samples = []
        groups: dict[int, tuple[BeamGroup, int]] = {}
        for span in step.spans:
            if not span.samples:
                continue
            sequence = span.sequence
            if sequence.group is not None:
                groups[id(sequence.group)] = sequence.group, sequence.group.beams[0].preemptions
                continue
            promised = ahead and sequence.runs_ahead
            for one in (sequence, *span.forks) if span.forks else (sequence,):
                samples.append(Sample(one, len(one.tokens), promised))
                if promised:
                    one.tokens.append(UNKNOWN)
                    one.promised += 1
        scored = [step.spans[scores.span].sequence for scores in data.prompt_scores]
        self._launched.append(Launched(step, at, samples, list(groups.values()), scored))
        return self._launched[-1]

    def collect(self) -> tuple[Launched, StepResult, float]:
        """The oldest step, its result, and the seconds it took beyond the one before it."""
        launched = self._launched.popleft()
        result = self._runner.collect()
        now = time.perf_counter()
        duration = now - max(launched.at, self._processed)
        self._processed = now
        return launched, result, duration
