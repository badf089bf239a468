"""What the panels below the map tell, made from real telemetry of the engine's core."""

from __future__ import annotations

from engine.core import EngineCore
from engine.protocol import AddRequest, Preemption, SamplingParams, ShadowStatus, StepReport
from pagechat.app.conversation import Conversation
from pagechat.app.gauges import Gauges
from pagechat.app.letters import Letters
from pagechat.app.message import Message
from pagechat.app.panels import PaneData, block, compare, forks, history, requests, table
from pagechat.app.panels.all import PANELS
from pagechat.app.pool_view import PoolView
from pagechat.app.timelines import Timeline, Timelines, bar
from tests.engine.fakes import ContentExecutor
from tests.pagechat.app.fake import MODEL


class Pool:
    """A small engine and a view of it."""

    def __init__(self, num_blocks: int = 32, text: str | None = None) -> None:
        self.core = EngineCore(
            ContentExecutor(num_blocks, 16), num_blocks=num_blocks, block_size=16, max_context=256, vocab_size=256
        )
        self.now = 0.0
        self.view = PoolView(Letters(), lambda: self.now)
        self.view.reset(self.core.snapshot(1))
        self.chats = [Conversation(id="essay", title="essay [/x]"), Conversation(id="fork", title="essay'")]
        self.text = text

    def run(self, name: str, prompt: int, tokens: int, steps: int | None = None) -> None:
        sampling = SamplingParams(max_tokens=tokens, temperature=0, seed=0)
        self.core.add(
            AddRequest(request_id=name, session=name, prompt=tuple(range(prompt)), sampling=sampling, keep=True)
        )
        while self.core.has_work if steps is None else (steps := steps - 1) >= 0:
            self.apply()

    def apply(self) -> None:
        _, report = self.core.step()
        if report is not None:
            self.view.apply(report)

    def data(self, *, active: str = "essay", selected: int | None = None) -> PaneData:
        gauges = Gauges()
        gauges.sample(self.view)
        return PaneData(
            view=self.view,
            gauges=gauges,
            model=MODEL,
            active=active,
            selected=selected,
            chats=self.chats,
            name_of=lambda session: session,
            text_of=lambda session, index: self.text,
        )


def test_no_panel_fails_before_there_is_an_engine_or_a_block() -> None:
    pool = Pool()
    for mirror in (pool.view.mirror, None):
        pool.view.mirror = mirror
        for name, panel in PANELS.items():
            for width, height in ((80, 11), (8, 2), (1, 1)):
                assert isinstance(panel(pool.data(selected=5), width, height).plain, str), name


def test_the_inspector_tells_owners_fill_age_and_text() -> None:
    # given a chat of 40 prompt tokens and 4 more, forked: three blocks, each with two owners, the last one of 12 tokens
    # (43 of the 44 tokens have KV: the last one sampled is in no block yet)
    pool = Pool(text="half\x1b[2J a [/page]\n")
    pool.run("essay", 40, 4)
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    pool.now = 90.0
    text = block.content(pool.data(selected=3), 120, 11).plain
    assert "3 · shared: several owners" in text
    assert "11 of 16 tokens" in text
    assert "essay · sequence 1 · logical block 2 of 3 (tokens 32..42)" in text
    assert "fork · sequence 2 · logical block 2 of 3" in text
    assert "changed 2 min ago" in text
    assert "half␛[2J a [/page]↵" in text
    assert "9 · free: no content" in block.content(pool.data(selected=9), 120, 11).plain


def test_the_table_is_logical_to_physical_and_marks_what_is_shared() -> None:
    pool = Pool()
    pool.run("essay", 40, 4)
    text = table.content(pool.data(), 100, 11).plain
    assert "sequence 1: 43 tokens in 3 blocks, 0 shared, 5 slots empty" in text
    assert "0→01 " in text
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    assert "2→03*" in table.content(pool.data(active="fork"), 100, 11).plain
    assert "holds no blocks" in table.content(pool.data(active="nobody"), 100, 11).plain


def test_forks_are_a_tree_with_what_they_share() -> None:
    pool = Pool()
    essay, child = pool.chats
    essay.messages = [Message("user", "one"), Message("assistant", "two"), Message("user", "three")]
    child.messages, child.parent = [Message("user", "one"), Message("assistant", "other")], "essay"
    pool.run("essay", 40, 4)
    pool.core.live_sessions.fork("essay", "fork")
    pool.view.apply(pool.core.flush())  # type: ignore[arg-type]
    lines = forks.content(pool.data(), 100, 11).plain.splitlines()
    assert lines[0].endswith("3 blocks")
    assert lines[1].startswith("└─ ")
    assert "3 shared with A; they part at message 2" in lines[1]
    assert lines[2] == "sharing saves 3 blocks of 16 tokens"


def test_the_comparison_draws_what_each_policy_holds_of_the_pool() -> None:
    # 32 blocks of 16 = 512 slots: half with tokens, a quarter reserved, an eighth lost, 8 slots while one waits
    pool = Pool()
    pool.view.shadows = [
        ShadowStatus(
            policy="contiguous-max", requests_held=3, slots_used=256, reserved_waste=128, internal_waste=64,
            external_waste=8,
        ),
        ShadowStatus(
            policy="paged", requests_held=5, slots_used=512, reserved_waste=0, internal_waste=0, external_waste=0
        ),
    ]  # fmt: skip
    lines = compare.content(pool.data(), 85, 11).plain.splitlines()  # 64 cells a bar
    assert lines[1].split()[:3] == ["paged", "5", "█" * 26]
    assert lines[2].split()[:3] == ["maximum", "3", "█" * 13 + "▒" * 6 + "░" * 3 + "····"]
    pool.view.shadows = []
    assert "Reserving 512 tokens a request, this pool holds 1" in compare.content(pool.data(), 85, 11).plain


def report(time: float, seq: int, length: int, duration: float = 1.0, preempted: bool = False) -> StepReport:
    cost = {"recompute_s": None, "swap_s": None}
    one = Preemption(seq=seq, session="a", tokens=9, blocks=1, method="recompute", reason="not measured", **cost)
    return StepReport(
        step=1, time=time, duration_s=duration, running=1, waiting=0, preemptions=0, prompt_tokens=0, cached_tokens=0,
        generated_tokens=0, first_event=0, events=[], lengths=[] if preempted else [(seq, length)],
        preempted=[one] if preempted else [],
    )  # fmt: skip


def test_a_timeline_says_where_the_time_went() -> None:
    # prefill for 2 s, one token a second for 3 s, preempted for 2 s, computed again for 1 s
    timelines = Timelines()
    timelines.start(7, "a", 0)
    steps = [(1, 100), (2, 200), (3, 201), (4, 202), (5, 203)]
    for time, length in steps:
        timelines.apply(report(time, 7, length))
    timelines.apply(report(5.0, 7, 0, duration=0.0, preempted=True))
    timelines.apply(report(8, 7, 203))
    timeline = timelines.get(7)
    assert timeline is not None
    assert (timeline.seconds("prefill"), timeline.seconds("decode"), timeline.seconds("preempted")) == (3, 3, 2)
    assert timeline.preemptions == 1
    assert bar(timeline, 0.0, 10.0, 10) == "▒▒███!!▒··"


def test_requests_are_listed_with_their_state() -> None:
    pool = Pool()
    pool.run("essay", 40, 60, steps=3)
    text = requests.content(pool.data(), 120, 11).plain
    line = next(line for line in text.splitlines() if " essay " in line)
    # 42 of the 43 tokens have KV
    assert line.split()[2:6] == ["decode", "0", "3", "42"]
    assert requests.state_of(Timeline(1, "a"), 100.0, True) == "resident"


def test_the_gauges_remember_and_are_drawn_in_the_width_there_is() -> None:
    pool = Pool()
    gauges = Gauges()
    for length in (16, 32, 64):
        pool.run(f"chat{length}", length, 2)
        gauges.sample(pool.view)
    # KV of 17, 33 and 65 tokens: 2, 3 and 5 blocks, of which 0, 1 and 2 are there already
    assert [sample.used for sample in gauges.samples] == [2 / 32, 4 / 32, 7 / 32]
    assert gauges.series("used", 2)[-1] > gauges.series("used", 2)[0]
    lines = history.gauge_lines(gauges, 60)
    assert lines[0].plain.startswith("used ")
    assert all(line.cell_length <= 62 for line in lines)


def test_a_frozen_view_stands_still_steps_and_catches_up() -> None:
    pool = Pool()
    pool.run("essay", 40, 60, steps=2)
    view = pool.view
    assert view.mirror is not None
    before = view.mirror.step
    view.freeze()
    for _ in range(3):
        pool.apply()
    assert (view.mirror.step, view.behind) == (before, 3)
    assert view.step_frozen()
    assert (view.mirror.step, view.behind) == (before + 1, 2)
    view.thaw()
    assert (view.mirror.step, view.behind, view.frozen_at) == (before + 3, 0, None)
    assert not view.step_frozen()
