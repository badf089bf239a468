"""What the bodies of chat and completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from engine.protocol import BeamParams, Grammar
from engine.protocol import TokenId as ProtocolTokenId
from engine.protocol.commands import Priority as ProtocolPriority
from engine.protocol.sampling import (
    Answers,
    Bias,
    LengthPenalty,
    LogitBias,
    LogprobCount,
    MinP,
    MinTokens,
    Penalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TokenIds,
    TopK,
    TopP,
)
from pagechat.daemon.errors import RequestError
from pagechat.daemon.http.schemas.body import Body, WholeBody, wrong
from pagechat.daemon.http.schemas.bounds import bounds
from pagechat.daemon.http.schemas.structure import (
    Choices,
    GrammarText,
    ResponseFormat,
    StructuredOutputs,
    of_choice,
    of_grammar,
    of_regex,
    of_schema,
)
from pagechat.protocol import ChatOptions, StopStrings, StopTokens
from pagechat.protocol import StopString as ProtocolStopString

MAX_LABEL = 256


def _refuse(value: Any) -> None:
    if value is not None:
        raise ValueError("this daemon cannot honour it; leave it out")


Refused = Annotated[None, BeforeValidator(_refuse, json_schema_input_type=None)]
"""A field of OpenAI's that a request may have as null only."""

Label = Annotated[str, Field(max_length=MAX_LABEL)] | None
"""A field that asks nothing of a text model on this machine (docs/http.md lists them): any value is right."""

StopString = Annotated[str, bounds(ProtocolStopString)]
TokenId = Annotated[int, bounds(ProtocolTokenId)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Priority = Annotated[int, bounds(ProtocolPriority)] | None
SessionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^/\x00-\x1f\x7f]+$")]
"""No slash: it is part of an address, and divides the key's name from the session's in the engine."""


class StreamOptions(Body):
    include_usage: bool = False
    """One more event at the end, with no choices and the usage of the whole request."""


class Generating(WholeBody):
    """How answers are made."""

    model: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, bounds(Answers)] | None = 1
    temperature: Annotated[float, bounds(Temperature)] | None = None
    top_p: Annotated[float, bounds(TopP)] | None = None
    top_k: Annotated[int, bounds(TopK, ge=-1)] | None = None
    """-1 and 0: all tokens."""
    seed: Annotated[int, bounds(Seed)] | None = None
    stop: StopString | Annotated[list[StopString], bounds(StopStrings)] | None = None
    stop_token_ids: Annotated[list[TokenId], bounds(StopTokens)] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, bounds(MinTokens)] = 0
    min_p: Annotated[float, bounds(MinP)] | None = None
    presence_penalty: Annotated[float, bounds(Penalty)] | None = None
    frequency_penalty: Annotated[float, bounds(Penalty)] | None = None
    repetition_penalty: Annotated[float, bounds(RepetitionPenalty)] | None = None
    logit_bias: Annotated[dict[TokenName, Annotated[float, bounds(Bias)]], bounds(LogitBias)] | None = None
    """What is added to a token's logit, by the token's id."""
    allowed_token_ids: Annotated[list[TokenId], bounds(TokenIds, min_length=1)] | None = None
    prompt_logprobs: Annotated[int, bounds(LogprobCount)] | None = None
    """Of each token of the prompt, with so many of the likeliest there; not with stream."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    """vLLM's newer form of guided_*."""
    guided_json: dict[str, Any] | str | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    priority: Priority = None
    """Lower numbers are served first, and equal ones in the order they came; 0 where it is not said."""
    use_beam_search: bool = False
    """The n best answers of a search with max(n, best_of) beams, 2 at least. It samples nothing, so temperature and
    its like must be left out."""
    length_penalty: Annotated[float, bounds(LengthPenalty)] = 1.0
    """Of the beam search."""
    return_token_ids: bool = False
    session: SessionName | None = None
    """A chat that goes on: its blocks stay for the next turn. pagechat's own."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_LABEL)] | None = None
    """Share cached prefixes only with requests of the same salt."""
    user: Label = None
    service_tier: Literal["auto", "default"] | None = None
    """There is one tier."""

    @model_validator(mode="after")
    def _search_or_sample(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "only with stream: true")
        if self.prompt_logprobs is not None and self.stream:
            raise wrong("prompt_logprobs", "not with stream: true")
        if not self.use_beam_search:
            if "length_penalty" in self.model_fields_set:
                raise wrong("length_penalty", "only with use_beam_search: true")
            return self
        for field in ("temperature", "top_p", "top_k", "seed"):
            if getattr(self, field) is not None:
                raise wrong(field, "a beam search samples nothing; leave it out with use_beam_search")
        return self

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def token_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told beside each one; None: no log probabilities at all."""
        raise NotImplementedError

    @property
    def asked_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    def options(self, max_tokens: int | None) -> ChatOptions:
        """What the front is told; fields that are open keep the model's own defaults."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        bias = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        return ChatOptions(
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            logit_bias=tuple(bias.items()),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            min_tokens=self.min_tokens,
            logprobs=self.token_logprobs,
            prompt_logprobs=self.asked_prompt_logprobs,
            grammar=self.grammar(),
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            seed=self.seed,
            stop=stop,
            stop_token_ids=self.stop_token_ids or [],
            ignore_eos=self.ignore_eos,
        )

    def _grammars(self) -> dict[str, Grammar]:
        """By the fields that ask for them."""
        asked: dict[str, Grammar | None] = {
            "response_format": self.response_format.grammar() if self.response_format else None,
            "structured_outputs": self.structured_outputs.grammar() if self.structured_outputs else None,
            "guided_json": of_schema(self.guided_json),
            "guided_regex": of_regex(self.guided_regex),
            "guided_choice": of_choice(self.guided_choice),
            "guided_grammar": of_grammar(self.guided_grammar),
        }
        return {field: grammar for field, grammar in asked.items() if grammar is not None}

    @property
    def grammar_field(self) -> str | None:
        """The field that says what the answer must follow."""
        return next(iter(self._grammars()), None)

    def grammar(self) -> Grammar | None:
        """What the answer must follow, however it was said."""
        given = self._grammars()
        if len(given) > 1:
            raise RequestError(
                "bad_request", f"{' and '.join(given)}: an answer follows one of them", next(iter(given))
            )
        return next(iter(given.values()), None)

    def beam(self, width: int) -> BeamParams | None:
        """The search that is asked for, with so many beams."""
        if not self.use_beam_search:
            return None
        return BeamParams(width=max(2, width), length_penalty=self.length_penalty)
