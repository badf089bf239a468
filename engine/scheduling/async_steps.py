"""Steps that were launched and whose tokens have not been taken in yet: what lets the host work while the device does.

```
host      schedule 1 | schedule 2 | take in 1, schedule 3 | take in 2, schedule 4 | ...
device               | step 1 ......... | step 2 ............... | step 3 ........... | ...
```

A step is scheduled by lengths, and those are known before the tokens are: each sequence is promised a token, and the
promise is kept when its step lands. Only the end of an answer that a token brings (a stop token) is seen a step late,
and costs that one token.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.requests.sequence import UNKNOWN, Sequence, Step, StepResult


class Executor(Protocol):
    """What computes a step."""

    def execute(self, step: Step) -> StepResult: ...


@runtime_checkable
class PipelinedExecutor(Protocol):
    """One that starts a step before the tokens of the step before it have been collected.

    A token that is UNKNOWN in such a step is the one its sequence was given last.
    """

    depth: int
    """Most steps that may be launched and not collected."""

    def launch(self, step: Step) -> None: ...

    def collect(self) -> StepResult:
        """The result of the oldest step launched."""


@dataclass(slots=True)
class Flight:
    """One step on its way."""

    step: Step
    launched: float
    promised: list[tuple[Sequence, int]]
    """Sequences, each with the place among its tokens of the one this step brings."""


class Flights:
    """All steps on their way, oldest first. An executor that is not pipelined computes a step when it lands."""

    def __init__(self, executor: Executor | PipelinedExecutor) -> None:
        self._executor = executor
        self._pipeline = executor if isinstance(executor, PipelinedExecutor) else None
        self._flying: deque[Flight] = deque()
        self._landed = 0.0

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def depth(self) -> int:
        """Most steps that may be on their way."""
        return self._pipeline.depth if self._pipeline else 1

    def launch(self, step: Step, launched: float, promise: bool) -> Flight:
        """Start a step. With `promise` its sequences go on at once as if they had its tokens, which are UNKNOWN."""
        if self._pipeline:
            self._pipeline.launch(step)
        promised = []
        if promise:
            spans = [span for span in step.spans if span.samples]
            promised = [(s, len(s.tokens)) for span in spans for s in (span.sequence, *span.forks)]
            for sequence, _ in promised:
                sequence.tokens.append(UNKNOWN)
                sequence.promised += 1
        self._flying.append(Flight(step, launched, promised))
        return self._flying[-1]

    def land(self) -> tuple[Flight, StepResult, float]:
        """The oldest step, its result, and the seconds it took beyond the one before it."""
        flight = self._flying.popleft()
        if self._pipeline:
            result = self._pipeline.collect()
        else:
            assert not isinstance(self._executor, PipelinedExecutor)
            result = self._executor.execute(flight.step)
        now = time.perf_counter()
        duration = now - max(flight.launched, self._landed)
        self._landed = now
        return flight, result, duration
