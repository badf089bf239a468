"""What the device is told of block tables, against the tables themselves, over random histories of an engine."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.core import EngineCore
from engine.execution.cuda.inputs import StepInputs
from engine.execution.cuda.tables import DeviceTables
from engine.requests.sequence import Step
from tests.engine.fakes import VOCAB, AheadExecutor, request


class TellingExecutor(AheadExecutor):
    """Tells a step's tables as the GPU's executor does, applies the patches, and compares."""

    def __init__(self, num_blocks: int, block_size: int, host_slots: int, rows: int) -> None:
        super().__init__(num_blocks, block_size, host_slots)
        self.tables = DeviceTables(rows, num_blocks + 1, block_size, "cpu")
        self.on_device = np.zeros_like(self.tables.host)
        self.patched = self.needed = 0

    def launch(self, step: Step) -> None:
        rows = [self.tables.place(s.sequence, s.start, s.start + s.count) for s in step.spans]
        patches = self.tables.take_patches()
        assert len({patch[:2] for patch in patches}) == len(patches)
        for row, index, block in patches:
            self.on_device[row, index] = block
        for row, span in zip(rows, step.spans, strict=True):
            used = (span.start + span.count - 1) // self.block_size + 1
            assert self.on_device[row, :used].tolist() == span.sequence.table[:used]
            self.needed += used
        assert len(set(rows)) == len(rows)
        self.patched += len(patches)
        super().launch(step)


@pytest.mark.parametrize("seed", range(12))
def test_the_device_knows_every_table_it_reads(seed: int) -> None:
    """Preemption, swap, forks, copies on write, the next turns of sessions; few rows, that are taken over again."""
    rng = random.Random(seed)
    executor = TellingExecutor(16, 4, 10 * (seed % 2), rows=12)
    core = EngineCore(
        executor,
        num_blocks=16,
        block_size=4,
        max_context=10**6,
        vocab_size=VOCAB,
        step_tokens=16,
        max_running=6,
        host_slots=10 * (seed % 2),
    )
    core.costs.token_s, core.costs.block_s = 1.0, 1e-9
    for name in range(120):
        session = f"s{rng.randrange(4)}"
        told = core.sessions.get(session)
        stem = list(told.tokens or ()) if told and rng.random() < 0.5 else [1] * rng.choice([0, 6, 13])
        prompt = [*stem[: rng.randint(0, 30)], *(rng.randrange(4) for _ in range(rng.randint(1, 9)))]
        n = rng.choice([1, 1, 1, 3])
        core.add(request(str(name), prompt, rng.randint(1, 12), (7,), session=session, keep=rng.random() < 0.5, n=n))
        for _ in range(rng.randint(0, 4)):
            core.step()
    while core.has_work:
        core.step()

    assert core.scheduler.preemptions > 0
    assert executor.patched < executor.needed / 2, "most of what a step reads was told before"


def test_a_batchs_sharing_is_found_anew_only_when_it_may_have_changed() -> None:
    executor = TellingExecutor(64, 4, 0, rows=12)
    core = EngineCore(executor, num_blocks=64, block_size=4, max_context=1000, vocab_size=VOCAB)
    for name in "ab":
        core.add(request(name, [1, 2, 3, 4, 5], 40))
    for _ in range(3):
        core.step()
    before = executor.tables.changes

    for _ in range(20):
        core.step()

    assert executor.tables.changes == before, "appended blocks are no change"


def test_a_steps_numbers_are_where_the_device_looks_for_them() -> None:
    """Fields of 32 and 64 bits, of odd sizes, one after the other; the copies take turns."""
    fields = {"a": ((3,), torch.int32), "b": ((2,), torch.int64), "c": ((2, 2), torch.float32)}
    inputs = StepInputs(fields, "cpu", copies=2)
    for turn in range(3):
        arrays = inputs.next()
        arrays["a"][:] = [1, 2, turn]
        arrays["b"][:] = [2**62 + turn, -1]
        arrays["c"][:] = [[0.5, 1.5], [2.5, turn]]
        inputs.upload()

        assert inputs.device["a"].tolist() == [1, 2, turn]
        assert inputs.device["b"].tolist() == [2**62 + turn, -1]
        assert inputs.device["c"].tolist() == [[0.5, 1.5], [2.5, turn]]
