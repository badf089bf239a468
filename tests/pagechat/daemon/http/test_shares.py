"""What a key may do, how much of it, and what it leaves the others."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pagechat.daemon.http import keys
from pagechat.daemon.http.keys import ANYBODY, Key, Keys, KeysError
from pagechat.daemon.http.rates import Rates
from pagechat.daemon.http.refusal import ApiError
from tests.daemons import command
from tests.pagechat.daemon.http.conftest import Served, http_daemon

BLOCKS = 400
"""Of the daemon of these tests (conftest.http_daemon), with 16 tokens each."""


@dataclass(frozen=True)
class Shared:
    served: Served
    file: Path
    secrets: dict[str, str]

    def client(self, name: str) -> httpx2.Client:
        headers = {"authorization": f"Bearer {self.secrets[name]}"}
        return httpx2.Client(base_url=self.served.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    file = base / "keys.json"
    made = {
        "alice": keys.add(file, "alice"),
        "bob": keys.add(file, "bob", pin_share=0.5),
        "watcher": keys.add(file, "watcher", scopes=("observe",)),
        "user": keys.add(file, "user", scopes=("use",)),
        "boss": keys.add(file, "boss", scopes=("admin",)),
        "slow": keys.add(file, "slow", requests_per_minute=3, tokens_per_minute=100),
        "small": keys.add(file, "small", pool_share=0.05),
    }
    with http_daemon(base, file) as served:
        yield Shared(served, file, made)
    shutil.rmtree(base)


def turn(client: httpx2.Client, session: str, tokens: int, **more: Any) -> httpx2.Response:
    body = {"prompt": [5] * tokens, "max_tokens": 1, "session": session} | more
    return client.post("/v1/completions", json=body)


@pytest.mark.parametrize(
    ("name", "method", "path", "status"),
    [
        ("alice", "GET", "/metrics", 403),
        ("alice", "GET", "/v1/pool?blocks=true", 403),
        ("alice", "GET", "/v1/pool", 200),
        ("alice", "GET", "/v1/models", 200),
        ("alice", "GET", "/ready", 200),
        ("watcher", "GET", "/metrics", 200),
        ("watcher", "GET", "/v1/pool?blocks=true", 200),
        ("watcher", "POST", "/v1/completions", 403),
        ("watcher", "POST", "/tokenize", 403),
        ("watcher", "GET", "/v1/sessions", 403),
        ("user", "POST", "/v1/sessions/x/pin", 403),
        ("user", "POST", "/tokenize", 200),
        ("boss", "GET", "/metrics", 200),
        ("boss", "POST", "/tokenize", 200),
    ],
)
def test_a_key_does_what_its_scopes_say(shared: Shared, name: str, method: str, path: str, status: int) -> None:
    with shared.client(name) as client:
        response = client.request(method, path, json={"prompt": "x"} if method == "POST" else None)
    assert response.status_code == status, response.text
    if status == 403:
        assert response.json()["error"]["code"] == "scope_missing"


def test_what_all_do_together_is_for_those_who_may_observe(shared: Shared) -> None:
    with shared.client("alice") as alice, shared.client("watcher") as watcher:
        hers, seen = alice.get("/v1/pool").json(), watcher.get("/v1/pool").json()
    assert (hers["pool"], hers["scheduler"], hers["throughput"], hers["shadows"]) == (None, None, None, [])
    assert seen["pool"]["num_blocks"] == BLOCKS
    for found in (hers, seen):
        assert found["model"]["path"] == ""
        assert not {"pid", "engine_pid"} & found.keys()


def test_pins_stay_within_a_keys_share_and_leave_half_of_the_pool_to_everybody(shared: Shared) -> None:
    with shared.client("alice") as alice, shared.client("bob") as bob:
        for number in range(4):  # of some 31 blocks each: 3 of them are a quarter of 400
            assert turn(alice, f"s{number}", 490).status_code == 200
        pinned = [alice.post(f"/v1/sessions/s{number}/pin", json={"pinned": True}) for number in range(4)]
        assert [one.status_code for one in pinned] == [200, 200, 200, 403]
        error = pinned[-1].json()["error"]
        assert error["code"] == "pin_share"
        assert "may pin 100 of the pool's 400 blocks" in error["message"]
        assert alice.post("/v1/sessions/s0/pin", json={"pinned": True}).status_code == 200, "it is among them already"

        for number in range(4):
            assert turn(bob, f"b{number}", 490).status_code == 200
        pinned = [bob.post(f"/v1/sessions/b{number}/pin", json={"pinned": True}) for number in range(4)]
        assert [one.status_code for one in pinned] == [200, 200, 200, 503], "half of the pool is pinned"
        assert pinned[-1].json()["error"]["code"] == "pool_pinned"
        assert pinned[-1].headers["retry-after"]

        with shared.client("user") as user:
            assert turn(user, "u", 500).status_code == 200
        assert alice.post("/v1/sessions/s0/pin", json={"pinned": False}).status_code == 200
        assert bob.post("/v1/sessions/b3/pin", json={"pinned": True}).status_code == 200
        for client, prefix in ((alice, "s"), (bob, "b")):
            for number in range(4):
                assert client.delete(f"/v1/sessions/{prefix}{number}").status_code == 200


def test_a_pinned_session_that_outgrows_the_share_is_not_let_in_or_is_pinned_no_longer(shared: Shared) -> None:
    keys.change(shared.file, "alice", pin_share=0.05)  # 20 blocks
    try:
        with shared.client("alice") as alice:
            assert turn(alice, "g", 250).status_code == 200
            assert alice.post("/v1/sessions/g/pin", json={"pinned": True}).status_code == 200
            assert turn(alice, "g", 400).json()["error"]["code"] == "pin_share"
            assert turn(alice, "g", 260, max_tokens=100).json()["error"]["code"] == "pin_share"
            # without max_tokens nobody knows; the answer ends, and then the session is like any other
            assert turn(alice, "g", 310, max_tokens=None, ignore_eos=True).status_code == 200
            for _ in range(200):
                (found,) = [one for one in alice.get("/v1/sessions").json()["data"] if one["session"] == "g"]
                if not found["pinned"]:
                    break
            assert not found["pinned"]
            alice.delete("/v1/sessions/g")
    finally:
        keys.change(shared.file, "alice", pin_share=0.25)


def test_a_key_holds_its_share_of_the_pool_at_a_time(shared: Shared) -> None:
    with shared.client("small") as small:
        refused = turn(small, "x", 400)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "key_pool")
        body = {"prompt": [5] * 200, "max_tokens": None, "ignore_eos": True, "stream": True}
        with small.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()  # kept: without it the stream is closed
            next(lines)
            waiting = turn(small, "y", 150)
            assert (waiting.status_code, waiting.json()["error"]["code"]) == (429, "key_pool")
            assert waiting.headers["retry-after"]
        with shared.client("user") as other:
            assert turn(other, "y", 300).status_code == 200


def test_a_minutes_requests_and_tokens_are_counted_and_told(shared: Shared) -> None:
    with shared.client("slow") as slow:
        first = turn(slow, "a", 40)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "3"
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        assert first.headers["x-ratelimit-limit-tokens"] == "100"
        second = turn(slow, "a", 70)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(second.headers["retry-after"]) <= 60
        assert turn(slow, "a", 101).status_code == 400, "no minute has so many"
        fourth = turn(slow, "a", 1)
        assert (fourth.status_code, fourth.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "3 requests a minute" in fourth.json()["error"]["message"]
        assert fourth.headers["x-ratelimit-remaining-requests"] == "0"
        assert slow.get("/v1/models").status_code == 200
        assert 30 < int(slow.get("/v1/models").headers["x-ratelimit-remaining-tokens"]) < 65


def test_tokens_of_answers_are_owed() -> None:
    now = 0.0
    rates = Rates(clock=lambda: now)
    key = Key(name="k", sha256="", salt="", created=0, tokens_per_minute=60)
    rates.prompt(key, 50)
    rates.answered(key, 40)  # 30 more than there were
    with pytest.raises(ApiError) as caught:
        rates.prompt(key, 1)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "31")
    now = 31.0
    rates.prompt(key, 1)
    assert dict(rates.headers(key))[b"x-ratelimit-reset-tokens"] == b"60.000s"
    rates.request(key)  # without a limit
    rates.prompt(ANYBODY, 10**9)
    assert rates.headers(ANYBODY) == []


def test_a_file_from_before_there_were_scopes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = keys.add(file, "old")
    (entry,) = json.loads(file.read_bytes())
    kept = {name: entry[name] for name in ("name", "sha256", "salt", "created", "max_concurrent", "min_priority")}
    file.write_text(json.dumps([kept]))
    key = Keys(file).find(secret)
    assert key is not None
    assert (key.scopes, key.pin_share, key.pool_share) == (("use", "pin"), 0.25, 1.0)
    assert (key.requests_per_minute, key.tokens_per_minute) == (None, None)


def test_keys_are_changed_by_command(folders: Path) -> None:
    assert command("keys", "add", "alice", "--scope", "use", "--tokens-per-minute", "1000").returncode == 0
    done = command("keys", "set", "alice", "--scope", "use", "--scope", "observe", "--pin-share", "0.1")
    assert done.returncode == 0, done.stderr
    assert command("keys", "set", "alice", "--tokens-per-minute", "0", "--requests-per-minute", "5").returncode == 0
    (listed,) = json.loads(command("keys", "--json").stdout)
    assert listed["scopes"] == ["use", "observe"]
    assert (listed["pin_share"], listed["requests_per_minute"]) == (0.1, 5)
    assert "tokens_per_minute" not in listed
    assert command("keys", "set", "alice").returncode == 2
    assert command("keys", "set", "bob", "--scope", "use").returncode == 1
    assert command("keys", "set", "alice", "--scope", "everything").returncode == 1
    assert "use,observe" in command("keys").stdout
    with pytest.raises(KeysError):
        keys.add(folders / "data" / "keys.json", "carol", pin_share=2.0)


def test_a_key_that_was_taken_away_stays_away_when_the_file_is_made_private_again(tmp_path: Path) -> None:
    file, other = tmp_path / "keys.json", tmp_path / "new.json"
    gone, stays = keys.add(file, "gone"), keys.add(file, "stays")
    known = Keys(file)
    assert known.find(gone)
    other.write_bytes(file.read_bytes())
    other.chmod(0o600)
    keys.remove(other, "gone")
    other.chmod(0o644)
    other.replace(file)
    assert known.required
    assert known.find(gone), "a file that is not private opens and closes nothing"
    file.chmod(0o600)  # as the log advises
    assert known.required
    assert known.find(gone) is None
    assert known.find(stays)
