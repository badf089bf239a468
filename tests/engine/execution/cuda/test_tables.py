"""What the device is told of block tables, against the tables themselves, over random histories of an engine."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.core import EngineCore
from engine.execution.cuda.inputs import PinnedInputs, upload
from engine.execution.cuda.tables import DeviceTables
from engine.execution.step_input import SAMPLING, StepInput, decode_step, encode_step
from engine.execution.tables import InconsistentStep
from tests.engine.fakes import VOCAB, AheadExecutor, request


class TellingExecutor(AheadExecutor):
    """Takes in a step's patches as the GPU's runner does, and compares with what the reference runner has."""

    def __init__(self, num_blocks: int, block_size: int, host_slots: int, rows: int) -> None:
        super().__init__(num_blocks, block_size, host_slots)
        self.on_device = DeviceTables(rows, num_blocks + 1, "cpu")
        self.patched = self.needed = 0

    def launch(self, step: StepInput) -> None:
        assert len({(row, index) for row, index, _ in step.patches.tolist()}) == len(step.patches)
        self.on_device.apply(step.patches)
        self.on_device.check(step, self.block_size, len(self.slots) - 1, VOCAB)
        super().launch(step)
        for row, table in zip(step.rows.tolist(), self.tables.tables(step, self.block_size), strict=True):
            assert self.on_device.host[row, : len(table)].tolist() == table
            self.needed += len(table)
        assert len(set(step.rows.tolist())) == len(step.rows)
        self.patched += len(step.patches)


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
    before = executor.on_device.changes

    for _ in range(20):
        core.step()

    assert executor.on_device.changes == before, "appended blocks are no change"


def test_a_steps_numbers_are_where_the_device_looks_for_them() -> None:
    """Fields of 32 and 64 bits, of odd sizes, one after the other; the copies take turns."""
    fields = {"a": ((3,), torch.int32), "b": ((2,), torch.int64), "c": ((2, 2), torch.float32)}
    inputs = PinnedInputs(fields, "cpu", copies=2)
    for turn in range(3):
        arrays = inputs.next()
        arrays["a"][:] = [1, 2, turn]
        arrays["b"][:] = [2**62 + turn, -1]
        arrays["c"][:] = [[0.5, 1.5], [2.5, turn]]
        inputs.upload()

        assert inputs.device["a"].tolist() == [1, 2, turn]
        assert inputs.device["b"].tolist() == [2**62 + turn, -1]
        assert inputs.device["c"].tolist() == [[0.5, 1.5], [2.5, turn]]


def test_arrays_that_travel_together_arrive_as_they_were_each_where_kernels_want_it() -> None:
    arrays = [np.arange(3, dtype=np.int32), np.array([[2**40, -1]], np.int64), np.zeros(0, np.int32), np.float32([0.5])]

    found = upload(arrays, "cpu")

    assert [tensor.tolist() for tensor in found] == [array.tolist() for array in arrays]
    assert len({tensor.data_ptr() % 16 for tensor in found if len(tensor)}) == 1, "all aligned as the buffer is"


def test_a_step_is_the_same_after_a_journey_as_bytes() -> None:
    steps = []

    class Spy(TellingExecutor):
        def launch(self, step: StepInput) -> None:
            steps.append(step)
            super().launch(step)

    core = EngineCore(Spy(64, 4, 0, rows=12), num_blocks=64, block_size=4, max_context=1000, vocab_size=VOCAB)
    core.add(request("a", [1, 2, 3, 4, 5], 5, n=3))
    while core.has_work:
        core.step()

    again = [decode_step(encode_step(step)) for step in steps]

    assert again == steps
    assert steps[0] != steps[1]
    assert again[0].settings.dtype == SAMPLING


@pytest.mark.parametrize(
    ("starts", "counts", "tables", "ids"),
    [
        ([4], [1], [[3]], [5]),
        ([0], [1], [[0]], [5]),
        ([0], [1], [[9]], [5]),
        ([0], [1], [[1]], [VOCAB]),
        ([0], [1], [[1]], [-2]),
        ([0, 1], [1, 1], [[1], [1]], [5, 5]),
        ([0, 0], [6, 4], [[1, 2], [2]], [5] * 10),
        ([0], [2], [[1]], [5]),
        ([-1], [2], [[1]], [5, 5]),
        ([0, 0], [2, 0], [[1], [2]], [5, 5]),
    ],
)
def test_a_step_that_would_touch_foreign_memory_is_refused(
    starts: list[int], counts: list[int], tables: list[list[int]], ids: list[int]
) -> None:
    """Blocks beside the pool of eight or beyond the table, one block written twice, tokens that are none."""
    patches = [(row, index, block) for row, table in enumerate(tables) for index, block in enumerate(table)]
    step = StepInput(
        0,
        np.arange(len(starts), dtype=np.int32),
        *(np.array(column, np.int32) for column in (starts, counts, ids, patches)),
    )
    on_device = DeviceTables(4, 9, "cpu")
    on_device.apply(step.patches)

    with pytest.raises(InconsistentStep):
        on_device.check(step, 4, 8, VOCAB)
