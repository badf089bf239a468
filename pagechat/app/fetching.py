"""How one answer is fetched from the daemon into its message. It raises nothing but what ends the app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pagechat.app.client_api import Client
from pagechat.app.message import Message, fail, finish
from pagechat.app.prose import is_thinking, with_reasoning
from pagechat.client import DaemonGone, RequestFailed
from pagechat.protocol import Accepted, ChatMessage, ChatOptions, Delta


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked, of whom."""

    client: Client | None
    session: str
    request_id: str
    context: list[ChatMessage]
    options: ChatOptions
    continues: bool
    """The answer is the last message of the context, and goes on."""
    priority: int = 0


async def fetch(
    answer: Message,
    asking: Asking,
    save: Callable[[], Awaitable[None]],
    progress: Callable[[int], None],
    stopping: Callable[[], bool],
) -> None:
    """Save, ask, and write what comes into `answer` and those that come with it; their status says how they ended.

    `progress` is called with the tokens so far. `stopping`: a person has stopped it, so an error is no news.
    """
    before, candidates = answer.content, answer.candidates
    tokens = [0] * len(candidates)
    thinks = [is_thinking(before)] * len(candidates)
    try:
        await save()
        if asking.client is None:
            raise DaemonGone("there is no daemon at the moment")
        async for message in asking.client.chat(
            asking.context,
            session=asking.session,
            options=asking.options,
            request_id=asking.request_id,
            keep=True,
            n=len(candidates),
            continue_final=asking.continues,
            priority=asking.priority,
        ):
            if isinstance(message, Accepted):
                answer.note(prompt_tokens=message.prompt_tokens)
                progress(0)
            elif isinstance(message, Delta):
                tokens[message.index] = candidates[message.index].facts["completion_tokens"] = message.tokens
                one = candidates[message.index]
                thinks[message.index] |= bool(message.reasoning)
                # A model whose template marks no reasoning may write such marks itself: those are its text.
                marked = thinks[message.index]
                one.append(with_reasoning(one.content, message.reasoning, message.text) if marked else message.text)
                progress(sum(tokens))
            else:
                finish(candidates[message.index], message, before)
        _end(candidates, "the answer broke off without an end")
    except (RequestFailed, DaemonGone) as error:
        if stopping():
            _end(candidates)
        elif isinstance(error, RequestFailed) and error.code == "too_long" and len(asking.context) > 1:
            hint = "The chat so far is part of the prompt; a new chat (ctrl+n) starts without it."
            _end(candidates, f"{error}. {hint}")
        else:
            _end(candidates, str(error) or type(error).__name__)
    except asyncio.CancelledError:
        _end(candidates)
    except Exception as error:  # one broken answer must not take the others down
        _end(candidates, f"{type(error).__name__}: {error}")


def _end(candidates: Sequence[Message], problem: str | None = None) -> None:
    """Those that have not ended: stopped, or failed for a reason."""
    for answer in [one for one in candidates if one.status == "streaming"]:
        if problem is None:
            answer.end("stopped")
        else:
            fail(answer, problem)
