"""/v1/responses through OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.pagechat.daemon.http.conftest import Served

MODEL = "smollm2"


def test_a_text_is_answered(client: openai.OpenAI) -> None:
    found = client.responses.create(model=MODEL, input="hello", instructions="Be brief.", metadata={"k": "v"})
    assert (found.status, found.output_text) == ("completed", "system\nBe brief.\nuser\nhello\nassistant\n")
    assert found.metadata == {"k": "v"}
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens


def test_an_answer_may_be_sent_back(client: openai.OpenAI) -> None:
    first: Any = [{"role": "user", "content": [{"type": "input_text", "text": "one"}]}]
    answer = client.responses.create(model=MODEL, input=first)
    back = [item.model_dump() for item in answer.output]
    second = client.responses.create(model=MODEL, input=[*first, *back, {"role": "user", "content": "two"}])
    assert second.output_text.startswith(f"user\none\nassistant\n{answer.output_text}")


def test_the_events_of_a_stream_add_up(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == last.response.output_text == "user\nhello\nassistant\n"


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    found = client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"


def test_a_schema_is_followed(real: Served) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
        found = client.responses.create(model="tiny-llama", input="hello", text={"format": form}, temperature=0)  # type: ignore[arg-type]
    assert json.loads(found.output_text) == {"x": 1}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
    ],
)
def test_a_wrong_field_is_named(http: httpx2.Client, change: dict[str, Any], param: str | None) -> None:
    response = http.post("/v1/responses", json={"input": "hello", **change})
    assert response.status_code == 400
    assert param is None or response.json()["error"]["param"] == param, response.text
