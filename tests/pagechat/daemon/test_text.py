"""What a model's folder says about sampling and endings, and how the front fills in what a client left open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagechat.daemon import text
from pagechat.daemon.generation import Conversation
from pagechat.protocol import ChatOptions
from tests.daemons import model_folder
from tests.models import VOCAB


def folder(path: Path, **files: Any) -> Path:
    model_folder(path)
    for name, content in files.items():
        target = path / f"{name}.json"
        found = json.loads(target.read_text()) if target.exists() else {}
        target.write_text(json.dumps(found | content))
    return path


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, (0.7, 0.95, 0)),  # text.CHAT_TEMPERATURE, text.CHAT_TOP_P
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20}, (0.6, 0.9, 20)),
        ({"temperature": 0.6}, (0.6, 1.0, 0)),
        ({"do_sample": False, "temperature": 0.6}, (0.0, 1.0, 0)),
        ({"temperature": None, "top_k": "many", "top_p": 7}, (0.7, 0.95, 0)),
        ({"temperature": 1e9, "top_k": 3_000_000_000, "top_p": 0}, (0.7, 0.95, 0)),
        ({"temperature": -1, "top_k": -5, "top_p": 0.5}, (0.7, 0.5, 0)),
    ],
)
def test_generation_config_gives_the_defaults(tmp_path: Path, generation: Any, expected: Any) -> None:
    model = text.load(folder(tmp_path / "m", generation_config=generation), VOCAB)
    sampling = model.sampling(ChatOptions(), room=100)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == expected


def test_what_no_request_could_ask_for_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = text.load(folder(tmp_path / "m", generation_config={"top_k": 3_000_000_000}), VOCAB)
    assert model.defaults.top_k == 0
    assert "top_k is 3000000000, which is ignored" in caplog.text
    (tmp_path / "m" / "generation_config.json").write_text('{"temperature": NaN}')
    with pytest.raises(text.ModelTextError, match="generation_config"):
        text.load(tmp_path / "m", VOCAB)


def test_more_end_tokens_than_a_request_can_carry_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", generation_config={"eos_token_id": list(range(text.MAX_END_TOKENS + 9))})
    with pytest.raises(text.ModelTextError, match="end tokens"):
        text.load(path, VOCAB)


def test_what_the_client_says_goes_first(tmp_path: Path) -> None:
    model = text.load(folder(tmp_path / "m", generation_config={"temperature": 0.6, "top_k": 20}), VOCAB)
    options = ChatOptions(temperature=0.0, top_p=0.5, top_k=0, seed=7, max_tokens=5)
    sampling = model.sampling(options, room=100)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.0, 0.5, 0, 7)
    assert sampling.max_tokens == 5


def test_no_answer_is_longer_than_the_context_has_room(tmp_path: Path) -> None:
    model = text.load(folder(tmp_path / "m"), VOCAB)
    assert model.sampling(ChatOptions(), room=100).max_tokens == 100
    assert model.sampling(ChatOptions(max_tokens=10**9), room=100).max_tokens == 100


def test_a_seed_is_drawn_when_none_is_given(tmp_path: Path) -> None:
    model = text.load(folder(tmp_path / "m"), VOCAB)
    seeds = {model.sampling(ChatOptions(), room=1).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_every_file_that_names_an_end_is_heard(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "m",
        generation_config={"eos_token_id": [5, 6]},
        config={"eos_token_id": 7},
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
    )
    assert set(text.load(path, VOCAB).stop_token_ids) == {2, 5, 6, 7}


def test_an_end_that_is_no_token_of_the_model_is_left_out(tmp_path: Path) -> None:
    # vLLM pull 54196: an id beyond the vocabulary kills an engine
    path = folder(tmp_path / "m", generation_config={"eos_token_id": [5, VOCAB, -1, 2**40, "x", True, None]})
    assert set(text.load(path, VOCAB).stop_token_ids) == {2, 5}


def test_a_template_file_goes_before_the_one_in_the_tokenizers_config(tmp_path: Path) -> None:
    path = folder(tmp_path / "m")
    (path / "chat_template.jinja").write_text("from the file")
    model = text.load(path, VOCAB)
    assert model.tokenizer.tokenizer.decode(model.prompt(_user("x"))) == "from the file"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    model = text.load(folder(tmp_path / "m", tokenizer_config={"chat_template": named}), VOCAB)
    assert model.tokenizer.tokenizer.decode(model.prompt(_user("x"))) == "usual"


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (lambda path: (path / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "not a tokenizer"),
        (lambda path: (path / "generation_config.json").write_text("{"), "generation_config.json cannot be read"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json cannot be read"),
        (lambda path: (path / "chat_template.jinja").write_text("{% if %}"), "does not compile"),
    ],
)
def test_a_broken_folder_is_told_in_words(tmp_path: Path, breakage: Any, words: str) -> None:
    path = folder(tmp_path / "m")
    breakage(path)
    with pytest.raises(text.ModelTextError, match=words):
        text.load(path, VOCAB)


def _user(content: str) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": content}])
