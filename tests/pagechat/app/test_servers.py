"""Another model or another daemon, from within the app; and back, when it does not answer."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from pagechat.app import known_models, link, pace
from pagechat.app.app import PagechatApp
from pagechat.app.screens.dialogs import Confirm
from pagechat.app.screens.servers import ServersScreen
from pagechat.app.servers import ServerError, Servers
from pagechat.client import NoDaemon
from pagechat.daemon.launch import LaunchError
from pagechat.store import Store
from tests.pagechat.app.fake import MODEL, FakeClient, FakeDaemon
from tests.pagechat.app.test_messages import answered, command
from tests.pagechat.app.waiting import screen_text, wait_until


class Machine:
    """Daemons by their run directory and model, as `ensure_daemon` and `AsyncEngineClient.connect` would find them."""

    def __init__(self) -> None:
        self.running: dict[Path | None, FakeDaemon] = {}
        self.log: list[str] = []

    def start(self, run_dir: Path | None, args: Sequence[str]) -> Started | None:
        if run_dir in self.running:
            return None
        model = args[args.index("--model") + 1] if "--model" in args else "smollm2"
        self.log.append(f"start {model} in {run_dir}")
        if model == "no-start":
            raise LaunchError("the daemon did not start: no room")
        daemon = self.running[run_dir] = FakeDaemon(script=lambda _: [f"{model} says"])
        daemon.model = msgspec.structs.replace(MODEL, name=model)
        if model == "no-model":
            daemon.state, daemon.error = "failed", "There is no model 'no-model'."
        return Started(self, run_dir)

    async def connect(self, run_dir: Path | None) -> FakeClient:
        if run_dir not in self.running:
            raise NoDaemon("no daemon runs there")
        return await self.running[run_dir].connect()


class Started:
    def __init__(self, machine: Machine, run_dir: Path | None) -> None:
        self._machine, self._run_dir, self.ended = machine, run_dir, False

    def stop(self) -> None:
        self._machine.log.append(f"stop in {self._run_dir}")
        del self._machine.running[self._run_dir]
        self.ended = True


def lock(run_dir: Path) -> object:
    """A daemon seems to live there, as long as the returned file is open."""
    run_dir.mkdir(parents=True)
    file = (run_dir / "daemon.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


async def test_another_model_answers_the_same_chats_and_a_wrong_one_is_taken_back(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SUBSCRIBE_S", 0)
    monkeypatch.setattr(pace, "SHARE", 100.0)
    machine = Machine()
    servers = Servers(None, ["--threads", "1"], start=machine.start, connect=machine.connect)
    app = PagechatApp(servers.open, Store(db), servers=servers)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await wait_until(pilot, lambda: app.screen is app.main and app.view.mirror is not None)
        await answered(app, pilot, "who?")
        await command(app, pilot, "/model big.gguf")
        await wait_until(pilot, lambda: "Now big.gguf answers" in screen_text(app))
        assert (await answered(app, pilot, "and now?")).content == "big.gguf says"
        assert [message.content for message in machine.running[None].asked[-1]][:2] == ["who?", "smollm2 says"]
        # ours ended before the next one began: two models need twice the memory
        assert machine.log == ["start smollm2 in None", "stop in None", "start big.gguf in None"]
        for wrong, why in (("no-model", "There is no model"), ("no-start", "no room")):
            app.clear_notifications()
            await command(app, pilot, f"/model {wrong}")
            await wait_until(pilot, lambda why=why: "cannot be used: " in screen_text(app) and why in screen_text(app))
            assert "Back to the model big.gguf" in screen_text(app)
            await wait_until(pilot, lambda: app.main.client is not None)
            assert (await answered(app, pilot, "still?")).content == "big.gguf says"
        await command(app, pilot, "/model big.gguf")
        await wait_until(pilot, lambda: "big.gguf is what answers already" in screen_text(app))
        await pilot.press("f10")
        await wait_until(pilot, lambda: isinstance(app.screen, ServersScreen))
        await wait_until(pilot, lambda: "135 M" in screen_text(app) and "float32 on cpu" in screen_text(app))
        await pilot.press(*"smol")
        assert "model   smollm2" in screen_text(app)
        await pilot.press("down", "enter")
        await wait_until(
            pilot,
            lambda: app.main.client is not None and not servers.changing and servers.now.label.endswith("smollm2"),
        )
        await app.leave()
    servers.stop()
    assert machine.running == {}


async def test_a_streaming_answer_is_asked_about_first(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SUBSCRIBE_S", 0)
    machine = Machine()
    servers = Servers(None, [], start=machine.start, connect=machine.connect)
    app = PagechatApp(servers.open, Store(db), servers=servers)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: app.screen is app.main and app.view.mirror is not None)
        machine.running[None].step_s = 0
        await command(app, pilot, "hello")
        await wait_until(pilot, lambda: app.tabs.streaming)
        await command(app, pilot, "/model other")
        await wait_until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await wait_until(pilot, lambda: machine.log[-1] == "start other in None")
        assert app.tabs.active.messages[-1].status == "stopped"
        await app.leave()


async def test_a_daemon_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    machine = Machine()
    theirs = machine.running[tmp_path / "run"] = FakeDaemon()
    servers = Servers(tmp_path / "run", [], start=machine.start, connect=machine.connect)
    await servers.open()
    servers.to_model("big")
    await servers.open()
    assert machine.running[tmp_path / "run"] is theirs
    (place,) = set(machine.running) - {tmp_path / "run"}
    assert place is not None
    assert place.parent == tmp_path
    servers.back()
    await servers.open()
    assert list(machine.running) == [tmp_path / "run"]


def test_a_run_directory_without_a_daemon_is_refused_with_what_to_do(tmp_path: Path) -> None:
    servers = Servers(None, [])
    with pytest.raises(ServerError, match=r"pagechat-daemon serve --run-dir"):
        servers.to_run_dir(tmp_path / "nothing")
    held = lock(tmp_path / "run-b")
    servers.to_run_dir(tmp_path / "run-b")
    assert (servers.now.run_dir, servers.now.starts, servers.changing) == (tmp_path / "run-b", False, True)
    assert known_models.daemons(tmp_path / "run") == [tmp_path / "run-b"]
    assert known_models.is_run_dir(str(tmp_path / "run-b"))
    held.close()  # type: ignore[attr-defined]


def test_models_at_hand_are_found_without_asking_anybody(tmp_path: Path) -> None:
    for name in ("a/config.json", "a/tokenizer.json", "b/config.json", "c.gguf", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    snapshot = tmp_path / "hub" / "models--owner--name--x" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    found = known_models.models(["used/before", "smollm2"], tmp_path, {"HF_HUB_CACHE": str(tmp_path / "hub")})
    assert found == ["smollm2", "used/before", f"{tmp_path}/c.gguf", f"{tmp_path}/a", "owner/name--x"]
    assert known_models.remember([str(number) for number in range(20)], "5")[:3] == ["5", "0", "1"]
    assert len(known_models.remember([str(number) for number in range(20)], "x")) == 10


async def test_leaving_a_daemon_that_failed_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = FakeDaemon(), FakeDaemon()
    bad.state = "failed"
    places = iter([bad, good])
    phases: list[str] = []
    following = link.Link(
        lambda: next(places).connect(), lambda _: None, lambda _: None, lambda state: phases.append(state.phase)
    )
    task = asyncio.create_task(following.run())
    while "failed" not in phases:
        await asyncio.sleep(0.01)
    following.move()
    while phases[-1] != "ready":
        await asyncio.sleep(0.01)
    assert bad.dead is None
    task.cancel()
