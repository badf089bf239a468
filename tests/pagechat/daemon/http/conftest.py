"""A daemon with its HTTP door open, and the clients that people have."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import pytest

from pagechat.client import EngineClient
from tests.daemons import Daemon, end, model_folder, wait_until
from tests.models import tiny_llama
from tests.pagechat.conftest import fake_engine_environment

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}"
    "call as <tool_call>{}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.content == 'refuse me' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think>\n</think>{% endif %}{% endif %}"
)
"""ChatML with tools, in the way of Qwen's and Hermes'."""


@dataclass(frozen=True)
class Served:
    url: str
    engine: EngineClient
    """Another way to the same daemon."""
    notes: Path
    daemon: Daemon

    def engine_notes(self) -> list[str]:
        return self.notes.read_text().splitlines()


@contextlib.contextmanager
def http_daemon(base: Path, keys: Path, model: Path | None = None) -> Iterator[Served]:
    """A daemon with the fake engine, or with the real one and `model`, and files in `base`; ended by SIGTERM at the
    latest."""
    arguments = ["--num-blocks", "400", "--http", "127.0.0.1:0", "--keys", str(keys), "--run-dir", str(base / "run")]
    environment: dict[str, str] = {}
    if model is not None:
        arguments += ["--model", str(model), "--threads", "1"]
    else:
        environment = fake_engine_environment(model_folder(base / "model"), base / "notes")
        environment["FAKE_ENGINE_STEP_S"] = "0.001"
    daemon = Daemon(*arguments, env={**os.environ, **environment})
    try:
        daemon.until_answering(base / "run")
        with EngineClient.connect(base / "run") as client:
            client.snapshot()  # the engine is ready
            url = client.status().http
            assert url is not None
            yield Served(url, client, base / "notes", daemon)
    finally:
        end(daemon)


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    """One daemon for all these tests, which leave it as they found it."""
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    with http_daemon(base, base / "keys.json") as served:
        yield served
    shutil.rmtree(base)


@pytest.fixture(scope="package")
def real() -> Iterator[Served]:
    """One daemon with the real engine and a tiny random model whose template takes tools and marks reasoning."""
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    model = tiny_llama(base)
    (model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    with http_daemon(base, base / "keys.json", model) as served:
        yield served
    shutil.rmtree(base)


@pytest.fixture
def idle(served: Served) -> Iterator[None]:
    """After the test no sequence owns a block."""
    yield
    wait_until(lambda: not served.engine.snapshot().sequences, "end of every sequence")


@pytest.fixture(scope="package")
def _http(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        yield client


@pytest.fixture
def http(_http: httpx2.Client, idle: None) -> httpx2.Client:
    """Raw requests."""
    return _http


@pytest.fixture(scope="package")
def _client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(_client: openai.OpenAI, idle: None) -> openai.OpenAI:
    return _client


@pytest.fixture(scope="package")
def real_client(real: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="package")
def real_http(real: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=real.url, timeout=60) as client:
        yield client


@pytest.fixture
async def async_client(served: Served, idle: None) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client
