"""Where the door is, as the commands have it: `serve --http`, `--no-http`, `status`, `keys`."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pagechat.client import EngineClient
from pagechat.commands.exits import CommandError
from pagechat.commands.keys import keys as run_keys
from pagechat.commands.status import as_data
from pagechat.daemon.http import address
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.keys import add as add_key
from pagechat.daemon.http.keys import default_path
from tests.daemons import Daemon, command, end, serving, socket_files, wait_until

pytestmark = pytest.mark.usefixtures("fake_engine")


@pytest.fixture
def taken() -> Iterator[str]:
    """An address where somebody else listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8008", Address("127.0.0.1", 8008)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        (":9000", Address("127.0.0.1", 9000)),
        ("9000", Address("127.0.0.1", 9000)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: Address) -> None:
    assert address.parse(text) == expected
    assert expected.loopback


@pytest.mark.parametrize("text", ["", "localhost", "host:", "host:x", "host:-1", "host:65536", "::1:80", "host:²"])
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(AddressError, match="HOST:PORT"):
        address.parse(text)


def status() -> dict[str, Any]:
    """As `status --json` has it, without a process for each look."""
    with EngineClient.connect() as client:
        return as_data(client.status())


def test_status_shows_the_address_and_ctrl_c_closes_it() -> None:
    with serving("--http", "127.0.0.1:0") as daemon:
        wait_until(lambda: status()["state"] == "ready", "engine")
        url = status()["http"]
        assert isinstance(url, str)
        assert f"{url}/v1" in command("status").stdout
        assert httpx2.get(f"{url}/health").status_code == 200
        daemon.signal(signal.SIGINT)
        daemon.process.wait(20)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")
    assert socket_files() == set()


def test_no_http_is_no_door() -> None:
    with serving("--no-http"):
        found = status()
        assert (found["http"], found["http_problem"]) == (None, None)


def test_a_port_in_use_is_a_clear_sentence(taken: str) -> None:
    done = command("serve", "--http", taken)
    assert done.returncode == 1
    port = taken.partition(":")[2]
    assert (
        f"pagechat-daemon: port {port} of 127.0.0.1 is in use; choose another with --http, or --no-http" in done.stderr
    )


def test_an_apps_own_daemon_goes_on_without_http_and_says_so(taken: str) -> None:
    daemon = Daemon("--ephemeral", "--http", taken, stdin=subprocess.PIPE).until_answering()
    try:
        found = status()
        assert found["http"] is None
        assert "is in use" in str(found["http_problem"])
        assert "none: port" in command("status").stdout
    finally:
        end(daemon)


@pytest.mark.parametrize(
    ("given", "words"), [("0.0.0.0:0", "pagechat-daemon keys add NAME"), ("nonsense", "HOST:PORT")]
)
def test_an_address_that_must_not_be_is_refused(given: str, words: str) -> None:
    done = command("serve", "--http", given)
    assert done.returncode == 1
    assert words in done.stderr


def test_keys_are_made_listed_and_removed(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*words: str, max_concurrent: int | None = None, as_json: bool = False) -> str:
        assert run_keys(None, words, max_concurrent=max_concurrent, min_priority=0, as_json=as_json) == 0
        return capsys.readouterr().out

    made = command("keys", "add", "alice", "--max-concurrent", "4", "--min-priority", "-5")
    secret = made.stdout.strip()
    assert made.stdout == f"{secret}\n"
    assert (folders / "data" / "keys.json").stat().st_mode & 0o777 == 0o600
    (listed,) = json.loads(keys("list", as_json=True))
    assert (listed["name"], listed["max_concurrent"], listed["min_priority"]) == ("alice", 4, -5)
    assert re.search(r"alice .* 4 +-5$", keys(), re.MULTILINE)
    assert secret not in keys()
    with pytest.raises(CommandError, match="already"):
        keys("add", "alice")
    keys("remove", "alice")
    with pytest.raises(CommandError, match="no key 'alice'"):
        keys("remove", "alice")
    with pytest.raises(CommandError, match="keys add NAME"):
        keys("rotate")


def test_with_a_key_it_may_listen_beyond_this_machine() -> None:
    secret = add_key(default_path(), "alice")
    with serving("--http", "0.0.0.0:0"):
        wait_until(lambda: status()["state"] == "ready", "engine")
        url = str(status()["http"]).replace("0.0.0.0", "127.0.0.1")
        headers = {"authorization": f"Bearer {secret}", "host": "public.example"}
        assert httpx2.get(f"{url}/v1/models", headers=headers).status_code == 200
        assert httpx2.get(f"{url}/v1/models").status_code == 401


def test_a_daemon_that_drains_finishes_its_answers_and_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.01")
    with serving("--http", "127.0.0.1:0", "--drain", "30") as daemon:
        wait_until(lambda: status()["state"] == "ready", "engine")
        url = f"{status()['http']}/v1/completions"
        body = {"prompt": "a long story " * 10, "max_tokens": 40, "stream": True}
        with httpx2.Client(timeout=30) as http, http.stream("POST", url, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            daemon.signal(signal.SIGTERM)
            wait_until(lambda: status()["state"] == "stopping", "the beginning of the end")
            assert httpx2.post(url, json={"prompt": "too late"}).status_code == 503
            assert "data: [DONE]" in list(lines)
        assert daemon.process.wait(20) == 0


def test_a_second_signal_ends_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.05")
    with serving("--http", "127.0.0.1:0", "--drain", "300") as daemon:
        wait_until(lambda: status()["state"] == "ready", "engine")
        url = f"{status()['http']}/v1/completions"
        body = {"prompt": "a long story " * 30, "max_tokens": 200, "stream": True}
        with httpx2.Client(timeout=30) as http, http.stream("POST", url, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            daemon.signal(signal.SIGTERM)
            wait_until(lambda: status()["state"] == "stopping", "the beginning of the end")
            daemon.signal(signal.SIGTERM)
            assert "shutting_down" in "".join(lines)
        assert daemon.process.wait(20) == 0


def test_the_log_has_a_line_for_each_request_and_none_of_its_text(tmp_path: Path) -> None:
    path, secret = tmp_path / "http.log", "the-launch-code"
    key = add_key(default_path(), "alice")
    with serving("--http", "127.0.0.1:0", "--http-log", str(path)):
        wait_until(lambda: status()["state"] == "ready", "engine")
        url = str(status()["http"])
        headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
        httpx2.post(f"{url}/v1/completions", json={"prompt": secret}, headers=headers)
        httpx2.get(f"{url}/v1/models?{secret}")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["path"], line["status"], line["key"]) for line in lines] == [
        ("/v1/completions", 200, "alice"),
        ("/v1/models", 401, ""),
    ]
    assert lines[0]["request_id"] == "mine"
    assert lines[0]["seconds"] > 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    assert key not in path.read_text()


def test_options_may_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('http = "127.0.0.1:0"\nnum-blocks = 33\n\n[serve]\nblock-size = 32\n')
    with serving("--config", str(config), "--block-size", "64"):
        wait_until(lambda: status()["state"] == "ready", "engine")
        found = status()
    assert found["pool"]["num_blocks"] == 33
    assert found["pool"]["block_size"] == 64
    missing = command("serve", "--config", str(tmp_path / "none.toml"))
    assert (missing.returncode, "there is no file" in missing.stderr) == (2, True)
