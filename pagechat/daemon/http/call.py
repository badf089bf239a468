"""One HTTP request that wants answers: let in, tokenized, checked against the context, begun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from fastapi import Request

from engine.protocol import Delta, Finished
from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Generation, Prompt
from pagechat.daemon.http.admission import Ticket
from pagechat.daemon.http.exchange import Exchange, Said
from pagechat.daemon.http.keys import Key
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.schemas.base import Generating
from pagechat.daemon.http.service import Service, new_id, now


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def key_of(request: Request) -> Key:
    key: Key = request.state.key
    return key


def session_label(key: Key, name: str) -> str:
    """A session's name in the engine: those of different keys are different sessions."""
    return f"{key.name}/{name}" if key.name else name


@dataclass(slots=True)
class Call:
    """Make it with `begin`; `close` it in every case."""

    id: str
    created: int
    model: str
    prompts: list[list[int]]
    """Token ids."""
    answers: int
    """To each prompt."""
    exchange: Exchange
    ticket: Ticket

    async def said(self) -> AsyncIterator[tuple[int, Delta | Finished]]:
        """(number of the choice, what was said of it). Raises RequestError, ClientGone."""
        async for said in self.exchange.said():
            if isinstance(said.message, Finished) and said.message.finish_reason == "abort":
                raise RequestError("shutting_down", "the daemon stopped before this answer was complete")
            yield self._choice(said), said.message

    async def finished(self) -> tuple[list[Finished], list[list[int]]]:
        """All answers at their end, by choice, and the token ids of each where they were asked for."""
        ends: dict[int, Finished] = {}
        ids: list[list[int]] = [[] for _ in range(len(self.prompts) * self.answers)]
        async for choice, message in self.said():
            if isinstance(message, Finished):
                ends[choice] = message
            else:
                ids[choice] += message.token_ids
        return [ends[choice] for choice in range(len(ends))], ids

    def _choice(self, said: Said) -> int:
        return said.prompt * self.answers + said.message.index

    def close(self) -> None:
        self.exchange.close()
        self.ticket.close()


async def begin(
    request: Request, body: Generating, prompts: Sequence[Prompt], limit: int | None, kind: str, width: int
) -> Call:
    """Returns when there is something to say. Raises ApiError, RequestError, ClientGone.

    `limit`: max_tokens. `kind`: of the new object's id. `width`: beams of a search, if one is asked for.
    """
    service, key = service_of(request), key_of(request)
    engine = service.check_model(body.model)
    ticket = service.admission.enter(key, body.answers * len(prompts))
    exchange = Exchange(service.answering, request.receive)
    call = Call(new_id(kind), now(), engine.model.name, [], body.answers, exchange, ticket)
    try:
        for prompt in prompts:
            tokens = await service.answering.tokens(prompt)
            _check_room(len(tokens), limit, engine.model.max_context)
            ticket.has_prompt(len(tokens))
            call.prompts.append(tokens)
        session = body.session or call.id
        await exchange.begin(
            [
                Generation(
                    request_id=str(number),
                    session=session_label(key, session),
                    prompt=tokens,
                    options=body.options(limit),
                    keep=body.session is not None,
                    n=body.answers,
                    beam=body.beam(width),
                    salt=key.cache_salt + (body.cache_salt or "").encode(),
                    tenant=key.name,
                    with_tokens=body.return_token_ids,
                )
                for number, tokens in enumerate(call.prompts)
            ]
        )
    except BaseException:
        call.close()
        raise
    ticket.began()
    return call


def _check_room(prompt: int, limit: int | None, context: int) -> None:
    """Raises ApiError for what the context cannot hold: no answer is cut short silently."""
    if prompt >= context:
        raise ApiError(
            400,
            f"the prompt takes {prompt:,} tokens and leaves no room for an answer: the context holds {context:,}",
            param="messages",
            code="context_length_exceeded",
        )
    if limit is not None and prompt + limit > context:
        raise ApiError(
            400,
            f"the context holds {context:,} tokens: the prompt takes {prompt:,} and leaves {context - prompt:,} for "
            f"an answer; {limit:,} were asked for",
            param="max_tokens",
            code="context_length_exceeded",
        )
