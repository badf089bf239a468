"""`pagechat-daemon` with its engine on a GPU: it answers, and engine and front survive, or follow, each other's end."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from pagechat.client import EngineClient, RequestFailed
from pagechat.protocol import ChatOptions, Delta
from tests.daemons import serving, user, wait_until
from tests.models import tiny_llama

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("folders")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


def options(max_tokens: int) -> ChatOptions:
    return ChatOptions(max_tokens=max_tokens, temperature=0, ignore_eos=True)


def serve(model: Path) -> list[str]:
    """Other tests use the same GPU: a small pool."""
    return ["--model", str(model), "--device", "cuda", "--num-blocks", "300"]


def running(pid: int) -> bool:
    """Its memory on the GPU is free when it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_answers_and_an_engine_killed_in_mid_answer_is_followed_by_another(tiny: Path) -> None:
    with serving(*serve(tiny), "--http", "127.0.0.1:0") as _, EngineClient() as client:
        status = wait_until(lambda: (s := client.status()).state == "ready" and s, "engine that is ready", 120)
        assert status.device == "cuda"

        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"{status.http}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["usage"]["completion_tokens"] <= 8

        answer = client.chat(user("a long story"), session="killed", options=options(3000))
        while not isinstance(next(answer), Delta):
            pass
        os.kill(status.engine_pid, signal.SIGKILL)
        with pytest.raises(RequestFailed, match="SIGKILL"):
            list(answer)

        assert list(client.chat(user("hello again"), session="after", options=options(8)))
        again = client.status()
        assert again.engine_pid != status.engine_pid
        assert again.device == "cuda"
        assert not running(status.engine_pid)


def test_the_engine_of_a_killed_front_gives_the_gpu_back(tiny: Path) -> None:
    with serving(*serve(tiny), "--no-http") as daemon:
        with EngineClient() as client:
            status = wait_until(lambda: (s := client.status()).state == "ready" and s, "engine that is ready", 120)
        daemon.signal(signal.SIGKILL)
        wait_until(lambda: not running(status.engine_pid), "end of the engine", 10)
