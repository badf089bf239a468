"""Which sampling parameters cannot be honoured together, or not by this model; said before any work is done."""

from __future__ import annotations

from engine.protocol import AddRequest, SamplingParams


def problem(message: AddRequest, vocab_size: int) -> tuple[str, str] | None:
    """What is wrong with a request's way of sampling: a field, and words that name all that have to do with it; None
    when nothing is."""
    params = message.sampling
    if params.min_tokens > params.max_tokens:
        return "min_tokens", f"min_tokens is {params.min_tokens}, but max_tokens is {params.max_tokens}"
    biased = [token for token, _ in params.logit_bias]
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": biased,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_token_ids": params.bad_token_ids,
    }
    for name, tokens in named.items():
        outside = [token for token in tokens if not 0 <= token < vocab_size]
        if outside:
            return name, f"{name} has token id {outside[0]}; this model's are 0..{vocab_size - 1}"
    if len(set(biased)) < len(biased):
        return "logit_bias", "logit_bias names a token twice"
    if message.beam:
        return _beam_problem(params)
    if params.grammar and (params.allowed_token_ids or params.bad_token_ids):
        words = "grammar already says which tokens may come; leave out allowed_token_ids and bad_token_ids"
        return "allowed_token_ids" if params.allowed_token_ids else "bad_token_ids", words
    if not _something_left(params, vocab_size):
        words = "allowed_token_ids, bad_token_ids and min_tokens leave no token that can be sampled"
        return "allowed_token_ids" if params.allowed_token_ids else "bad_token_ids", words
    return None


def _beam_problem(params: SamplingParams) -> tuple[str, str] | None:
    """Beam search ranks whole answers by the model's own probabilities."""
    plain = SamplingParams(max_tokens=1, seed=0)
    fields = (
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "bad_token_ids",
        "grammar",
        "min_tokens",
        "logprobs",
        "prompt_logprobs",
    )
    given = [name for name in fields if getattr(params, name) != getattr(plain, name)]
    return (given[0], f"beam search cannot be combined with {', '.join(given)}") if given else None


def _something_left(params: SamplingParams, vocab_size: int) -> bool:
    forbidden = set(params.bad_token_ids)
    if params.min_tokens:
        forbidden.update(params.stop_token_ids)
    if params.allowed_token_ids:
        return not forbidden.issuperset(params.allowed_token_ids)
    return len(forbidden) < vocab_size
