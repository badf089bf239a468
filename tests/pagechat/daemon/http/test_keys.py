"""API keys: what the file holds, what the door asks, and that one key learns and takes nothing of another's."""

from __future__ import annotations

import base64
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pagechat.daemon.http import keys
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from tests.daemons import wait_until
from tests.pagechat.daemon.http.conftest import http_daemon

HELLO = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "a long story " * 12}]


# -- the file ------------------------------------------------------------------------------------


def test_the_file_holds_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = keys.add(path, "alice")
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    found = keys.Keys(path).find(secret)
    assert found is not None
    assert found.name == "alice"
    assert keys.Keys(path).find(secret + "x") is None


def test_every_key_has_a_salt_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for name in ("a", "b"):
        keys.add(path, name)
    salts = {key.cache_salt for key in keys.load(path)}
    assert len(salts) == 2
    assert all(len(salt) == 16 for salt in salts)


def test_a_key_that_is_removed_opens_nothing_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = keys.add(path, "alice")
    known = keys.Keys(path)
    keys.remove(path, "alice")
    assert known.required  # nobody gets in, not everybody
    assert known.find(secret) is None


@pytest.mark.parametrize("breakage", [Path.unlink, lambda path: path.write_text("{"), lambda path: path.chmod(0o644)])
def test_a_file_that_breaks_while_in_use_opens_nothing(tmp_path: Path, breakage: Any) -> None:
    path = tmp_path / "keys.json"
    secret = keys.add(path, "alice")
    known = keys.Keys(path)
    breakage(path)
    assert known.required
    assert known.find(secret) is not None


def test_a_file_from_before_there_were_bounds_gives_nobody_the_right_of_way(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(f'[{{"name": "old", "sha256": "{"0" * 64}", "salt": "00", "created": 1}}]')
    path.chmod(0o600)
    assert [key.min_priority for key in keys.load(path)] == [0]


def test_a_bound_that_is_no_priority_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('[{"name": "a", "sha256": "", "salt": "", "created": 1, "min_priority": 2147483648}]')
    path.chmod(0o600)
    with pytest.raises(keys.KeysError, match="min_priority"):
        keys.Keys(path)


@pytest.mark.parametrize("name", ["", "a/b", "-x", "a" * 65, "ä"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(keys.KeysError, match="1 to 64 letters"):
        keys.add(tmp_path / "keys.json", name)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys.add(path, "alice")
    path.chmod(0o640)
    with pytest.raises(keys.KeysError, match="chmod 600"):
        keys.Keys(path)


# -- the door ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_nobody_listens_beyond_this_machine_without_a_key(tmp_path: Path, host: str) -> None:
    with pytest.raises(AddressError, match="keys add"):
        HttpDoor.listen(HttpPlan(address=Address(host, 0), keys=tmp_path / "keys.json"))


class Locked:
    """A daemon whose door asks for the keys of alice and of bob, who may do one thing at a time."""

    def __init__(self, url: str, path: Path, alice: str, bob: str) -> None:
        self.url, self.path, self.alice, self.bob = url, path, alice, bob

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def http(self, key: str | None = None) -> httpx2.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def locked() -> Iterator[Locked]:
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    path = base / "keys.json"
    alice, bob = keys.add(path, "alice"), keys.add(path, "bob", max_concurrent=1)
    with http_daemon(base, path) as served:
        yield Locked(served.url, path, alice, bob)


def test_every_route_but_health_asks_for_a_key(locked: Locked) -> None:
    with locked.http(locked.alice) as http:
        document = http.get("/openapi.json").json()
    assert len(document["paths"]) >= 10
    with locked.http() as http:
        for path, operations in document["paths"].items():
            for method in operations:
                response = http.request(method, path.replace("{name}", "x"))
                assert response.status_code == (200 if path == "/health" else 401), path
        for path in ("/openapi.json", "/", "/nowhere", "/health/", "//health", "/metrics"):
            assert http.get(path).status_code == 401, path


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "Basic"])
def test_a_key_comes_as_a_bearer_or_as_a_browsers_password(locked: Locked, form: str) -> None:
    header = form.format(locked.alice)
    if form == "Basic":
        header += " " + base64.b64encode(f"anybody:{locked.alice}".encode()).decode()
    with locked.http() as http:
        assert http.get("/v1/models", headers={"authorization": header}).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic ???", "Basic d3Jvbmc=", "Token x", "\xff"])
def test_anything_else_is_unauthorized(locked: Locked, header: str) -> None:
    with locked.http() as http:
        response = http.get("/v1/models", headers={"authorization": header.encode("latin-1")})
    assert response.status_code == 401
    assert "Bearer" in response.headers["www-authenticate"]


def test_keys_share_no_cached_prefix(locked: Locked) -> None:
    def cached(key: str) -> int:
        with locked.client(key) as client:
            found = client.completions.create(model="smollm2", prompt="a secret " * 30, max_tokens=1)
        assert found.usage is not None
        assert found.usage.prompt_tokens_details is not None
        return found.usage.prompt_tokens_details.cached_tokens or 0

    assert cached(locked.alice) == 0
    assert cached(locked.bob) == 0
    assert cached(locked.alice) > 0


def test_a_key_sees_its_own_sessions_and_usage(locked: Locked) -> None:
    with locked.http(locked.alice) as alice, locked.http(locked.bob) as bob:
        for http in (alice, bob):
            assert http.post("/v1/completions", json={"prompt": "hello", "session": "same"}).status_code == 200
        assert [session["session"] for session in bob.get("/v1/sessions").json()["data"]] == ["same"]
        usage = bob.get("/v1/usage").json()
        assert [tenant["name"] for tenant in usage["tenants"]] == ["bob"]
        assert "same" in [one["name"] for one in usage["sessions"]]
        assert {one["tenant"] for one in usage["sessions"]} == {"bob"}
        assert bob.delete("/v1/sessions/same").status_code == 200
        assert [session["session"] for session in alice.get("/v1/sessions").json()["data"]] == ["same"]


def test_a_key_sees_its_own_requests_and_their_priorities(locked: Locked) -> None:
    name = f"long-{secrets.token_hex(4)}"
    with locked.http(keys.add(locked.path, name)) as mine, locked.http(locked.alice) as alice:
        body = {"prompt": "hello", "session": "s", "stream": True, "priority": 3}
        with mine.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            (told,) = mine.get("/v1/pool").json()["requests"]
            assert alice.get("/v1/pool").json()["requests"] == []
            assert (told["session"], told["tenant"], told["priority"]) == ("s", name, 3)
            # the report of the step comes behind its tokens
            wait_until(lambda: mine.get("/v1/pool").json()["requests"][0]["state"] == "running", "blocks in the mirror")
    keys.remove(locked.path, name)


def test_a_key_does_so_much_at_a_time(locked: Locked) -> None:
    with locked.client(locked.bob) as bob, locked.client(locked.alice) as alice:
        with pytest.raises(openai.BadRequestError, match="asks for 2"):  # waiting would not help
            bob.chat.completions.create(model="smollm2", messages=HELLO, n=2)  # type: ignore[call-overload]
        stream = bob.chat.completions.create(model="smollm2", messages=LONG, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.RateLimitError, match="'bob' may have 1") as caught:
            bob.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[call-overload]
        assert int(caught.value.response.headers["retry-after"]) > 0
        alice.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[call-overload]
        for _ in stream:
            pass
        bob.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[call-overload]


@pytest.mark.parametrize("route", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize(
    ("bound", "asked", "served_at"),
    [
        *((0, -1, None), (0, 0, 0), (0, None, 0), (0, 7, 7)),
        *((-5, -6, None), (-5, -5, -5), (-5, None, 0)),
        *((10, 0, None), (10, 9, None), (10, 10, 10), (10, None, 10)),
    ],
)
def test_a_key_may_ask_for_priorities_from_its_bound_on(
    locked: Locked, route: str, bound: int, asked: int | None, served_at: int | None
) -> None:
    name = f"long-{secrets.token_hex(4)}"  # so its sessions' labels begin like that too: the engine does not end them
    body: dict[str, Any] = {"session": "s", "stream": True} | ({} if asked is None else {"priority": asked})
    body |= {"chat/completions": {"messages": HELLO}, "completions": {"prompt": "hello"}}.get(route, {"input": "hello"})
    with locked.http(keys.add(locked.path, name, min_priority=bound)) as http:
        if served_at is None:
            refused = http.post(f"/v1/{route}", json=body)
            assert refused.status_code == 403
            error = refused.json()["error"]
            assert (error["param"], error["type"]) == ("priority", "permission_error")
            assert f"may ask for {bound} and higher" in error["message"]
            assert http.get("/v1/sessions").json()["data"] == []
        else:
            with http.stream("POST", f"/v1/{route}", json=body) as answer:
                assert answer.status_code == 200
                lines = answer.iter_lines()  # the answer ends with it
                next(lines)
                (session,) = http.get("/v1/sessions").json()["data"]
                assert (session["state"], session["priority"]) == ("running", served_at)
    keys.remove(locked.path, name)


def test_a_key_made_now_opens_the_door_now(locked: Locked) -> None:
    carol = keys.add(locked.path, "carol")
    with locked.client(carol) as client:
        assert client.models.list().data


def test_the_log_never_has_a_prompt_or_a_key(tmp_path: Path, folders: Path) -> None:
    secret, path = "the-launch-code", tmp_path / "keys.json"
    key = keys.add(path, "alice")
    with http_daemon(folders, path) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client:
            client.completions.create(model="smollm2", prompt=secret)
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model="smollm2", prompt=secret, extra_body={"unknown": secret})
        logs = (folders / "run" / "engine.log").read_text()
        served.daemon.signal(signal.SIGTERM)
        logs += served.daemon.said()
    assert "OpenAI-compatible" in logs
    assert secret not in logs
    assert key not in logs
