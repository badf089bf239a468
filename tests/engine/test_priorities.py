"""Whose turn it is: the lower priority number first, and in one priority who came first."""

from __future__ import annotations

import pytest

from engine.protocol import BeamParams, Preemption
from tests.engine.fakes import expected_answer, make_core, request, run, tokens_of


class Engine:
    """A core, what each request has said so far, and the ends in their order."""

    def __init__(self, num_blocks: int = 64, **settings: int | bool | str) -> None:
        self.core = make_core(num_blocks, **settings)
        self.said: dict[tuple[str, int], list[int]] = {}
        self.ends: list[str] = []

    def ask(self, name: str, prompt: list[int], max_tokens: int = 8, **more: object) -> None:
        self.core.add(request(name, prompt, max_tokens, **more))

    def step(self) -> None:
        for output in self.core.step()[0]:
            self.said.setdefault((output.request_id, output.index), []).extend(output.tokens)
            self.ends += [output.request_id] if output.finish_reason else []

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    @property
    def running(self) -> list[str]:
        return [sequence.request_id for sequence in self.core.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [sequence.request_id for sequence in self.core.scheduler.waiting]

    def tokens_in_blocks(self) -> dict[str, int]:
        return {sequence.request_id: sequence.computed for sequence in self.core.scheduler.running}


def test_who_waits_is_served_by_priority_and_then_in_the_order_they_came() -> None:
    engine = Engine(max_running=1)
    engine.ask("first", [1] * 4, priority=-1)
    engine.step()
    for name, priority in [("batch", 5), ("chat", 0), ("later", 0), ("urgent", -1)]:
        engine.ask(name, [2] * 4, priority=priority)
    assert engine.waiting == ["urgent", "chat", "later", "batch"]
    engine.run()
    assert engine.ends == ["first", "urgent", "chat", "later", "batch"]


def test_without_memory_the_newest_of_the_lowest_priority_is_preempted() -> None:
    core = make_core(12, block_size=4, prefix_cache=False)
    for name, priority in [("old batch", 1), ("new batch", 1), ("chat", 0)]:
        core.add(request(name, [3] * 9, max_tokens=12, priority=priority))  # 3 blocks each now, 6 in the end
    preempted: list[Preemption] = []
    outputs = run(core, watch=lambda report: preempted.extend(report.preempted))
    assert {(one.session, one.priority) for one in preempted} == {("chat-new batch", 1)}
    for name in outputs:
        assert tokens_of(outputs[name]) == expected_answer([3] * 9, 12)


@pytest.mark.parametrize(("limit", "batch", "chat"), [("memory", 8, 9), ("places", 3, 3)])
def test_what_runs_gives_way_to_a_higher_priority(limit: str, batch: int, chat: int) -> None:
    engine = Engine(8, block_size=4, prefix_cache=False, max_running=2 if limit == "places" else 8)
    engine.ask("old batch", [3] * batch, 5, priority=1)
    engine.ask("new batch", [3] * batch, 5, priority=1)
    engine.step()
    assert engine.running == ["old batch", "new batch"]
    engine.ask("chat", [4] * chat, 4)
    engine.step()
    engine.step()  # that there is no memory is found in the step before
    assert (engine.running, engine.waiting) == (["old batch", "chat"], ["new batch"])
    engine.run()
    assert engine.said["new batch", 0] == expected_answer([3] * batch, 5)


def test_nobody_gives_way_to_an_equal() -> None:
    engine = Engine(max_running=1)
    engine.ask("first", [1] * 4)
    engine.step()
    engine.ask("second", [2] * 4)
    engine.run()
    assert engine.ends == ["first", "second"]
    assert engine.core.scheduler.preemptions == 0


def test_who_was_preempted_is_the_next_of_its_priority() -> None:
    engine = Engine(max_running=2)
    for name in ("a", "b", "c"):
        engine.ask(name, [1] * 4)
    engine.step()
    engine.ask("urgent", [1] * 4, priority=-1)
    engine.step()
    assert (engine.running, engine.waiting) == (["a", "urgent"], ["b", "c"])


def test_a_request_that_waits_gets_another_turn() -> None:
    engine = Engine(max_running=1)
    engine.ask("first", [1] * 4)
    engine.step()
    for name in ("a", "b", "c"):
        engine.ask(name, [2] * 4)
    engine.core.set_priority("c", -1)
    assert engine.waiting == ["c", "a", "b"]
    engine.core.set_priority("c", 0)
    assert engine.waiting == ["a", "b", "c"], "as if it had never been changed"
    engine.core.set_priority("nobody", 1)


def test_a_request_that_runs_gives_way_once_it_is_put_back() -> None:
    engine = Engine(max_running=1)
    engine.ask("first", [1] * 4, 10)
    engine.step()
    engine.ask("second", [2] * 4, 10)
    engine.core.set_priority("first", 1)
    engine.step()
    assert (engine.running, engine.waiting) == (["second"], ["first"])
    engine.run()
    assert engine.said["first", 0] == expected_answer([1] * 4, 10)


def test_all_answers_and_beams_of_a_request_give_way_together() -> None:
    engine = Engine(max_running=4)
    engine.ask("search", [1] * 4, n=2, beam=BeamParams(width=2), priority=1)
    engine.ask("answers", [1] * 5, n=2, priority=1)
    engine.step()
    engine.step()
    assert sorted(engine.running) == ["answers", "answers", "search", "search"]
    engine.ask("chat", [2] * 4, n=4)
    engine.step()
    assert set(engine.running) == {"chat"}
    engine.run()
    for index in range(2):
        assert engine.said["answers", index] == expected_answer([1] * 5, 8, seed=index)
    assert engine.ends.count("search") == 2


def test_an_urgent_prompt_does_not_wait_until_a_long_one_is_read() -> None:
    engine = Engine(step_tokens=8)
    engine.ask("batch", [1] * 80, priority=1)
    engine.step()
    engine.ask("chat", [2] * 12, 1)
    read = []
    for _ in range(3):
        engine.step()
        read.append(engine.tokens_in_blocks())
    assert read == [{"batch": 8, "chat": 8}, {"batch": 12}, {"batch": 20}]
    assert engine.said["chat", 0] == expected_answer([2] * 12, 1)
    engine.run()
    assert engine.core.scheduler.preemptions == 0
    assert engine.core.executor.computed == 80 + 7 + 12, "nothing was computed twice"


def test_sessions_tell_the_priority_of_what_waits_and_runs() -> None:
    engine = Engine(max_running=1)
    engine.ask("a", [1] * 4, priority=-3)
    engine.ask("b", [1] * 4, priority=7)
    engine.step()
    assert [(info.session, info.state, info.priority) for info in engine.core.live_sessions.infos()] == [
        ("chat-b", "waiting", 7),
        ("chat-a", "running", -3),
    ]
