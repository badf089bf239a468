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
from pagechat.commands.batch_output import Output
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


ANSWER = (
    b'{"id": "batch_req_1", "custom_id": "r0", "response": {"status_code": 200, "request_id": "x", "body": {}}, '
    b'"error": null}'
)
FAILURE = (
    b'{"id": "batch_req_1", "custom_id": "r0", "response": null, "error": {"code": "connection", "message": "no"}}'
)
OVERLOADED = ANSWER.replace(b"200", b"503")


@pytest.mark.parametrize(
    "content",
    [
        b"my only notes",
        b'{"setting": 1}',
        b"\x89PNG\x00\x01\x02",
        b"two\nlines\n",
        b"[]",
        b'{"custom_id": "r0"}\n',  # a batch's input, say
        b'{"id": "batch',  # too little to know whose it is
        ANSWER + b"\nand my remark on it",
        ANSWER + b'\n{"my": "remark"}',
        ANSWER + b"\nand my remark on it\n",
        ANSWER + b"\n[1]\n",
        b"\xff\xfe\n",
    ],
)
def test_what_a_batch_did_not_write_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    source, other = requests(tmp_path / "in.jsonl", 1), tmp_path / "out"
    other.write_bytes(content)
    with pytest.raises(CommandError, match="holds no answers of a batch") as caught:
        Output(source, other)
    assert caught.value.exit_code == exits.USAGE
    assert other.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b"", b""),
        (ANSWER, ANSWER + b"\n"),
        (ANSWER + b"\r\n", ANSWER + b"\r\n"),
        (ANSWER + b"\n" + ANSWER[:40], ANSWER + b"\n"),
        (ANSWER[:40], b""),
        (FAILURE + b"\n" + ANSWER.replace(b"r0", b"r1") + b"\n", ANSWER.replace(b"r0", b"r1") + b"\n"),
        (ANSWER + b"\n" + FAILURE, ANSWER + b"\n"),
        (OVERLOADED + b"\n", b""),
        (ANSWER.replace(b"200", b"400") + b"\n", ANSWER.replace(b"200", b"400") + b"\n"),
    ],
)
def test_answers_stay_and_failures_and_half_lines_go(tmp_path: Path, content: bytes, kept: bytes) -> None:
    target = tmp_path / "out"
    target.write_bytes(content)
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    with Output(tmp_path / "in", link) as output:
        assert len(output.answered) == kept.count(b"custom_id")
        output.write({"custom_id": "new", "response": {"status_code": 200}, "error": None})
    assert target.read_bytes().startswith(kept)
    assert target.read_bytes().count(b"\n") == kept.count(b"\n") + 1
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to, None])
def test_the_input_is_never_the_output(tmp_path: Path, make: Any) -> None:
    source = requests(tmp_path / "in.jsonl", 2)
    content = source.read_bytes()
    target = tmp_path / "out.jsonl" if make else tmp_path / ".." / tmp_path.name / "in.jsonl"
    if make:
        make(target, source)
    done = command("batch", str(source), str(target))
    assert done.returncode == exits.USAGE
    assert "is the input itself" in done.stderr
    assert source.read_bytes() == content


def test_one_run_at_a_time_writes_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    with Output(source, target), pytest.raises(CommandError, match="another batch is writing"):
        Output(source, target)
    target.write_bytes(FAILURE + b"\n")
    with Output(source, target), pytest.raises(CommandError, match="another batch is writing"):
        Output(source, target)  # also where the first one has put a new file there
    with Output(source, target):
        pass


def test_what_cannot_be_written_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be written"):
        Output(tmp_path / "in", tmp_path / "no" / "out")
    with pytest.raises(CommandError, match="no file that answers"):
        Output(tmp_path / "in", Path("/dev/null"))
    with pytest.raises(CommandError):
        Output(tmp_path / "in", tmp_path)


def test_a_full_disk_ends_the_run_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with Output(tmp_path / "in", tmp_path / "out") as output:
        output.write(json.loads(ANSWER))

        def half(file: int, data: bytes) -> int:
            if len(data) < 20:
                raise OSError(28, "No space left on device")
            return write(file, data[: len(data) - 10])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(CommandError, match="No space left"):
            output.write(json.loads(ANSWER))
    assert (tmp_path / "out").read_bytes() == ANSWER + b"\n"


def test_where_nothing_can_be_made_beside_the_file_failures_stay_and_the_later_line_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, opened = tmp_path / "out", os.open
    target.write_bytes(FAILURE + b"\n" + ANSWER.replace(b"r0", b"r1") + b"\n" + ANSWER[:30])

    def refusing(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    with Output(tmp_path / "in", target) as output:
        assert set(output.answered) == {"r1"}
        output.write(json.loads(ANSWER))
    assert [answer["custom_id"] for answer in answers(target)] == ["r0", "r1", "r0"]
    with Output(tmp_path / "in", target) as output:
        assert set(output.answered) == {"r0", "r1"}


def test_a_daemon_that_goes_is_asked_no_more_and_the_next_run_asks_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0.02")
    source, target = requests(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    arguments = [sys.executable, "-m", "pagechat.commands", "batch", str(source), str(target), "--concurrency", "4"]
    with serving("--http", "127.0.0.1:0") as daemon:
        process = subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, encoding="utf-8")
        wait_until(lambda: target.exists() and len(target.read_bytes().splitlines()) >= 5, "some answers")
        daemon.process.kill()
        _, said = process.communicate(timeout=30)
    assert process.returncode == exits.FAILED
    assert "the daemon has gone" in said
    assert "call it again" in said
    failed = [answer for answer in answers(target) if answer["response"] is None]
    assert len(failed) <= 4, "no more than were under way"
    monkeypatch.setenv("FAKE_ENGINE_STEP_S", "0")
    again = command("batch", str(source), str(target))
    assert again.returncode == 0, again.stderr
    found = answers(target)
    assert sorted(answer["custom_id"] for answer in found) == sorted(f"r{number}" for number in range(60))
    assert all(answer["response"]["status_code"] == 200 for answer in found)


def test_a_refused_request_is_told_by_the_status_of_every_run(tmp_path: Path) -> None:
    source = requests(tmp_path / "in.jsonl", 1, temperature=9)
    for _ in range(2):
        done = command("batch", str(source), str(tmp_path / "out.jsonl"))
        assert done.returncode == exits.FAILED
        assert "1 refused" in done.stderr
    assert len(answers(tmp_path / "out.jsonl")) == 1


def test_files_as_other_systems_write_them(tmp_path: Path) -> None:
    source, line = tmp_path / "in.jsonl", requests(tmp_path / "one.jsonl", 1).read_bytes().strip()
    source.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line.replace(b"r0", b"r1") + b"\r\n")
    assert [one.custom_id for one in read(source)] == ["r0", "r1"]
    source.write_bytes(line + b'\n{"custom_id": "\xff"}\n')
    with pytest.raises(CommandError, match="line 2: not UTF-8"):
        read(source)
    source.write_bytes(line.replace(b"r0", rb"\ud800"))
    with pytest.raises(CommandError, match="line 1: custom_id"):
        read(source)
    source.write_bytes(line[:-1] + b' , "x": "' + b"a" * 9_000_000 + b'"}')
    assert len(read(source)) == 1


def test_a_file_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    source, other = requests(tmp_path / "in.jsonl", 1), tmp_path / "notes.txt"
    other.write_text("my notes\n")
    done = command("batch", str(source), str(other), env=dict(os.environ))
    assert done.returncode == 2
    assert other.read_text() == "my notes\n"
