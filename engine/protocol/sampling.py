"""How a request wants its tokens to be chosen. Every number a client can send has its bounds here, and only here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text must be, in a notation of llguidance. The answer ends where the grammar does."""

    kind: GrammarKind
    """json_object: any JSON object; `text` is empty."""
    text: Annotated[str, msgspec.Meta(max_length=2**17)] = ""
    """json_schema: the schema as JSON. regex: in the syntax of Rust's regex crate, for the whole answer.
    choice: a JSON array of strings. lark, gbnf: the grammar."""


class SamplingRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may ask of the choice of tokens, and what the engine is told in the same words."""

    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Sample among tokens at least min_p times as likely as the most likely one."""
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    """Taken off the logit of each token generated before (OpenAI)."""
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    """Taken off a token's logit as many times as it was generated before (OpenAI)."""
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    """Divides the positive and multiplies the negative logit of each token of prompt and answer so far (CTRL, as in
    transformers)."""
    logit_bias: Annotated[
        tuple[tuple[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]], ...], msgspec.Meta(max_length=1024)
    ] = ()
    """(token id, what is added to its logit); each token once."""
    allowed_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=4096)] = ()
    """Only these can be sampled, stop tokens included; empty: all."""
    bad_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=4096)] = ()
    """These are never sampled."""
    grammar: Grammar | None = None
    """The answer follows it. A request waits, without holding up others, until its grammar is compiled."""
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """No stop token is sampled before so many tokens; only the end of a grammar comes earlier."""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """Report the log probability of each generated token, and this many of the most likely ones there. They are those
    of the model itself (log-softmax of its logits, before anything above), as OpenAI and vLLM report them."""
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """The same for each token of the prompt but the first. The whole prompt is computed: nothing of it is taken from
    the prefix cache."""


class SamplingParams(SamplingRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token of a sequence is chosen, and when the sequence ends.

    The model's logits pass these, in this order (vLLM's): repetition, frequency and presence penalty, logit_bias,
    which tokens are allowed (allowed_token_ids, bad_token_ids, min_tokens, grammar), temperature, min_p, top_k, top_p.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    """Most tokens to generate."""
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """0 takes the most likely token (greedy)."""
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Sample among the k most likely tokens; 0 takes all."""
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Sample among the most likely tokens whose probabilities add up to top_p."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """With the position it names the random numbers, so a result never depends on its neighbours."""
    stop_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=256)] = ()
    """Generation ends when one of these is sampled; the token itself is reported."""


class BeamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beam search as transformers defines it."""

    width: Annotated[int, msgspec.Meta(ge=2, le=16)]
    length_penalty: Annotated[float, msgspec.Meta(ge=-8, le=8)] = 1.0
    """A finished beam's score is its summed log probability over its length to this power."""
    early_stopping: bool | Literal["never"] = False
    """True: end with `width` finished beams. False: when the best running one, at its present length, is
    worse than all finished. "never": when no longer answer could be better."""
