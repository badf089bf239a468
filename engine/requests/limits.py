"""What one engine can serve at all, and in which words it refuses what it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol import AddRequest, ErrorCode
from engine.sampling import rules as sampling_rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that stay the same while the engine runs."""

    num_blocks: int
    block_size: int
    max_context: int
    vocab_size: int
    max_running: int
    shares: bool
    """Sequences can share blocks."""
    grammars: bool
    """There is a tokenizer to compile grammars with."""

    def refusal(self, message: AddRequest) -> tuple[ErrorCode, str, str | None] | None:
        """Why a request can never be served, with the numbers, and which field is wrong; None when it can."""
        prompt, places = len(message.prompt), message.beam.width if message.beam else message.n
        size, num_blocks = self.block_size, self.num_blocks
        pool = f"the KV pool has {num_blocks} blocks of {size} = {num_blocks * size} slots"
        if prompt == 0:
            return "bad_request", "the prompt has no tokens", "prompt"
        if not all(0 <= token < self.vocab_size for token in message.prompt):
            return "bad_request", f"the prompt has a token id outside 0..{self.vocab_size - 1}", "prompt"
        if prompt >= self.max_context:
            limit = f"a sequence may hold {self.max_context} with its answer ({pool})"
            return "too_long", f"the prompt has {prompt} tokens, but {limit}", "prompt"
        problem = sampling_rules.problem(message, self.vocab_size)
        if problem:
            field, words = problem
            return "bad_request", words, field
        if message.sampling.grammar and not self.grammars:
            return "bad_request", "this engine has no tokenizer, which grammars need", "grammar"
        if places > self.max_running:
            return "bad_request", f"{places} answers at once, but only {self.max_running} sequences may run", "n"
        if message.beam and not self.shares:
            return "bad_request", "beam search needs the policy `paged`", None
        if -(-(prompt + 1) // size) + (places - 1 if self.shares else 0) > num_blocks:
            return "too_long", f"{places} answers to a prompt of {prompt} tokens do not fit: {pool}", "prompt"
        return None
