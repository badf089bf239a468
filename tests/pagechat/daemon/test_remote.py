"""Clients of other machines: over TCP, encrypted, and only those that the daemon knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zmq

from engine.protocol import VERSION, encode
from pagechat import rundir
from pagechat.client import AsyncEngineClient, NoDaemon
from pagechat.daemon import curve
from pagechat.daemon.curve import CurveError
from pagechat.daemon.front import Front, TcpPlan
from pagechat.daemon.http.address import Address
from pagechat.daemon.launch import ensure_daemon
from pagechat.protocol import Hello
from pagechat.remote import FILE, Remote, remote
from tests.daemons import command, running_front, whole

pytestmark = pytest.mark.usefixtures("fake_engine")


@dataclass(frozen=True)
class Reachable:
    front: Front
    keys: Path
    folder: Path

    def let_in(self, name: str) -> Path:
        """A run directory that leads to the front, as a known client's."""
        return self.directory(name, curve.add(self.keys, name, f"tcp://{self.front.tcp}"))

    def directory(self, name: str, ticket: Remote) -> Path:
        directory = self.folder / name
        directory.mkdir(mode=0o700)
        (directory / FILE).write_bytes(msgspec.json.encode(ticket))
        (directory / FILE).chmod(0o600)
        return directory


@pytest.fixture
async def reachable(folders: Path) -> AsyncIterator[Reachable]:
    keys = folders / "curve.json"
    curve.add(keys, "first", "tcp://127.0.0.1:1")
    async with running_front(tcp=TcpPlan(Address("127.0.0.1", 0), keys)) as front:
        yield Reachable(front, keys, folders)


async def test_a_known_client_asks_and_follows_the_telemetry(reachable: Reachable) -> None:
    async with await AsyncEngineClient.connect(reachable.let_in("laptop")) as client:
        telemetry = client.telemetry()
        answer = await whole(client, "from afar")
        assert "from afar" in answer.text
        async with asyncio.timeout(10):
            while True:  # the subscription may be later than the first answer
                await whole(client, "again")
                try:
                    async with asyncio.timeout(0.2):
                        assert (await anext(telemetry)).step >= 0
                        break
                except TimeoutError:
                    continue
    async with await AsyncEngineClient.connect() as neighbour:  # the run directory needs no key
        assert (await neighbour.status()).state == "ready"


async def test_a_client_that_is_not_known_is_not_answered(reachable: Reachable) -> None:
    known = curve.add(reachable.keys, "removed", f"tcp://{reachable.front.tcp}")
    curve.remove(reachable.keys, "removed")
    with pytest.raises(NoDaemon, match="does it still know the key"):
        await AsyncEngineClient.connect(reachable.directory("removed", known), timeout=1)


@pytest.mark.parametrize("harm", [lambda path: path.chmod(0o644), lambda path: path.write_text("{")])
async def test_a_file_that_is_wrong_for_a_while_keeps_nobody_out_for_ever(
    reachable: Reachable, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    directory = reachable.let_in("laptop")
    content = reachable.keys.read_bytes()
    harm(reachable.keys)
    with pytest.raises(NoDaemon):
        await AsyncEngineClient.connect(directory, timeout=1)
    assert 1 <= sum("nobody can be let in" in record.message for record in caplog.records) <= 2
    reachable.keys.write_bytes(content)
    reachable.keys.chmod(0o600)
    async with await AsyncEngineClient.connect(directory) as client:
        assert (await client.status()).pid


async def test_a_daemon_that_is_another_one_is_not_spoken_with(reachable: Reachable, tmp_path: Path) -> None:
    right = curve.add(reachable.keys, "laptop", f"tcp://{reachable.front.tcp}")
    other = curve.add(tmp_path / "other.json", "laptop", right.url)
    with pytest.raises(NoDaemon):
        await AsyncEngineClient.connect(
            reachable.directory("laptop", msgspec.structs.replace(right, server=other.server)), timeout=1
        )


async def test_nobody_is_answered_in_the_clear(reachable: Reachable) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{reachable.front.tcp}")
    socket.send(encode(Hello(version=VERSION, client="plain")))
    assert await asyncio.to_thread(socket.poll, 500) == 0
    socket.close(linger=0)
    context.term()


async def test_without_a_known_client_there_is_no_tcp(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="curve add"):
        async with running_front(tcp=TcpPlan(Address("127.0.0.1", 0), tmp_path / "curve.json")):
            pass


def test_the_commands_make_what_serve_and_clients_need(folders: Path) -> None:
    keys = str(folders / "curve.json")
    made = command("curve", "add", "laptop", "gpu-box:9000", "--curve-keys", keys)
    assert made.returncode == 0, made.stderr
    directory = folders / "gpu-box"
    directory.mkdir(mode=0o700)
    (directory / FILE).write_text(made.stdout)
    (directory / FILE).chmod(0o600)
    found = remote(directory)
    assert found is not None
    assert found.url == "tcp://gpu-box:9000"
    assert found.secret not in Path(keys).read_text()
    assert Path(keys).stat().st_mode & 0o077 == 0
    assert command("curve", "--curve-keys", keys).stdout == "laptop\n"
    assert ensure_daemon(directory, []) is None, "nothing is started for a daemon that is elsewhere"
    refused = command("serve", "--run-dir", str(directory))
    assert refused.returncode != 0
    assert "another machine" in refused.stderr
    assert command("curve", "remove", "laptop", "--curve-keys", keys).returncode == 0
    assert command("curve", "remove", "laptop", "--curve-keys", keys).returncode == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ('{"url": "http://x:1", "server": "", "public": "", "secret": ""}', "tcp://HOST:PORT"),
        ('{"url": "tcp://x:1", "server": "short", "public": "", "secret": ""}', "incomplete"),
    ],
)
def test_a_file_that_leads_nowhere_says_so(folders: Path, content: str, words: str) -> None:
    directory = rundir.run_dir(folders / "elsewhere")
    (directory / FILE).write_text(content)
    with pytest.raises(rundir.RunDirError, match="chmod 600"):
        remote(directory)
    (directory / FILE).chmod(0o600)
    with pytest.raises(rundir.RunDirError, match=words):
        remote(directory)
