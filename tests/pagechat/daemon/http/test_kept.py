"""What a request keeps until it is answered: bounded by its product, and small."""

from __future__ import annotations

import math
import tracemalloc

import httpx2
import msgspec
import pytest

from engine.protocol import TokenLogprobs
from pagechat.daemon.http import logprobs
from pagechat.daemon.http.admission import Admission, Limits
from pagechat.daemon.http.kept import MOST_OF_A_REQUEST, MOST_OF_ALL, KeptLogprobs
from pagechat.daemon.http.keys import ANYBODY
from pagechat.daemon.http.refusal import ApiError

TOP = 20


def scored(count: int) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(place, -0.1 * place, place % 7, tuple((place + k, -0.25 * k) for k in range(place % (TOP + 1))))
        for place in range(count)
    ]


def test_what_is_kept_comes_back_as_it_was() -> None:
    kept = KeptLogprobs()
    kept += scored(50)
    kept += [TokenLogprobs(1, -math.inf, 9, ())]
    assert list(kept) == [*scored(50), TokenLogprobs(1, -math.inf, 9, ())]
    assert len(kept) == 51


def test_a_prompt_token_with_twenty_others_takes_a_few_hundred_bytes() -> None:
    full = TokenLogprobs(1, -1.0, 1, tuple((k, -0.5 * k) for k in range(TOP)))
    tracemalloc.start()
    kept = KeptLogprobs()
    for _ in range(2000):
        kept += [full]
    size, _ = tracemalloc.get_traced_memory()
    assert size / 2000 < 500, "it was 8,000 (issue 14)"
    written = logprobs.of_prompt(kept, lambda token: b"x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    one_piece = 256 * 8_000  # as objects
    assert peak - size < 3 * len(bytes(written)) + one_piece
    assert len(msgspec.json.decode(bytes(written))) == 2001


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": [[5] * 500] * 256, "prompt_logprobs": 20, "max_tokens": 1}, "prompt_logprobs"),
        ({"prompt": [[5] * 500] * 32, "prompt_logprobs": 20, "n": 16, "max_tokens": 1}, "prompt_logprobs"),
        ({"prompt": [[5] * 10] * 64, "logprobs": 20, "n": 16, "max_tokens": 400}, "logprobs"),
        ({"prompt": [[5] * 10] * 64, "logprobs": 20, "n": 16, "max_tokens": None}, "logprobs"),
        (
            {"prompt": [[5] * 500] * 256, "logprobs": 20, "echo": True, "max_tokens": 0, "stream": True},
            "prompt_logprobs",
        ),
    ],
)
def test_a_request_that_would_keep_too_much_is_refused_with_the_numbers(
    http: httpx2.Client, body: dict[str, object], field: str
) -> None:
    response = http.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, field, "too_many_logprobs")
    assert f"{MOST_OF_A_REQUEST:,}" in error["message"]


def test_requests_together_keep_no_more_than_the_machine_can_hold() -> None:
    admission = Admission(Limits())
    tickets = [admission.enter(ANYBODY, 1) for _ in range(MOST_OF_ALL // MOST_OF_A_REQUEST)]
    for ticket in tickets:
        ticket.keeps(MOST_OF_A_REQUEST)
    late = admission.enter(ANYBODY, 1)
    with pytest.raises(ApiError) as caught:
        late.keeps(1)
    assert caught.value.status == 429
    tickets[0].close()
    late.keeps(1)
    for ticket in (*tickets, late):
        ticket.close()
    assert admission.kept == 0
