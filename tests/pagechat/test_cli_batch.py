"""`pagechat-daemon batch`: a file of requests, answered once each, however often it is killed on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagechat.commands import exits
from pagechat.commands.batch import read
from pagechat.commands.exits import CommandError
from tests.daemons import ROOT, command, serving, wait_until

pytestmark = pytest.mark.usefixtures("fake_engine")


def requests(path: Path, count: int, **body: Any) -> Path:
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": f"number {number}"}], **body},
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_is_answered_by_a_daemon_that_is_started_and_stopped(tmp_path: Path) -> None:
    source = requests(tmp_path / "in.jsonl", 5)
    done = command("batch", str(source), str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    found = {answer["custom_id"]: answer for answer in answers(tmp_path / "out.jsonl")}
    assert set(found) == {f"r{number}" for number in range(5)}
    for number in range(5):
        response = found[f"r{number}"]["response"]
        assert response["status_code"] == 200
        assert f"number {number}" in response["body"]["choices"][0]["message"]["content"]
        assert response["request_id"]
    assert "5 requests, 0 without an answer" in done.stderr


def test_a_run_that_was_killed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    source, target = requests(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    arguments = [sys.executable, "-m", "pagechat.commands", "batch", str(source), str(target), "--concurrency", "2"]
    with serving("--http", "127.0.0.1:0"):
        process = subprocess.Popen(arguments, cwd=ROOT)
        wait_until(lambda: target.exists() and len(target.read_bytes().splitlines()) >= 3, "some answers")
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = answers(target)
        assert 3 <= len(before) < 12
        with target.open("ab") as half:
            half.write(b'{"custom_id": "r1')  # as a kill in the middle of a write leaves it
        assert command("batch", str(source), str(target)).returncode == 0
    found = answers(target)
    assert found[: len(before)] == before
    assert sorted(answer["custom_id"] for answer in found) == sorted(f"r{number}" for number in range(12))


def test_a_request_that_is_refused_is_an_answer_and_an_exit_code(tmp_path: Path) -> None:
    source = requests(tmp_path / "in.jsonl", 1, temperature=9)
    done = command("batch", str(source), str(tmp_path / "out.jsonl"))
    assert done.returncode == 1
    (answer,) = answers(tmp_path / "out.jsonl")
    assert answer["response"]["status_code"] == 400
    assert answer["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "line 1: not a JSON object"),
        ('{"url": "/v1/completions", "body": {}}', "custom_id is missing"),
        ('{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "url must be one of"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}', "without stream"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}\n' * 2, "line 2: custom_id 'a' is there already"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_before_anything_is_asked(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "in.jsonl").write_text(line)
    with pytest.raises(CommandError, match=re.escape(words)) as caught:
        read(tmp_path / "in.jsonl")
    assert caught.value.exit_code == exits.USAGE


def test_a_file_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    source, other = requests(tmp_path / "in.jsonl", 1), tmp_path / "notes.txt"
    other.write_text("my notes\n")
    done = command("batch", str(source), str(other), env=dict(os.environ))
    assert done.returncode == 2
    assert other.read_text() == "my notes\n"
