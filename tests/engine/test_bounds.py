"""No number that a client may send ends a step: each has bounds, and a command beyond them fails alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine.process.io import EngineIO
from engine.protocol import (
    AddRequest,
    BeamParams,
    Ping,
    ProtocolError,
    SamplingParams,
    StepOutputs,
    checked,
    decode_command,
    decode_reply,
    encode,
)
from engine.requests.beams import BeamSearch

FINE: dict[str, Any] = {
    "type": "AddRequest",
    "request_id": "a",
    "session": "s",
    "prompt": [1],
    "sampling": {"max_tokens": 4, "seed": 0},
}


def frame(**changed: Any) -> bytes:
    """A request; names of sampling parameters change those."""
    sampling = {name: value for name, value in changed.items() if name in SamplingParams.__struct_fields__}
    others = {name: value for name, value in changed.items() if name not in sampling}
    return msgspec.msgpack.encode({**FINE, **others, "sampling": {**FINE["sampling"], **sampling}})


NOT_FINITE = (math.nan, math.inf, -math.inf)

BEYOND: list[tuple[str, Any]] = [
    *[
        (name, value)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        for value in (*NOT_FINITE, 101.0, -2.5)
    ],
    ("repetition_penalty", 1e-38),
    ("repetition_penalty", 0.0),
    ("top_k", 3_000_000_000),
    ("top_k", -1),
    ("max_tokens", 2**31),
    ("max_tokens", 0),
    ("min_tokens", 2**31),
    ("seed", 2**63),
    ("seed", -1),
    ("logprobs", 21),
    ("prompt_logprobs", 2**40),
    *[("logit_bias", [[1, value]]) for value in (*NOT_FINITE, 101.0)],
    ("logit_bias", [[2**31, 1.0]]),
    ("logit_bias", [[1, 0.5]] * 1025),
    ("stop_token_ids", [2**31]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [1] * 257),
    ("allowed_token_ids", [1] * 4097),
    ("bad_token_ids", [2**63]),
    ("prompt", [2**31]),
    ("prompt", [-1]),
    ("n", 17),
    ("n", 0),
    ("priority", 2**31),
    ("request_id", "x" * 513),
    ("session", "x" * 513),
    ("beam", {"width": 2**31}),
    *[("beam", {"width": 2, "length_penalty": value}) for value in (*NOT_FINITE, 9.0)],
]


@pytest.mark.parametrize(("name", "value"), BEYOND)
def test_a_number_beyond_its_bounds_is_refused_by_its_field(name: str, value: Any) -> None:
    assert decode_command(frame())
    with pytest.raises(ProtocolError) as caught:
        decode_command(frame(**{name: value}))
    assert caught.value.field in (name, "width", "length_penalty")


@pytest.mark.parametrize(
    "changed", [{"top_k": 3_000_000_000}, {"temperature": math.nan}, {"seed": 2**70}, {"min_p": "much"}, {"top_p": 0.0}]
)
def test_what_python_made_is_checked_like_what_came(changed: dict[str, Any]) -> None:
    sampling = SamplingParams(**{"max_tokens": 4, "seed": 0, **changed})
    with pytest.raises(ProtocolError):
        checked(AddRequest(request_id="a", session="s", prompt=(1,), sampling=sampling))
    fine = AddRequest(request_id="a", session="s", prompt=(1,), sampling=SamplingParams(max_tokens=4, seed=0))
    assert checked(fine) == fine


@pytest.mark.parametrize("kind", ["GetBlock", "Ping", "SessionCommand", "GetUsage"])
def test_a_ticket_is_a_number_that_every_reader_can_hold(kind: str) -> None:
    more = {"GetBlock": {"block": 1}, "SessionCommand": {"action": "pin", "session": "s"}}.get(kind, {})
    assert decode_command(msgspec.msgpack.encode({"type": kind, "ticket": 2**63 - 1, **more}))
    with pytest.raises(ProtocolError):
        decode_command(msgspec.msgpack.encode({"type": kind, "ticket": 2**63, **more}))


def test_a_command_that_is_none_fails_its_request_and_the_engine_goes_on(tmp_path: Path) -> None:
    # it ended the I/O thread, and with it the process
    with zmq.Context() as context, context.socket(zmq.DEALER) as front, context.socket(zmq.SUB) as telemetry:
        front.bind(f"ipc://{tmp_path}/c")
        telemetry.bind(f"ipc://{tmp_path}/t")
        io = EngineIO(f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/t")
        try:
            front.send(frame(top_k=3_000_000_000))
            front.send(b"\xc1 no MessagePack")
            front.send(encode(Ping(ticket=1)))
            assert io.take(10) == Ping(ticket=1)
            refused, nothing = (decode_reply(front.recv()) for _ in range(2))
        finally:
            io.close()
    assert isinstance(refused, StepOutputs)
    (output,) = refused.outputs
    assert (output.request_id, output.finish_reason, output.code, output.param) == (
        "a",
        "error",
        "bad_request",
        "top_k",
    )
    assert nothing == StepOutputs(step=-1, outputs=[])


@pytest.mark.parametrize("penalty", [-8.0, 8.0])
def test_the_score_of_a_long_beam_is_a_number(penalty: float) -> None:
    # a length of 100,000 to the power of 8 is infinite in float32
    search = BeamSearch(BeamParams(width=2, length_penalty=penalty), (1,), 10**6)
    answer = [5] * 99_999
    search.advance([answer], [([1, 2, 3], [-0.5, -1.0, -2.0])])
    assert search.finished
    assert all(math.isfinite(hypothesis.score) and hypothesis.score < 0 for hypothesis in search.finished)
