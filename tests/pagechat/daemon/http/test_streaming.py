"""Events as bytes: what is written around a text is written once, and nothing else about an event changes by that."""

from __future__ import annotations

import json
import re
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagechat.daemon.http.streaming import Envelope
from tests.pagechat.daemon.http.conftest import Served

WHOLE: dict[str, Any] = {"id": 'a""b\\', "model": "", "choices": []}


@pytest.mark.parametrize("more", [{}, {"usage": None, "label": ""}])
@given(text=st.text())
def test_events_of_a_text_are_those_of_its_choice(more: dict[str, Any], text: str) -> None:
    envelope = Envelope(WHOLE, more)
    made = envelope.texts({"index": 3, "delta": {"content": ""}, "finish_reason": None})(text)
    choice = {"index": 3, "delta": {"content": text}, "finish_reason": None}
    assert made == envelope.event(choice)
    assert json.loads(made.removeprefix(b"data: ")) == WHOLE | {"choices": [choice]} | more
    assert made.endswith(b"\n\n")
    assert made.count(b"\n") == 2


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_of_either_version_gets_the_same_events(served: Served, idle: None, version: str) -> None:
    place = urlsplit(served.url)
    body = json.dumps({"prompt": "one and two", "stream": True, "stream_options": {"include_usage": True}})
    head = f"POST /v1/completions HTTP/{version}\r\nhost: {place.netloc}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        connection.sendall((head + body).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, events = answer.decode().partition("\r\n\r\n")
    assert ("transfer-encoding: chunked" in head.lower()) == (version == "1.1")
    if version == "1.1":
        assert events.endswith("\r\n0\r\n\r\n")
        events = re.sub(r"(^|\r\n)[0-9a-f]+\r\n", "", events.removesuffix("0\r\n\r\n")).removesuffix("\r\n")
    *told, usage, done = [line.removeprefix("data: ") for line in events.split("\n\n")[:-1]]
    assert "".join(json.loads(one)["choices"][0]["text"] for one in told) == "one and two"
    assert json.loads(usage)["usage"]["completion_tokens"] > 0
    assert done == "[DONE]"
