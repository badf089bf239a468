"""What the bodies of chat and completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engine.protocol import BeamParams, ChatOptions

MAX_N = 16
MAX_STOPS = 16
MAX_LABEL = 256


class Body(BaseModel):
    """Strict: a number in quotes is no number, and no field is unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _refuse(value: Any) -> None:
    if value is not None:
        raise ValueError("this daemon cannot honour it; leave it out")


Refused = Annotated[None, BeforeValidator(_refuse, json_schema_input_type=None)]
"""A field of OpenAI's that a request may have as null only."""

Label = Annotated[str, Field(max_length=MAX_LABEL)] | None
"""A field that asks nothing of a text model on this machine (docs/http.md lists them): any value is right."""

StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
SessionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^/\x00-\x1f\x7f]+$")]
"""No slash: it is part of an address, and divides the key's name from the session's in the engine."""


def wrong(field: str, words: str) -> PydanticCustomError:
    """To raise in a check of several fields: which of them is to be changed."""
    return PydanticCustomError("wrong_field", "{words}", {"field": field, "words": words})


class StreamOptions(Body):
    include_usage: bool = False
    """One more event at the end, with no choices and the usage of the whole request."""


class Generating(Body):
    """How answers are made."""

    model: Annotated[str, Field(max_length=MAX_LABEL)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """-1 and 0: all tokens."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None
    ignore_eos: bool = False
    use_beam_search: bool = False
    """The n best answers of a search with max(n, best_of) beams, 2 at least. It samples nothing, so temperature and
    its like must be left out."""
    length_penalty: Annotated[float, Field(ge=-8, le=8)] = 1.0
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

    def options(self, max_tokens: int | None) -> ChatOptions:
        """What the front is told; fields that are open keep the model's own defaults."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return ChatOptions(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            seed=self.seed,
            stop=stop,
            stop_token_ids=self.stop_token_ids or [],
            ignore_eos=self.ignore_eos,
        )

    def beam(self, width: int) -> BeamParams | None:
        """The search that is asked for, with so many beams."""
        if not self.use_beam_search:
            return None
        return BeamParams(width=max(2, width), length_penalty=self.length_penalty)
