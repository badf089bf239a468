"""Saved sessions: what is saved is what was there, what is restored is what was saved, all else is refused in words."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine import models
from engine.core import EngineCore
from engine.execution.runner import Runner
from engine.models.loading.load import LoadedModel
from engine.process.config import EngineConfig
from engine.protocol import AddRequest, SamplingParams, SessionAction, SessionCommand, SessionReply
from engine.sessions import files, transfers
from engine.sessions.commands import SessionDesk
from tests.engine.fakes import run, tokens_of
from tests.models import VOCAB, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK_SIZE = 8
PROMPT = list(range(50, 81))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    return load(tiny)


def load(directory: Path, **settings: Any) -> LoadedModel:
    config = EngineConfig(**{"model": str(directory), "dtype": "float32", "cpu_kernels": "torch", **settings})
    return models.load(directory, config, lambda _: None)


class Engine:
    """A core and its desk over real tensors."""

    def __init__(self, model: LoadedModel, num_blocks: int = 60, block_size: int = BLOCK_SIZE, **settings: Any) -> None:
        self.runner = Runner(model, num_blocks, block_size)
        self.core = EngineCore(
            self.runner,
            num_blocks=num_blocks,
            block_size=block_size,
            max_context=model.info.max_context,
            vocab_size=model.info.vocab_size,
            **settings,
        )
        self.woken = threading.Event()
        self.desk = SessionDesk(self.core, self.runner, Path(model.info.path), wake=self.woken.set)

    def turn(self, prompt: list[int], session: str = "chat", salt: bytes = b"", max_tokens: int = 6) -> tuple[Any, int]:
        """A kept turn: (its tokens, prompt tokens that were in the cache)."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0, seed=0)
        self.core.add(
            AddRequest(request_id="r", session=session, prompt=tuple(prompt), sampling=sampling, keep=True, salt=salt)
        )
        outputs = run(self.core)["r"]
        assert outputs[-1].finish_reason == "length", outputs[-1].message
        return tokens_of(outputs), outputs[0].cached_tokens

    def begin(
        self, action: SessionAction, path: Path, session: str = "chat", salt: bytes = b"", ticket: int = 1
    ) -> Any:
        return self.desk.answer(
            SessionCommand(ticket=ticket, action=action, session=session, target=str(path), salt=salt)
        )

    def wait(self, count: int = 1) -> list[SessionReply]:
        replies: list[SessionReply] = []
        deadline = time.monotonic() + 20
        while len(replies) < count:
            assert time.monotonic() < deadline, "no reply"
            replies += self.desk.advance()
            if not self.desk.has_work and len(replies) < count:
                self.woken.wait(0.05)
                self.woken.clear()
        return replies

    def do(self, action: SessionAction, path: Path, session: str = "chat", salt: bytes = b"") -> SessionReply:
        reply = self.begin(action, path, session, salt)
        return reply if reply is not None else self.wait()[0]

    @property
    def free(self) -> int:
        return self.core.blocks.pool.available


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{'0' * 64}.safetensors"


@pytest.fixture
def saved(model: LoadedModel, path: Path) -> Path:
    engine = Engine(model)
    engine.turn(PROMPT)
    assert engine.do("save", path).ok
    return path


# -- there and back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("salt", [b"", b"a key's salt"])
def test_a_session_comes_back_under_the_salt_it_had(model: LoadedModel, path: Path, salt: bytes) -> None:
    """Whoever asks for the saving, as `pagechat-daemon sessions`, names no salt."""
    first = Engine(model)
    said, _ = first.turn(PROMPT, salt=salt)
    assert first.do("save", path).tokens == 31 + 5

    second = Engine(model)
    assert second.do("restore", path).tokens == 36
    history = [*PROMPT, *said, 7, 8]
    _, cached_of_others = second.turn(history, session="other", salt=b"another" + salt)
    assert cached_of_others == 0
    answer, cached = second.turn(history, salt=salt)
    assert cached == 36
    assert answer == Engine(model).turn(history, salt=salt)[0]
    second.core.blocks.check()


def test_a_session_is_not_restored_for_another_salt_than_its_own(model: LoadedModel, path: Path) -> None:
    first = Engine(model)
    first.turn(PROMPT, salt=b"mine")
    assert "salt" in first.do("save", path, salt=b"yours").message
    assert first.do("save", path, salt=b"mine").ok
    reply = Engine(model).do("restore", path, salt=b"yours")
    assert (reply.ok, "salt_key" in reply.message) == (False, True)


def test_the_file_can_be_read_by_safetensors_and_by_its_owner_only(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        assert file.get_tensor("kv").shape == (2, 5, 2, 2, BLOCK_SIZE, 16)
    assert saved.stat().st_mode & 0o777 == 0o600


def test_slots_without_a_token_are_saved_empty(model: LoadedModel, path: Path) -> None:
    """They hold what an earlier owner of the block computed."""
    engine = Engine(model)
    for pool in engine.runner.kv:
        pool.fill_(3.5)
    engine.turn(PROMPT)
    engine.do("save", path)
    with safe_open(path, framework="pt") as file:
        kv = file.get_tensor("kv")
    assert not kv[:, -1, :, :, 36 % BLOCK_SIZE :].any()
    assert kv[:, -1, :, :, : 36 % BLOCK_SIZE].all()


def test_what_is_saved_is_what_was_there_although_the_session_goes_on(
    model: LoadedModel, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_PIECE", 1)  # a block between two steps
    first = Engine(model)
    said, _ = first.turn(PROMPT)
    assert first.begin("save", path) is None
    first.desk.advance()
    went_on = [*PROMPT, *said, 7, 8]
    later, cached = first.turn(went_on)
    assert cached == 36, "the session is not held up"
    assert first.wait()[0].tokens == 36
    assert first.turn([*went_on, *later, 9])[0] == Engine(model).turn([*went_on, *later, 9])[0]

    second = Engine(model)
    assert second.do("restore", path).tokens == 36
    answer, cached = second.turn(went_on)
    assert (answer, cached) == (later, 36)


def test_a_step_does_not_wait_for_the_disk(model: LoadedModel, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let = threading.Event()
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: let.wait(20))
    engine = Engine(model)
    engine.turn(PROMPT)
    assert engine.begin("save", path) is None
    while engine.desk.has_work:
        assert engine.desk.advance() == []
    engine.turn([5] * 20, session="other")
    let.set()
    assert engine.wait()[0].ok


def test_two_clients_save_one_session_at_once(model: LoadedModel, path: Path) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    assert engine.begin("save", path, ticket=1) is None
    assert engine.begin("save", path, ticket=2) is None
    assert {(reply.ticket, reply.ok) for reply in engine.wait(2)} == {(1, True), (2, True)}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert Engine(model).do("restore", path).ok


def test_there_is_a_limit_to_what_is_saved_at_once(model: LoadedModel, path: Path) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    for ticket in range(transfers.MOST_AT_ONCE):
        assert engine.begin("save", path, ticket=ticket) is None
    assert "try again" in engine.begin("save", path).message
    assert all(reply.ok for reply in engine.wait(transfers.MOST_AT_ONCE))
    assert engine.do("save", path).ok


@pytest.mark.parametrize("action", ["save", "restore"])
def test_blocks_that_a_transfer_holds_are_let_go_when_a_request_needs_them(
    model: LoadedModel, saved: Path, action: SessionAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_PIECE", 1)
    engine = Engine(model, num_blocks=8)
    if action == "save":
        engine.turn(PROMPT)
    assert engine.begin(action, saved) is None
    while not engine.desk.sequences:
        assert engine.desk.advance() == []
    big = [3] * 50
    assert engine.turn(big, session="big")[0] == Engine(model).turn(big)[0]
    assert engine.wait()[0].ok
    engine.core.blocks.check()
    for name in engine.core.sessions.names():
        engine.core.sessions.close(name)
    assert engine.free == 8


def test_a_session_that_went_on_is_not_replaced_by_an_older_one(model: LoadedModel, saved: Path) -> None:
    engine = Engine(model)
    assert engine.begin("restore", saved) is None
    said, _ = engine.turn([9] * 20)
    reply = engine.wait()[0]
    assert (reply.ok, "went on" in reply.message) == (False, True)
    assert engine.turn([*[9] * 20, *said, 4])[1] == 25


def test_a_session_that_runs_is_not_saved(model: LoadedModel, path: Path) -> None:
    engine = Engine(model)
    sampling = SamplingParams(max_tokens=6, temperature=0, seed=0)
    engine.core.add(AddRequest(request_id="r", session="chat", prompt=(1, 2, 3), sampling=sampling, keep=True))
    engine.core.step()
    assert "is running" in engine.do("save", path).message
    assert "is running" in engine.do("restore", path).message
    run(engine.core)
    assert engine.do("save", path).ok


# -- what is refused -----------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[torch.Tensor, dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]) -> None:
    with safe_open(path, framework="pt") as file:
        kv, manifest = file.get_tensor("kv"), json.loads(file.metadata()["manifest"])
    kv, manifest = change(kv, manifest)
    save_file({"kv": kv.contiguous()}, path, metadata={"manifest": json.dumps(manifest)})


def signed(kv: torch.Tensor, manifest: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """With the checksum that goes with them."""
    raw = kv.contiguous().view(-1).view(torch.uint8).numpy()
    checksum = files._checksum(msgspec.convert(manifest, files.Manifest), raw, threading.Event())
    return kv, manifest | {"checksum": checksum}


def with_nan(kv: torch.Tensor) -> torch.Tensor:
    kv = kv.clone()
    kv[1, 2, 0, 1, 3, 5] = float("nan")
    return kv


DAMAGES: dict[str, tuple[str, Callable[..., Any]]] = {
    "one layer less": ("shape", lambda kv, m: (kv[1:], m)),
    "one layer more": ("shape", lambda kv, m: (torch.cat([kv, kv[:1]]), m)),
    "one head": ("shape", lambda kv, m: (kv[:, :, :, :1], m)),
    "half a head": ("shape", lambda kv, m: (kv[..., :8], m)),
    "short blocks": ("shape", lambda kv, m: (kv[:, :, :, :, :4], m)),
    "keys only": ("shape", lambda kv, m: (kv[:, :, :1], m)),
    "a block less": ("shape", lambda kv, m: (kv[:, 1:], m)),
    "one axis": ("shape", lambda kv, m: (kv.reshape(-1), m)),
    "no axis": ("shape", lambda kv, m: (kv.reshape(-1)[0], m)),
    "float64": ("dtype", lambda kv, m: (kv.double(), m)),
    "bfloat16": ("dtype", lambda kv, m: (kv.bfloat16(), m)),
    "int32": ("dtype", lambda kv, m: (kv.int(), m)),
    "another dtype said": ("dtype", lambda kv, m: (kv.bfloat16(), m | {"dtype": "bfloat16"})),
    "unknown dtype said": ("dtype", lambda kv, m: (kv, m | {"dtype": "nothing"})),
    "NaN": ("checksum", lambda kv, m: (with_nan(kv), m)),
    "NaN, signed": ("finite", lambda kv, m: signed(with_nan(kv), m)),
    "infinity, signed": ("finite", lambda kv, m: signed(kv / 0, m)),
    "other numbers": ("checksum", lambda kv, m: (kv + 1, m)),
    "other tokens": ("checksum", lambda kv, m: (kv, m | {"tokens": [5] * len(m["tokens"])})),
    "a token less": ("checksum", lambda kv, m: (kv, m | {"tokens": m["tokens"][:-1]})),
    "token past the vocabulary": ("token 512", lambda kv, m: (kv, m | {"tokens": [VOCAB, *m["tokens"][1:]]})),
    "token -1": ("token -1", lambda kv, m: signed(kv, m | {"tokens": [-1, *m["tokens"][1:]]})),
    "token 2**62": ("token 46", lambda kv, m: (kv, m | {"tokens": [2**62, *m["tokens"][1:]]})),
    "token 2**70": ("cannot be read|token", lambda kv, m: (kv, m | {"tokens": [2**70, *m["tokens"][1:]]})),
    "no tokens": ("no tokens", lambda kv, m: (kv, m | {"tokens": []})),
    "more tokens than a context": (
        "room for",
        lambda kv, m: signed(kv[:, :1].repeat(1, 1250, 1, 1, 1, 1), m | {"tokens": [5] * 10_000}),
    ),
    "another salt": ("salt", lambda kv, m: (kv, m | {"salt": b"other".hex()})),
    "another salt and its key": (
        "checksum",
        lambda kv, m: (kv, m | {"salt": b"other".hex(), "salt_key": files.salt_key(b"other")}),
    ),
    "no hexadecimal salt": ("cannot be read", lambda kv, m: (kv, m | {"salt": "zz"})),
    "an older format": ("older pagechat", lambda kv, m: (kv, {"format": 1, "tokens": m["tokens"]})),
    "a newer format": ("newer pagechat", lambda kv, m: (kv, m | {"format": 99})),
    "another model": ("model_key", lambda kv, m: (kv, m | {"model_key": "0" * 64})),
    "a field more": ("cannot be read", lambda kv, m: (kv, m | {"more": 1})),
    "no manifest": ("cannot be read", lambda kv, m: (kv, [])),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_by_name(model: LoadedModel, saved: Path, name: str) -> None:
    words, damage = DAMAGES[name]
    rewrite(saved, damage)
    refuse(model, saved, words)


WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "seven bytes": lambda data: data[:7],
    "the header alone": lambda data: data[: 8 + int.from_bytes(data[:8], "little")],
    "half": lambda data: data[: len(data) // 2],
    "a byte less": lambda data: data[:-1],
    "a byte more": lambda data: data + b"\0",
    "header of all there is": lambda data: b"\xff" * 8 + data[8:],
    "header of nothing": lambda data: bytes(8) + data[8:],
    "a byte of the header": lambda data: data[:20] + bytes([data[20] ^ 255]) + data[21:],
    "no JSON": lambda data: data[:8] + b"[" * (len(data) - 8),
    "text": lambda data: b"This is not a session, but a text that is long enough to be one.",
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_no_session_is_refused(model: LoadedModel, saved: Path, name: str) -> None:
    saved.write_bytes(WHOLE[name](saved.read_bytes()))
    refuse(model, saved, "cannot be read")


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_and_not_waited_for(model: LoadedModel, path: Path) -> None:
    os.mkfifo(path)
    refuse(model, path, "no file")
    path.unlink()
    path.mkdir()
    refuse(model, path, "no file|directory")
    path.rmdir()
    refuse(model, path, "no saved session")


def test_every_bit_of_the_file_counts(model: LoadedModel, saved: Path) -> None:
    whole = saved.read_bytes()
    engine = Engine(model)
    for place in range(8, len(whole), len(whole) // 61):
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        reply = engine.do("restore", saved)
        assert not reply.ok, f"byte {place}: {reply.message}"
        assert engine.free == 60


def refuse(model: LoadedModel, path: Path, words: str) -> None:
    """Nothing is restored, nothing is lost, and the engine goes on."""
    engine = Engine(model)
    said, _ = engine.turn([9] * 20)
    before = engine.free
    reply = engine.do("restore", path)
    assert not reply.ok
    assert any(word in reply.message for word in words.split("|")), reply.message
    assert "\n" not in reply.message
    assert len(reply.message) < 500
    assert engine.free == before
    engine.core.blocks.check()
    _, cached = engine.turn([*[9] * 20, *said, 4])
    assert cached == 25, "the session that was there is as it was"


@pytest.mark.parametrize(
    ("there", "here", "word"),
    [
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "dtype"),
        ({"weights_dtype": "int8", "cpu_kernels": "auto"}, {"cpu_kernels": "auto"}, "weights_dtype"),
        (
            {"weights_dtype": "int8", "cpu_kernels": "auto"},
            {"weights_dtype": "int4", "cpu_kernels": "auto"},
            "weights_dtype",
        ),
    ],
)
def test_a_session_of_other_numbers_is_refused(
    tiny: Path, path: Path, there: dict[str, str], here: dict[str, str], word: str
) -> None:
    first, second = Engine(load(tiny, **there)), Engine(load(tiny, **here))
    first.turn(PROMPT)
    assert first.do("save", path).ok
    reply = second.do("restore", path)
    assert (reply.ok, word in reply.message) == (False, True), reply.message


def test_weights_that_differ_in_one_tensor_are_another_model(tiny: Path, tmp_path: Path) -> None:
    """A fine-tune often leaves the ends of the file as they were."""
    other = tmp_path / "other"
    other.mkdir()
    for file in tiny.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    name = other / "model.safetensors"
    with safe_open(name, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
        metadata = file.metadata()
    assert files.model_key(other) == files.model_key(tiny)
    tensors["model.layers.0.self_attn.q_proj.weight"] = tensors["model.layers.0.self_attn.q_proj.weight"] * 2
    save_file(tensors, name, metadata=metadata)
    assert files.model_key(other) != files.model_key(tiny)


def test_kv_that_is_not_finite_is_not_saved(model: LoadedModel, path: Path) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    for pool in engine.runner.kv:
        pool.fill_(float("nan"))
    reply = engine.do("save", path)
    assert (reply.ok, "not finite" in reply.message) == (False, True)
    assert list(path.parent.iterdir()) == []


def test_without_memory_for_its_blocks_a_session_is_not_restored(model: LoadedModel, saved: Path) -> None:
    engine = Engine(model, num_blocks=6)
    engine.turn([9] * 20)
    engine.core.sessions.pin("chat", True)
    reply = engine.do("restore", saved, session="other")
    assert (reply.ok, "5 blocks" in reply.message) == (False, True), reply.message
    engine.core.blocks.check()


@pytest.mark.parametrize("action", ["save", "restore"])
def test_without_host_memory_it_is_refused_with_the_numbers(
    model: LoadedModel, saved: Path, action: SessionAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    monkeypatch.setattr(transfers, "available_bytes", lambda device: 200 << 20)
    reply = engine.do(action, saved)
    assert (reply.ok, "200.0 MiB" in reply.message) == (False, True)


# -- the disk, and the engine's end ---------------------------------------------------------------------


def test_a_full_disk_is_told_and_leaves_the_older_file(
    model: LoadedModel, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = saved.read_bytes()
    engine = Engine(model)
    engine.turn(PROMPT)
    monkeypatch.setattr(files.os, "fsync", full)
    reply = engine.do("save", saved)
    assert (reply.ok, reply.message) == (False, "the session could not be saved: No space left on device")
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]
    assert saved.read_bytes() == before
    assert engine.desk.sequences == []


def test_a_folder_that_is_not_there_is_told(model: LoadedModel, tmp_path: Path) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    assert "No such file" in engine.do("save", tmp_path / "nowhere" / "x.safetensors").message


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The file thread waits, in the middle of a file, until the engine ends; the event says that it has begun."""
    begun = threading.Event()
    pieces = files._pieces

    def slow(data: files.Bytes, cancelled: threading.Event) -> Iterator[files.Bytes]:
        begun.set()
        cancelled.wait(20)
        return pieces(data, cancelled)

    monkeypatch.setattr(files, "_pieces", slow)
    return begun


def test_the_engines_end_in_mid_save_leaves_nothing(model: LoadedModel, path: Path, slow_disk: threading.Event) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    assert engine.begin("save", path, ticket=7) is None
    while engine.desk.has_work:
        engine.desk.advance()
    assert slow_disk.wait(20)
    assert [(reply.ticket, reply.ok) for reply in engine.desk.close()] == [(7, False)]
    assert list(path.parent.iterdir()) == []


def test_the_engines_end_before_all_is_copied_is_told(model: LoadedModel, path: Path) -> None:
    engine = Engine(model)
    engine.turn(PROMPT)
    assert engine.begin("save", path, ticket=7) is None
    assert ["ending" in reply.message for reply in engine.desk.close()] == [True]
