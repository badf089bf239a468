"""The `llm` command (https://llm.datasette.io), pointed at a daemon as its own documentation says. It is no dependency
of these tests: `pip install llm` to run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pagechat.daemon.http.conftest import Served

LLM = shutil.which("llm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))

pytestmark = pytest.mark.skipif(LLM is None, reason="no llm command here: pip install llm")

MODELS = """\
- model_id: chat
  model_name: smollm2
  api_base: {url}/v1
- model_id: text
  model_name: smollm2
  api_base: {url}/v1
  completion: true
"""


@pytest.fixture
def ask(served: Served, idle: None, tmp_path: Path) -> Callable[..., str]:
    """What `llm` prints."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=served.url))

    def run(*arguments: str) -> str:
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        done = subprocess.run(
            [str(LLM), *arguments], env=environment, capture_output=True, encoding="utf-8", timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("how", [(), ("--no-stream",)])
def test_it_chats(ask: Callable[..., str], how: tuple[str, ...]) -> None:
    assert ask("-m", "chat", *how, "hello there") == "user\nhello there\nassistant\n\n"


def test_it_sends_its_system_message_and_options(ask: Callable[..., str]) -> None:
    shown = ask("-m", "chat", "-s", "be kind", "hello", "-o", "temperature", "0", "-o", "max_tokens", "5")
    assert shown.startswith("system\nbe")
    assert "assistant" not in shown


def test_it_completes_and_goes_on_with_the_conversation(ask: Callable[..., str]) -> None:
    assert ask("-m", "chat", "first") == "user\nfirst\nassistant\n\n"
    assert "first\n" in ask("-c", "second")
    assert ask("-m", "text", "to be continued") == "to be continued\n"
