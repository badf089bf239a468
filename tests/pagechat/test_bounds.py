"""A bound stands once, in the protocol, and every door has it: HTTP, Python, command line, settings, model files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest

from engine.protocol import SamplingParams, Snapshot, encode
from pagechat import LLM
from pagechat import SamplingParams as ScriptParams
from pagechat.app.chat_settings import PARAMETERS, ChatSettings, settings_from
from pagechat.app.presets import Presets
from pagechat.commands.exits import CommandError
from pagechat.commands.question import answers, beam, chat_options
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.schemas.chat import ChatBody
from pagechat.daemon.http.schemas.completion import CompletionBody
from pagechat.daemon.http.schemas.responses import ResponsesBody
from pagechat.protocol import Chat, ChatOptions
from pagechat.recording import RecordingError, load
from tests.models import tiny_llama

LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "maxItems", "maxLength", "maxProperties")


def limits(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The bounds of a JSON schema of one field, of its first alternative that has any."""
    alternatives = [schema, *schema.get("anyOf", [])]
    for one in alternatives:
        one = definitions.get(one.get("$ref", "").rpartition("/")[2], one)
        if found := {name: one[name] for name in LIMITS if name in one}:
            return found
    return {}


def of_struct(kind: Any) -> dict[str, dict[str, Any]]:
    components = msgspec.json.schema_components([kind])[1]
    return {name: limits(field, components) for name, field in components[kind.__name__]["properties"].items()}


def of_body(kind: Any) -> dict[str, dict[str, Any]]:
    schema = kind.model_json_schema()
    return {name: limits(field, schema.get("$defs", {})) for name, field in schema["properties"].items()}


ENGINE, CLIENT = of_struct(SamplingParams), of_struct(ChatOptions)
OWN = {"top_k": {"minimum": -1, "maximum": 2**31 - 1}}
"""HTTP: -1 takes all, as 0 does (vLLM)."""


def test_clients_have_the_engines_bounds() -> None:
    shared = ENGINE.keys() & CLIENT.keys() - {"stop_token_ids"}  # the engine's list has the model's own, too
    assert {"top_k", "temperature", "seed", "max_tokens", "repetition_penalty", "min_tokens"} <= shared
    assert {name: CLIENT[name] for name in shared} == {name: ENGINE[name] for name in shared}
    assert {name: of_struct(ChatSettings)[name] for name in PARAMETERS} == {name: CLIENT[name] for name in PARAMETERS}


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody])
def test_http_bodies_have_the_protocols_bounds(body: Any) -> None:
    found = of_body(body)
    shared = found.keys() & CLIENT.keys() - {"stop", "grammar", "logprobs"}
    assert {"temperature", "top_p"} <= shared
    for name in shared - {"logit_bias", "max_tokens"}:
        assert found[name] == OWN.get(name, CLIENT[name]), name
    for name in {"max_tokens", "max_output_tokens"} & found.keys():
        assert found[name]["maximum"] == CLIENT["max_tokens"]["maximum"]
    if "n" in found:
        assert found["n"] == of_struct(Chat)["n"]
        assert found["priority"] == of_struct(Chat)["priority"]
        assert found["logit_bias"]["maxProperties"] == CLIENT["logit_bias"]["maxItems"]


BEYOND: list[tuple[str, Any]] = [
    ("top_k", 3_000_000_000),
    ("top_k", -2),
    ("temperature", math.nan),
    ("temperature", 1e9),
    ("top_p", math.inf),
    ("repetition_penalty", 1e-38),
    ("presence_penalty", math.nan),
    ("min_p", -0.1),
    ("min_tokens", 2**31),
    ("max_tokens", 2**31),
    ("seed", 2**63),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {2**31: 1.0}),
    ("stop_token_ids", [2**31]),
    ("allowed_token_ids", [-1]),
    ("logprobs", 21),
    ("prompt_logprobs", -1),
    ("n", 17),
    ("n", 0),
    ("stop", ["x"] * 17),
    ("top_k", "many"),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(tiny_llama(tmp_path_factory.mktemp("llm"))), num_blocks=64, threads=1)


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_a_script_is_told_which_field_is_wrong(llm: LLM, name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate("A page", ScriptParams(**{name: value}))
    assert (caught.value.code, caught.value.param) == ("bad_request", name)
    (output,) = llm.generate("A page", ScriptParams(max_tokens=2))
    assert len(output.outputs[0].token_ids) == 2


def test_a_priority_of_a_script_has_bounds_too(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(["A page"], priority=[2**31])
    assert caught.value.param == "priority"


@pytest.mark.parametrize(
    "given",
    [{"top_k": 3_000_000_000}, {"temperature": math.nan}, {"temperature": 2.1}, {"seed": -1}, {"max_tokens": 2**31}],
)
def test_a_command_line_is_refused_by_its_option(given: dict[str, Any]) -> None:
    option = "--" + next(iter(given)).replace("_", "-")
    with pytest.raises(CommandError, match=f"^{option}: expected"):
        chat_options(**given)


def test_numbers_of_answers_and_beams_too() -> None:
    with pytest.raises(CommandError, match=r"^-n: "):
        answers(17)
    with pytest.raises(CommandError, match=r"^--beams: "):
        beam(17, None, 1)
    with pytest.raises(CommandError, match=r"^--length-penalty: "):
        beam(2, math.nan, 1)


def test_settings_that_no_request_could_have_are_left_out(tmp_path: Path) -> None:
    stored = {"temperature": 0.5, "top_k": 3_000_000_000, "seed": 2**63, "max_tokens": 2**31}
    assert settings_from(stored) == ChatSettings(temperature=0.5)
    (tmp_path / "presets.json").write_bytes(msgspec.json.encode({"odd": stored}))
    assert Presets(tmp_path / "presets.json").own() == {"odd": ChatSettings(temperature=0.5)}
    with pytest.raises(ValueError, match="top-k"):
        ChatSettings().changed("top_k", "3000000000")
    with pytest.raises(ValueError, match="temperature"):
        ChatSettings().changed("temperature", "nan")


def snapshot(**changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "ticket": 1,
        "next_event": 0,
        "step": 0,
        "num_blocks": 4,
        "block_size": 16,
        "sequences": [],
        "cached": [],
        "addressable": [],
        "running": 0,
        "waiting": 0,
        "preemptions": 0,
    }
    return encode(Snapshot(**{**fields, **changed}))


@pytest.mark.parametrize(
    ("time", "frame"),
    [
        (1.0, snapshot(num_blocks=10**12)),
        (1.0, snapshot(block_size=0)),
        (1.0, snapshot(cached=[5])),
        (1.0, snapshot(addressable=[-1])),
        (1.0, snapshot(sequences=[{"seq": 1, "session": "s", "blocks": [2**40], "length": 1}])),
        (math.nan, snapshot()),
        (-1.0, snapshot()),
    ],
)
def test_a_recording_of_a_pool_that_cannot_be_is_refused(tmp_path: Path, time: float, frame: bytes) -> None:
    def write(time: float, frame: bytes) -> Path:
        file = tmp_path / "r"
        file.write_bytes(msgpack.packb({"pagechat": 1}) + msgpack.packb([time, frame]))
        return file

    assert len(load(write(1.0, snapshot())).frames) == 1
    with pytest.raises(RecordingError):
        load(write(time, frame))
