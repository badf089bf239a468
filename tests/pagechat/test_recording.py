"""A recording holds what was seen, whatever happens to the file, and plays forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from engine.core import EngineCore
from engine.protocol import AddRequest, SamplingParams
from pagechat.app.player import Player
from pagechat.app.replay import ReplayApp
from pagechat.recording import Recorder, RecordingError, load
from tests.engine.fakes import ContentExecutor
from tests.pagechat.app.waiting import wait_until


def make(path: Path, steps: int = 60, snapshot_every: int = 20, max_bytes: int = 10**9) -> list[tuple[int, int]]:
    """Record a small engine, one second a step. (step, blocks with an owner) after each frame."""
    core = EngineCore(ContentExecutor(64, 16), num_blocks=64, block_size=16, max_context=512, vocab_size=256)
    seen: list[tuple[int, int]] = []
    with path.open("wb") as file:
        recorder = Recorder(file, "smollm2 [/x]", "cpu", max_bytes)
        for number in range(steps):
            if number % 25 == 0:
                sampling = SamplingParams(max_tokens=20, temperature=0, seed=0)
                core.add(AddRequest(request_id=f"r{number}", session="s", prompt=tuple(range(30)), sampling=sampling))
            if number % snapshot_every == 0:
                recorder.add(1000.0 + number, core.snapshot(1))
                seen.append((core.snapshot(1).step, len({b for s in core.snapshot(1).sequences for b in s.blocks})))
            _, report = core.step()
            if report is not None and not recorder.full:
                recorder.add(1000.5 + number, report)
                seen.append((report.step, len({b for s in core.snapshot(1).sequences for b in s.blocks})))
    return seen


def state(player: Player) -> tuple[int, int]:
    mirror = player.view.mirror
    assert mirror is not None
    return mirror.step, mirror.owned_blocks


def test_every_frame_shows_what_was_seen_then_in_any_order(tmp_path: Path) -> None:
    seen = make(tmp_path / "r")
    player = Player(load(tmp_path / "r"))
    assert player.last == len(seen) - 1
    for index in [*range(len(seen)), *reversed(range(len(seen))), 3, 40, 10, 11, 9]:
        player.seek_frame(index)
        assert (player.index, state(player)) == (index, seen[index])


def test_time_goes_on_at_its_speed_and_stops_at_the_end(tmp_path: Path) -> None:
    seen = make(tmp_path / "r")
    player = Player(load(tmp_path / "r"))
    player.playing, player.speed = True, 2.0
    player.advance(5.0)
    assert player.elapsed == 10.0
    player.seek(3.6)
    assert state(player) == seen[player.index]
    assert player.recording.frames[player.index].time <= 1003.6 < player.recording.frames[player.index + 1].time
    player.advance(1000)
    assert (player.playing, state(player)) == (False, seen[-1])


@pytest.mark.parametrize("cut", [1, 100, 1500])
def test_a_file_that_is_cut_off_plays_up_to_there(tmp_path: Path, cut: int) -> None:
    seen = make(tmp_path / "r")
    data = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(data[:-cut])
    recording = load(tmp_path / "r")
    assert not recording.complete
    assert 0 < len(recording.frames) < len(seen)
    player = Player(recording)
    player.seek_frame(player.last)
    assert state(player) == seen[player.last]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no recording"),
        (b"\x00\xff garbage", "no recording"),
        (msgpack.packb({"pagechat": 99}), "format 99"),
        (msgpack.packb({"pagechat": 1}), "before its first snapshot"),
        (msgpack.packb({"pagechat": 1}) + msgpack.packb([1.0, b"\xc1"]), "before its first snapshot"),
    ],
)
def test_what_is_no_recording_says_so(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(RecordingError, match=reason):
        load(tmp_path / "r")
    with pytest.raises(RecordingError, match="cannot be read"):
        load(tmp_path / "missing")


def test_a_recording_ends_at_its_bound(tmp_path: Path) -> None:
    make(tmp_path / "r", max_bytes=3000)
    assert (tmp_path / "r").stat().st_size < 6000
    assert load(tmp_path / "r").complete


async def test_the_replay_plays_steps_and_goes_back(tmp_path: Path) -> None:
    make(tmp_path / "r")
    app = ReplayApp(load(tmp_path / "r"))
    async with app.run_test(size=(120, 40)) as pilot:
        player = app.player
        await wait_until(pilot, lambda: player.index > 0)
        await pilot.press("space")
        assert not player.playing
        await pilot.press("b", "full_stop", "full_stop", "comma")
        assert player.index == 1
        await pilot.press("greater_than_sign")
        assert 10 <= player.elapsed < 11
        await pilot.press("4", "s", "plus", "[")
        await wait_until(pilot, lambda: "cpu · a recording" in str(app.screen.query_one("#memory").border_title))
