"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from engine.protocol.commands import Prompt
from engine.protocol.sampling import Answers, LogprobCount, TokenCount
from pagechat.daemon.generation import Text, Tokens
from pagechat.daemon.http.schemas.base import Generating, Refused, TokenId
from pagechat.daemon.http.schemas.body import wrong
from pagechat.daemon.http.schemas.bounds import bounds

MAX_PROMPTS = 256

Ids = Annotated[list[TokenId], bounds(Prompt, min_length=1)]


def _form(prompt: Any) -> str:
    """Which of its forms a prompt has, by its first item: so what is wrong with it is said of that form alone."""
    first = prompt[0] if isinstance(prompt, list) and prompt else prompt
    form = {int: "list[int]", list: "list[list]"}.get(type(first), "list[str]")
    return form if isinstance(prompt, list) else "str"


_Prompts = Field(min_length=1, max_length=MAX_PROMPTS)
PromptField = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[Ids, Tag("list[int]")]
    | Annotated[list[str], _Prompts, Tag("list[str]")]
    | Annotated[list[Ids], _Prompts, Tag("list[list]")],
    Discriminator(_form),
]


class CompletionBody(Generating):
    prompt: PromptField
    """Text as it is (no chat template), or token ids; or a list of either, each answered by itself."""
    max_tokens: Annotated[int, bounds(TokenCount, ge=0)] | None = 16
    """16 is OpenAI's default. null: what the context holds. 0, with echo: the prompt alone."""
    logprobs: Annotated[int, bounds(LogprobCount)] | None = None
    """Of each token, with so many of the likeliest there; with echo, of the prompt's tokens too."""
    echo: bool | None = False
    """The prompt comes before the answer."""
    best_of: Annotated[int, bounds(Answers)] | None = None
    """So many answers are made, and the n with the highest log probability per token come back; not with stream."""
    suffix: Refused = None
    """The model does not fill in the middle."""
    add_special_tokens: bool = True
    """The tokenizer's own first tokens (BOS) go before a text prompt, unless it begins with them."""

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionBody:
        if self.max_tokens == 0 and not self.echo:
            raise wrong("max_tokens", "0 leaves nothing to do, except with echo")
        if self.best_of is not None and self.best_of < self.answers:
            raise wrong("best_of", "must be at least n")
        if self.stream and not self.use_beam_search and self.candidates > self.answers:
            raise wrong("best_of", "not with stream: true, since the best answers are known at the end")
        return self

    @property
    def candidates(self) -> int:
        return self.best_of or self.answers

    @property
    def token_logprobs(self) -> int | None:
        ranked = self.candidates > self.answers and not self.use_beam_search
        return 0 if self.logprobs is None and ranked else self.logprobs

    @property
    def asked_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs

    def prompts(self) -> list[Text | Tokens]:
        match self.prompt:
            case str():
                return [Text(self.prompt, self.add_special_tokens)]
            case [int(), *_]:
                return [tuple(self.prompt)]  # type: ignore[arg-type]
        return [
            Text(one, self.add_special_tokens) if isinstance(one, str) else tuple(one)  # type: ignore[arg-type]
            for one in self.prompt
        ]
