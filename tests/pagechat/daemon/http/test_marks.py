"""Answers that contain the template's own marks, through the door. The fake engine says what the prompt says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from pagechat.daemon.http.address import Address
from pagechat.daemon.http.door import HttpDoor, HttpPlan
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
