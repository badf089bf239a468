"""One HTTP request that wants answers: let in, tokenized, checked against the context, begun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from fastapi import Request, Response

from pagechat.daemon.errors import RequestError
from pagechat.daemon.generation import Conversation, Generation, Prompt
from pagechat.daemon.heavy import Heavy
from pagechat.daemon.http import shares
from pagechat.daemon.http.admission import Ticket
from pagechat.daemon.http.exchange import Exchange, Listener
from pagechat.daemon.http.kept import MOST_OF_A_REQUEST, KeptLogprobs
from pagechat.daemon.http.keys import Key
from pagechat.daemon.http.logprobs import Bytes
from pagechat.daemon.http.offered import required_grammar
from pagechat.daemon.http.refusal import ApiError
from pagechat.daemon.http.schemas.base import Generating
from pagechat.daemon.http.service import Service, new_id, now
from pagechat.daemon.text import ModelText
from pagechat.protocol import Delta, Finished
from pagechat.text.reading import Reading

_SMALL = 2048
"""Numbers and token ids of an answer that is written at once, in the loop."""


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def key_of(request: Request) -> Key:
    key: Key = request.state.key
    return key


def session_label(key: Key, name: str) -> str:
    """A session's name in the engine: those of different keys are different sessions."""
    return f"{key.name}/{name}" if key.name else name


@dataclass(frozen=True, slots=True)
class Whole:
    """One answer at its end; ids and log probabilities only where they were asked for."""

    end: Finished
    token_ids: list[int]
    logprobs: KeptLogprobs


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
    bytes_of: Bytes
    """What a token contributes to a text."""
    prompt_logprobs: list[KeptLogprobs]
    """Of each prompt, from its second token on; complete before its first text, where they were asked for."""
    heavy: Heavy
    on_close: Callable[[], None]
    names: Mapping[str, str | None]
    """What the request calls a field that the daemon calls otherwise."""
    closed: bool = field(default=False, init=False)

    async def follow(self, listener: Listener) -> None:
        """As `Exchange.follow`, but the listener is told the number of the choice."""

        def hear(prompt: int, message: Delta | Finished) -> None:
            if isinstance(message, Finished):
                if message.finish_reason == "abort":
                    raise RequestError("shutting_down", "the daemon stopped before this answer was complete")
            elif message.prompt_logprobs:
                self.prompt_logprobs[prompt] += message.prompt_logprobs
                return
            listener(prompt * self.answers + message.index, message)

        try:
            await self.exchange.follow(hear)
        except RequestError as error:
            raise self.named(error) from None

    def named(self, error: RequestError) -> RequestError:
        """The same in the request's own words."""
        param = error.param
        return RequestError(error.code, error.message, self.names.get(param, param) if param else None)

    async def finished(self) -> list[Whole]:
        """All answers at their end, by choice."""
        found: list[Whole | None] = [None] * (len(self.prompts) * self.answers)
        tokens: list[list[int]] = [[] for _ in found]
        logprobs = [KeptLogprobs() for _ in found]

        def hear(choice: int, message: Delta | Finished) -> None:
            if isinstance(message, Finished):
                found[choice] = Whole(message, tokens[choice], logprobs[choice])
            else:
                tokens[choice] += message.token_ids
                logprobs[choice] += message.logprobs

        await self.follow(hear)
        return [whole for whole in found if whole is not None]

    async def written(self, make: Callable[[], Any]) -> Response:
        """The answer as JSON, which `make` makes: beside the loop where it is large. Not to be called once closed."""
        kept = sum(map(len, self.prompt_logprobs)) + self.ticket.kept
        if kept + sum(map(len, self.prompts)) <= _SMALL:
            return _json(make)
        return await self.heavy.finish(self.ticket.tenant, _json, make)

    def close(self) -> None:
        """A second call does nothing."""
        if not self.closed:
            self.closed = True
            self.ticket.answered(self.exchange.close())
            self.ticket.close()
            self.on_close()


def _after_turn(service: Service, key: Key, body: Generating) -> None:
    if body.session is not None and (label := session_label(key, body.session)) in service.pinned:
        service.spawn(shares.let_go_what_has_grown(service, key, label))


def _json(make: Callable[[], Any]) -> Response:
    return Response(msgspec.json.encode(make()), media_type="application/json")


async def begin(
    request: Request,
    body: Generating,
    prompts: Sequence[Prompt],
    limit: int | None,
    kind: str,
    candidates: int,
    reading: Reading | None = None,
) -> Call:
    """Returns when there is something to say. Raises ApiError, RequestError, ClientGone.

    `limit`: max_tokens. `kind`: of the new object's id. `candidates`: answers to make, or beams of a search.
    """
    service, key = service_of(request), key_of(request)
    engine = service.check_model(body.model)
    _, text = service.ready()
    priority = _priority(body, key)
    answers = body.answers if body.use_beam_search else candidates
    options, beam = body.options(limit), body.beam(candidates)
    if reading is not None:
        grammar = required_grammar(body, text) if reading.forced else options.grammar
        options = msgspec.structs.replace(options, grammar=grammar)
        reading = replace(reading, follows=grammar is not None)
    ticket = service.admission.enter(key, answers * len(prompts))
    call = Call(
        id=new_id(kind),
        created=now(),
        model=engine.model.name,
        prompts=[],
        answers=answers,
        exchange=Exchange(service.answering, request.receive),
        ticket=ticket,
        bytes_of=text.token_bytes,
        prompt_logprobs=[KeptLogprobs() for _ in prompts],
        heavy=service.answering.heavy,
        on_close=lambda: _after_turn(service, key, body),
        names={"grammar": body.grammar_field} | _NAMES[kind],
    )
    try:
        for prompt in prompts:
            tokens = await service.answering.tokens(prompt, key.name)
            _check_room(len(tokens), limit, engine.model.max_context, kind)
            ticket.has_prompt(len(tokens))
            call.prompts.append(tokens)
        _check_kept(body, call, limit, engine.model.max_context)
        longest = max(map(len, call.prompts))
        await shares.check_pool(service, key, sum(map(len, call.prompts)), answers * len(prompts))
        if body.session is not None:
            await shares.check_growth(service, key, session_label(key, body.session), longest + (limit or 0))
        session = body.session or call.id
        await call.exchange.begin(
            [
                Generation(
                    request_id=str(number),
                    session=session_label(key, session),
                    prompt=tokens,
                    options=options,
                    keep=body.session is not None,
                    n=answers,
                    beam=beam,
                    salt=key.cache_salt + (body.cache_salt or "").encode(),
                    tenant=key.name,
                    priority=priority,
                    with_tokens=body.return_token_ids,
                    reading=_thinking(text, reading, prompts[number], tokens),
                )
                for number, tokens in enumerate(call.prompts)
            ]
        )
    except RequestError as error:
        call.close()
        raise call.named(error) from None
    except BaseException:
        call.close()
        raise
    ticket.began()
    return call


def _thinking(text: ModelText, reading: Reading | None, prompt: Prompt, tokens: list[int]) -> Reading | None:
    """The same, of this prompt."""
    if reading is None or not isinstance(prompt, Conversation):
        return reading
    return replace(reading, thinking=text.thinking(prompt, tokens))


def _priority(body: Generating, key: Key) -> int:
    """Raises ApiError for one that the key may not ask for."""
    if body.priority is None:
        return max(0, key.min_priority)
    if body.priority < key.min_priority:
        raise ApiError(
            403,
            f"priority: key {key.name!r} may ask for {key.min_priority} and higher numbers, which are served later; "
            f"this request asks for {body.priority}",
            param="priority",
            code="priority_not_allowed",
        )
    return body.priority


_NAMES: dict[str, dict[str, str | None]] = {
    "chatcmpl": {"prompt": "messages"},
    "cmpl": {},
    "resp": {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens", "grammar": "text.format"},
}
"""What the daemon's fields are called, by the kind of the new object's id."""


def _check_kept(body: Generating, call: Call, limit: int | None, context: int) -> None:
    """Books what the request keeps until it is answered. Raises ApiError for more than a request, or all, may keep."""
    numbers = 0
    of_prompt, of_answer = body.asked_prompt_logprobs, body.token_logprobs
    for prompt in call.prompts:
        if of_prompt is not None:
            numbers += len(prompt) * (of_prompt + 1) * body.answers
        if of_answer is not None and not body.stream:
            room = context - len(prompt)
            numbers += (room if limit is None else min(limit, room)) * (of_answer + 1) * call.answers
    if numbers > MOST_OF_A_REQUEST:
        total = sum(map(len, call.prompts))
        raise ApiError(
            400,
            f"the log probabilities of this request are {numbers:,} numbers ({total:,} prompt tokens, "
            f"{call.answers * len(call.prompts):,} answers); {MOST_OF_A_REQUEST:,} is the limit: ask for fewer of the "
            "likeliest tokens, for shorter answers (max_tokens), or in several requests",
            param="logprobs" if of_prompt is None else "prompt_logprobs",
            code="too_many_logprobs",
        )
    call.ticket.keeps(numbers)


def _check_room(prompt: int, limit: int | None, context: int, kind: str) -> None:
    """Raises ApiError for what the context cannot hold: no answer is cut short silently."""
    names = _NAMES[kind]
    if prompt >= context:
        raise ApiError(
            400,
            f"the prompt takes {prompt:,} tokens and leaves no room for an answer: the context holds {context:,}",
            param=names.get("prompt", "prompt"),
            code="context_length_exceeded",
        )
    if limit is not None and prompt + limit > context:
        raise ApiError(
            400,
            f"the context holds {context:,} tokens: the prompt takes {prompt:,} and leaves {context - prompt:,} for "
            f"an answer; {limit:,} were asked for",
            param=names.get("max_tokens", "max_tokens"),
            code="context_length_exceeded",
        )
