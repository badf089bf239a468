"""Answers that contain the template's own marks, through the door. The fake engine says what the prompt says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from pagechat.daemon.http.address import Address
from pagechat.daemon.http.door import HttpDoor, HttpPlan
from pagechat.daemon.http.schemas.responses import ResponsesBody
from tests.daemons import running_front, until

MODEL = "smollm2"
TEMPLATE = (
    "{% if tools %}{% endif %}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if open %}<think>\n{% endif %}{% if never %}</think><tool_call>{% endif %}"
)
"""Writes the messages alone, and has the marks of reasoning and tool calls."""

TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'


@pytest.fixture
async def client(fake_engine: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    (fake_engine / "chat_template.jinja").write_text(TEMPLATE)
    door = HttpDoor.listen(HttpPlan(address=Address("127.0.0.1", 0)))
    async with running_front(http=door) as front:
        await until(lambda: front.supervisor.state == "ready", "engine")
        async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client:
            yield client


async def answered(client: openai.AsyncOpenAI, says: str, **options: Any) -> tuple[dict[str, Any], str]:
    """(the message, why it ended), the same whole and streamed."""
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": says}], **options}
    (choice,) = (await client.chat.completions.create(**asked)).choices
    whole = choice.message.model_dump(exclude_none=True)
    streamed: dict[str, Any] = {}
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        reason = chunk.choices[0].finish_reason
        for name, value in chunk.choices[0].delta.model_dump(exclude_none=True).items():
            streamed[name] = streamed[name] + value if name in streamed else value
    for message in (whole, streamed):
        for call in message.get("tool_calls", ()):
            assert call.pop("id").startswith("call_")
            call.pop("index", None)
    if not streamed.get("content"):
        streamed.pop("content", None)
    if not whole.get("content"):
        whole.pop("content", None)
    assert streamed == whole
    assert reason == choice.finish_reason
    return whole, choice.finish_reason


async def test_what_was_thought_comes_apart_from_what_is_said(client: openai.AsyncOpenAI) -> None:
    message, reason = await answered(client, "<think>\nhm, 🌶\n</think>\n\nyes")
    assert (message["reasoning_content"], message["content"], reason) == ("hm, 🌶", "yes", "stop")


async def test_a_prompt_that_opens_the_reasoning_has_the_answer_begin_in_it(client: openai.AsyncOpenAI) -> None:
    # the echo begins with the message; the prompt ends with <think>
    options = {"extra_body": {"chat_template_kwargs": {"open": True}}}
    message, _ = await answered(client, "first this</think>then that", **options)
    assert message["reasoning_content"] == "first this"
    assert message["content"].startswith("then that")


async def test_the_model_may_call_tools_by_itself(client: openai.AsyncOpenAI) -> None:
    message, reason = await answered(client, f"<think>add</think>I add.\n{CALL}\n{CALL}", tools=TOOLS)
    assert (message["reasoning_content"], message["content"], reason) == ("add", "I add.", "tool_calls")
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}
    assert message["tool_calls"] == [call, call]


async def test_without_tools_nothing_is_a_call(client: openai.AsyncOpenAI) -> None:
    message, reason = await answered(client, CALL)
    assert (message["content"], reason) == (CALL, "stop")


async def test_the_log_probabilities_of_held_back_text_are_not_lost(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{CALL} and"}],
        tools=TOOLS,
        stream=True,
        extra_body={"return_token_ids": True},
    )
    ids = [id_ async for chunk in stream for id_ in chunk.model_dump()["choices"][0].get("token_ids") or ()]
    whole = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"{CALL} and"}],
        tools=TOOLS,
        extra_body={"return_token_ids": True},
    )
    assert ids == whole.model_dump()["choices"][0]["token_ids"]


async def test_a_response_has_what_was_thought_as_an_item_before_the_message(
    client: openai.AsyncOpenAI, fake_engine: Path
) -> None:
    says = "<think>\nhm, 🌶\n</think>\n\nyes"
    whole = await client.responses.create(model=MODEL, input=says)
    assert [(item.type, item.content[0].text) for item in whole.output] == [  # type: ignore[union-attr,index]
        ("reasoning", "hm, 🌶"),
        ("message", "yes"),
    ]
    tokenizer = Tokenizer.from_file(str(fake_engine / "tokenizer.json"))
    echo = tokenizer.encode(says, add_special_tokens=False).ids
    before_the_end = next(n for n in range(len(echo)) if "</think>" in tokenizer.decode(echo[: n + 1]))
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == before_the_end > 3
    events = [event async for event in await client.responses.create(model=MODEL, input=says, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told: dict[tuple[str, int], str] = {}
    for event in events:
        if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
            told[event.type, event.output_index] = told.get((event.type, event.output_index), "") + event.delta
    assert told == {("response.reasoning_text.delta", 0): "hm, 🌶", ("response.output_text.delta", 1): "yes"}
    kinds = [event.type for event in events if not event.type.endswith(".delta")]
    item = ["response.output_item.added", "response.content_part.added"]
    ended = ["response.content_part.done", "response.output_item.done"]
    assert kinds == [
        *("response.created", "response.in_progress"),
        *(*item, "response.reasoning_text.done", *ended),
        *(*item, "response.output_text.done", *ended),
        "response.completed",
    ]
    last: Any = events[-1]
    streamed, plain = last.response.model_dump(), whole.model_dump()
    done = [event.item.model_dump() for event in events if event.type == "response.output_item.done"]
    assert done == streamed["output"]
    for one in (*streamed["output"], *plain["output"]):
        del one["id"]
    assert (streamed["output"], streamed["usage"]["output_tokens_details"]) == (
        plain["output"],
        plain["usage"]["output_tokens_details"],
    )


async def test_a_response_that_is_cut_while_thinking_has_an_empty_message(client: openai.AsyncOpenAI) -> None:
    found = await client.responses.create(model=MODEL, input="<think>long thoughts", max_output_tokens=14)
    assert found.status == "incomplete"
    assert [(item.type, item.status) for item in found.output] == [  # type: ignore[union-attr]
        ("reasoning", "incomplete"),
        ("message", "incomplete"),
    ]
    assert found.output_text == ""
    assert found.usage is not None
    assert found.usage.output_tokens_details.reasoning_tokens == 14


async def test_a_response_may_be_sent_back_with_what_was_thought(client: openai.AsyncOpenAI) -> None:
    first: Any = {"role": "user", "content": "<think>hm</think>yes"}
    found = await client.responses.create(model=MODEL, input=[first])
    back: Any = [item.model_dump() for item in found.output]
    read = ResponsesBody.model_validate({"input": [first, *back, {"role": "user", "content": "more"}]}).chat()
    assert [one.role for one in read.messages] == ["user", "assistant", "user"]
    assert [getattr(one, "reasoning_content", None) for one in read.messages] == [None, "hm", None]
    again = await client.responses.create(model=MODEL, input=[first, *back, {"role": "user", "content": "more"}])
    assert again.output_text == "yesyesmore"
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: reasoning comes before"):
        await client.responses.create(model=MODEL, input=[first, back[0]])
