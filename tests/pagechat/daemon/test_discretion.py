"""What a fault tells to whom: this user's own programs everything, everybody else fixed words and an id."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx2
import msgspec
import pytest

from pagechat import rundir
from pagechat.client import AsyncEngineClient, RequestFailed
from pagechat.daemon import curve
from pagechat.daemon.front import TcpPlan
from pagechat.daemon.http.address import Address
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.supervisor import Patience
from pagechat.remote import FILE
from tests.daemons import running_front, until, whole

pytestmark = pytest.mark.usefixtures("fake_engine")
GENERIC = (
    r"the engine ended before this was done; another one is started \(the daemon's log has more under ([0-9a-f]{8})\)"
)


async def test_the_words_of_a_fault_stay_on_this_machine(folders: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = folders / "curve.json"
    curve.add(keys, "first", "tcp://127.0.0.1:1")
    door = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0)))
    patience = Patience(backoff_s=0.01, stop_s=3, quick_failures=9)
    async with running_front(patience=patience, tcp=TcpPlan(Address("127.0.0.1", 0), keys), http=door) as front:
        directory = rundir.run_dir(folders / "far")
        (directory / FILE).write_bytes(msgspec.json.encode(curve.add(keys, "laptop", f"tcp://{front.tcp}")))
        (directory / FILE).chmod(0o600)
        async with await AsyncEngineClient.connect() as near, await AsyncEngineClient.connect(directory) as far:
            await near.snapshot()
            known, told = await near.status(), await far.status()
            assert 0 not in (known.pid, known.engine_pid or 0)
            assert known.model is not None
            assert known.model.path
            assert (told.pid, told.engine_pid, told.model and told.model.path) == (0, None, "")
            assert far.welcome.pid == 0
            assert (await whole(far, "hello")).text

            with pytest.raises(RequestFailed) as caught:
                await whole(near, "one two three four five six", session="die")
            assert "SIGKILL" in str(caught.value) or "signal" in str(caught.value)
            await near.snapshot()
            with pytest.raises(RequestFailed) as caught:
                await whole(far, "one two three four five six", session="die")
            found = re.search(GENERIC, str(caught.value))
            assert found, caught.value
            assert any(found.group(1) in record.message and "tokens" in record.message for record in caplog.records)
            await near.snapshot()
            async with httpx2.AsyncClient(base_url=door.url, timeout=20) as http:
                while True:
                    try:
                        if (await http.get("/health")).status_code == 200:
                            break
                    except httpx2.TransportError:
                        pass
                    await asyncio.sleep(0.05)
                status = (await http.get("/v1/pool")).json()
                assert not {"pid", "engine_pid"} & status.keys()
                assert status["model"]["path"] == ""
                body = {"prompt": "one two three four five six", "session": "die"}
                answer = await http.post("/v1/completions", json=body | {"stream": True})
                assert re.search(GENERIC, answer.text)
                await near.snapshot()
                answer = await http.post("/v1/completions", json=body)
                assert answer.status_code == 503
                assert re.search(GENERIC, answer.json()["error"]["message"])


async def test_who_asks_for_health_is_not_told_what_an_exception_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_LOAD", "fail")
    door = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0)))
    async with running_front(http=door) as front, httpx2.AsyncClient(base_url=door.url, timeout=20) as http:
        await until(lambda: front.supervisor.state == "failed", "failure")
        assert "no such model" in (front.supervisor.error or "")
        assert "no such model" in front.supervisor.words
        for path in ("/health", "/ready", "/v1/models", "/v1/pool"):
            answer = await http.get(path)
            assert "the engine failed" in answer.text
            assert "no such model" not in answer.text
        answer = await http.post("/v1/completions", json={"prompt": "x"})
        assert (answer.status_code, "no such model" in answer.text) == (503, False)
