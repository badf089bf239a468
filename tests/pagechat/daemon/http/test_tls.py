"""HTTPS, with a certificate that openssl makes for the test."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest

from pagechat.client import EngineClient
from pagechat.daemon.http.address import Address, AddressError
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from tests.daemons import command, serving, wait_until

OPENSSL = shutil.which("openssl")

pytestmark = [
    pytest.mark.usefixtures("fake_engine"),
    pytest.mark.skipif(OPENSSL is None, reason="no openssl here to make a certificate with"),
]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, and its key."""
    chain, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -batch"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(chain)]
    subprocess.run([str(OPENSSL), *words.split(), *more], check=True, capture_output=True)
    return chain, key


def test_clients_that_trust_the_certificate_are_answered_and_streamed_to(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chain, key = map(str, certificate)
    with serving("--http", "127.0.0.1:0", "--tls-cert", chain, "--tls-key", key), EngineClient.connect() as engine:
        url = wait_until(lambda: engine.status().state == "ready" and engine.status().http, "engine")
        assert url.startswith("https://127.0.0.1:")
        with httpx2.Client(base_url=url, verify=ssl.create_default_context(cafile=chain), timeout=30) as http:
            body = {"prompt": "hello there " * 9, "stream": True, "max_tokens": 100}
            lines = http.post("/v1/completions", json=body).text.split("\n\n")
        assert lines[-2] == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
        assert "".join(event["choices"][0]["text"] for event in events) == body["prompt"]
        with pytest.raises(httpx2.ConnectError, match="certificate"):
            httpx2.get(f"{url}/health")
        # and `batch` is such a client
        monkeypatch.setenv("SSL_CERT_FILE", chain)
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello"}}
        (tmp_path / "in.jsonl").write_text(json.dumps(line))
        done = command("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
        assert done.returncode == 0, (tmp_path / "out.jsonl").read_text()


def test_files_that_are_no_certificate_are_refused_before_anything_starts(certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    for wrong in ((chain, chain), (chain, chain.with_name("none")), (Path(__file__), key)):
        with pytest.raises(AddressError, match="certificate and its private key"):
            HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0), tls=wrong))


def test_one_file_without_the_other_is_refused() -> None:
    done = command("serve", "--tls-cert", "cert.pem")
    assert done.returncode == 1
    assert "belong together" in done.stderr


def test_a_certificate_is_no_key(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with pytest.raises(AddressError, match="keys add"):
        HttpDoor.listen(HttpPlan(address=Address("0.0.0.0", 0), tls=certificate, keys=tmp_path / "keys.json"))
