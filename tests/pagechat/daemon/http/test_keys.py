"""API keys: what the file holds, what the door asks, and that one key learns and takes nothing of another's."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pagechat.daemon.front import Front
from pagechat.daemon.http import keys
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.door import HttpDoor
from tests.daemons import running_front, until

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
    salts = {keys.Keys(path).find(keys.add(path, name)).cache_salt for name in ("a", "b")}  # type: ignore[union-attr]
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
        HttpDoor.listen(Address(host, 0), tmp_path / "keys.json")


class Locked:
    """A front whose door asks for the keys of alice and of bob, who may do one thing at a time."""

    def __init__(self, front: Front, url: str, alice: str, bob: str) -> None:
        self.front, self.url, self.alice, self.bob = front, url, alice, bob

    def client(self, key: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def locked(fake_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Locked]:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.005")
    path = tmp_path / "keys.json"
    alice, bob = keys.add(path, "alice"), keys.add(path, "bob", max_concurrent=1)
    door = HttpDoor.listen(Address("127.0.0.1", 0), path)
    async with running_front(http=door) as front:
        await until(lambda: front.supervisor.state == "ready", "engine")
        yield Locked(front, door.url, alice, bob)


async def test_every_route_but_health_asks_for_a_key(locked: Locked) -> None:
    async with httpx2.AsyncClient(base_url=locked.url) as http:
        document = (await http.get("/openapi.json", headers={"authorization": f"Bearer {locked.alice}"})).json()
        assert len(document["paths"]) >= 10
        for path, operations in document["paths"].items():
            for method in operations:
                response = await http.request(method, path.replace("{name}", "x"))
                assert response.status_code == (200 if path == "/health" else 401), path
        for path in ("/openapi.json", "/", "/nowhere", "/health/", "//health", "/metrics"):
            assert (await http.get(path)).status_code == 401, path


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "Basic"])
async def test_a_key_comes_as_a_bearer_or_as_a_browsers_password(locked: Locked, form: str) -> None:
    header = form.format(locked.alice)
    if form == "Basic":
        header += " " + base64.b64encode(f"anybody:{locked.alice}".encode()).decode()
    async with httpx2.AsyncClient(base_url=locked.url) as http:
        assert (await http.get("/v1/models", headers={"authorization": header})).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic ???", "Basic d3Jvbmc=", "Token x", "\xff"])
async def test_anything_else_is_unauthorized(locked: Locked, header: str) -> None:
    async with httpx2.AsyncClient(base_url=locked.url) as http:
        response = await http.get("/v1/models", headers={"authorization": header.encode("latin-1")})
    assert response.status_code == 401
    assert "Bearer" in response.headers["www-authenticate"]


async def test_keys_share_no_cached_prefix(locked: Locked) -> None:
    async def cached(key: str) -> int:
        async with locked.client(key) as client:
            found = await client.completions.create(model="smollm2", prompt="a secret " * 30, max_tokens=1)
        assert found.usage is not None
        assert found.usage.prompt_tokens_details is not None
        return found.usage.prompt_tokens_details.cached_tokens or 0

    assert await cached(locked.alice) == 0
    assert await cached(locked.bob) == 0
    assert await cached(locked.alice) > 0


async def test_a_key_sees_its_own_sessions_and_usage(locked: Locked) -> None:
    async with httpx2.AsyncClient(base_url=locked.url) as http:
        for key in (locked.alice, locked.bob):
            http.headers["authorization"] = f"Bearer {key}"
            assert (await http.post("/v1/completions", json={"prompt": "hello", "session": "same"})).status_code == 200
        (session,) = (await http.get("/v1/sessions")).json()["data"]
        assert session["session"] == "same"
        usage = (await http.get("/v1/usage")).json()
        assert [tenant["name"] for tenant in usage["tenants"]] == ["bob"]
        assert [one["name"] for one in usage["sessions"]] == ["same"]
        assert (await http.delete("/v1/sessions/same")).status_code == 200
        http.headers["authorization"] = f"Bearer {locked.alice}"
        assert len((await http.get("/v1/sessions")).json()["data"]) == 1  # bob closed his own


async def test_a_key_does_so_much_at_a_time(locked: Locked) -> None:
    async with locked.client(locked.bob) as bob, locked.client(locked.alice) as alice:
        with pytest.raises(openai.RateLimitError, match="asks for 2") as caught:
            await bob.chat.completions.create(model="smollm2", messages=HELLO, n=2)  # type: ignore[arg-type]
        assert int(caught.value.response.headers["retry-after"]) > 0
        stream = await bob.chat.completions.create(model="smollm2", messages=LONG, stream=True)  # type: ignore[arg-type]
        with pytest.raises(openai.RateLimitError, match="'bob' may have 1"):
            await bob.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[arg-type]
        await alice.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[arg-type]
        async for _ in stream:
            pass
        await bob.chat.completions.create(model="smollm2", messages=HELLO)  # type: ignore[arg-type]


async def test_a_key_made_now_opens_the_door_now(locked: Locked, tmp_path: Path) -> None:
    carol = keys.add(tmp_path / "keys.json", "carol")
    async with locked.client(carol) as client:
        assert (await client.models.list()).data


async def test_the_log_never_has_a_prompt_or_a_key(
    locked: Locked, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(0)
    secret = "the-launch-code"
    async with locked.client(locked.alice) as client:
        await client.completions.create(model="smollm2", prompt=secret)
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="smollm2", prompt=secret, extra_body={"unknown": secret})
    daemon_log = "\n".join(
        record.getMessage()
        for record in caplog.records
        if not record.name.startswith(("openai", "httpx2", "httpcore2"))
    )
    out, err = capfd.readouterr()
    assert secret not in daemon_log + out + err
    assert locked.alice not in daemon_log + out + err
