"""How a request wants its tokens to be chosen.

Every number of this that a client can send has its bounds in a type of this file, and every door takes them from
there: the protocols of clients and of the engine, the HTTP schemas, the command line, the app's settings, and what a
model's generation_config.json may say. NaN and infinity are within no bounds.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenCount = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Answers = Annotated[int, msgspec.Meta(ge=1, le=16)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopK = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
MinP = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
"""A logit is divided or multiplied by it, once: with these bounds no logit that a model gives becomes infinite."""
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]
LogitBias = Annotated[tuple[tuple[TokenId, Bias], ...], msgspec.Meta(max_length=1024)]
TokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=4096)]
StopTokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=256)]
MinTokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
LogprobCount = Annotated[int, msgspec.Meta(ge=0, le=20)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
MAX_GRAMMAR = 2**17
"""Characters, of a schema as JSON too."""

GrammarText = Annotated[str, msgspec.Meta(max_length=MAX_GRAMMAR)]
BeamWidth = Annotated[int, msgspec.Meta(ge=2, le=16)]
LengthPenalty = Annotated[float, msgspec.Meta(ge=-8, le=8)]

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text must be, in a notation of llguidance. The answer ends where the grammar does."""

    kind: GrammarKind
    """json_object: any JSON object; `text` is empty."""
    text: GrammarText = ""
    """json_schema: the schema as JSON. regex: in the syntax of Rust's regex crate, for the whole answer.
    choice: a JSON array of strings. lark, gbnf: the grammar."""
    around: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """A Lark grammar that says `@answer` where this one belongs: behind a model's reasoning, say. Empty: none."""


class SamplingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may ask of the choice of tokens, and what the engine is told in the same words."""

    min_p: MinP = 0.0
    """Sample among tokens at least min_p times as likely as the most likely one."""
    presence_penalty: Penalty = 0.0
    """Taken off the logit of each token generated before (OpenAI)."""
    frequency_penalty: Penalty = 0.0
    """Taken off a token's logit as many times as it was generated before (OpenAI)."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Divides the positive and multiplies the negative logit of each token of prompt and answer so far (CTRL, as in
    transformers)."""
    logit_bias: LogitBias = ()
    """(token id, what is added to its logit); each token once."""
    allowed_token_ids: TokenIds = ()
    """Only these can be sampled, stop tokens included; empty: all."""
    bad_token_ids: TokenIds = ()
    """These are never sampled."""
    grammar: Grammar | None = None
    """The answer follows it. A request waits, without holding up others, until its grammar is compiled."""
    min_tokens: MinTokens = 0
    """No stop token is sampled before so many tokens; only the end of a grammar comes earlier."""
    logprobs: LogprobCount | None = None
    """Report the log probability of each generated token, and this many of the most likely ones there. They are those
    of the model itself (log-softmax of its logits, before anything above), as OpenAI and vLLM report them."""
    prompt_logprobs: LogprobCount | None = None
    """The same for each token of the prompt but the first. The whole prompt is computed: nothing of it is taken from
    the prefix cache."""


class SamplingParams(SamplingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token of a sequence is chosen, and when the sequence ends.

    The model's logits pass these, in this order (vLLM's): repetition, frequency and presence penalty, logit_bias,
    which tokens are allowed (allowed_token_ids, bad_token_ids, min_tokens, grammar), temperature, min_p, top_k, top_p.
    """

    max_tokens: TokenCount
    """Most tokens to generate."""
    temperature: Temperature = 1.0
    """0 takes the most likely token (greedy)."""
    top_k: TopK = 0
    """Sample among the k most likely tokens; 0 takes all."""
    top_p: TopP = 1.0
    """Sample among the most likely tokens whose probabilities add up to top_p."""
    seed: Seed
    """With the position it names the random numbers, so a result never depends on its neighbours."""
    stop_token_ids: StopTokenIds = ()
    """Generation ends when one of these is sampled; the token itself is reported."""


class BeamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beam search as transformers defines it."""

    width: BeamWidth
    length_penalty: LengthPenalty = 1.0
    """A finished beam's score is its summed log probability over its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """True: end with `width` finished beams. False: when the best running one, at its present length, is
    worse than all finished. "never": when no longer answer could be better."""
