"""An executor without a model that knows what every KV slot must hold, and complains when one does not."""

from __future__ import annotations

from engine.core import EngineCore
from engine.protocol import AddRequest, SamplingParams, TokenOutput
from engine.sequence import Step

VOCAB = 50


class ContentExecutor:
    """Stores in each slot a digest of all tokens up to it, as real KV depends on them, and reads it back.

    A block shared too early, copied too late, evicted while owned or written by two sequences shows
    as a digest that is not the reader's own.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = [[0] * block_size for _ in range(num_blocks + 1)]
        self.computed = 0

    def execute(self, step: Step) -> list[int]:
        contents = [list(self.slots[source]) for source, _ in step.copies]
        for (_, destination), content in zip(step.copies, contents, strict=True):
            self.slots[destination] = content
        for span in step.spans:
            digests = prefix_digests(span.sequence.tokens)
            self.computed += span.count
            for position in range(span.start, span.start + span.count):
                block, offset = divmod(position, self.block_size)
                self.slots[span.sequence.table[block]][offset] = digests[position]
        sampled = []
        for span in step.spans:
            digests = prefix_digests(span.sequence.tokens)
            for position in range(span.start + span.count):
                block, offset = divmod(position, self.block_size)
                assert self.slots[span.sequence.table[block]][offset] == digests[position], (
                    f"sequence {span.sequence.id} reads foreign KV at {position}"
                )
            if span.samples:
                sampled.append(next_token(digests[-1]))
        return sampled


def prefix_digests(tokens: list[int]) -> list[int]:
    digests, digest = [], 1
    for token in tokens:
        digest = (digest * 1_000_003 + token + 1) % (2**61 - 1)
        digests.append(digest)
    return digests


def next_token(digest: int) -> int:
    """What the "model" says after a prefix: any function of the whole prefix."""
    return (digest >> 7) % VOCAB


def expected_answer(prompt: list[int], max_tokens: int, stop: tuple[int, ...] = (), context: int = 10**9) -> list[int]:
    """The tokens an engine with endless memory would give."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(prefix_digests(tokens)[-1]))
        if tokens[-1] in stop or len(tokens) - len(prompt) >= max_tokens or len(tokens) >= context:
            return tokens[len(prompt) :]


def make_core(num_blocks: int, block_size: int = 4, **settings: int | bool) -> EngineCore:
    options = {"max_context": 10**6, "vocab_size": VOCAB, **settings}
    return EngineCore(ContentExecutor(num_blocks, block_size), num_blocks=num_blocks, block_size=block_size, **options)  # type: ignore[arg-type]


def request(
    name: str, prompt: list[int], max_tokens: int = 8, stop: tuple[int, ...] = (), salt: bytes = b""
) -> AddRequest:
    return AddRequest(
        request_id=name,
        session=f"chat-{name}",
        prompt=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0, seed=0, stop_token_ids=stop),
        salt=salt,
    )


def run(core: EngineCore, limit: int = 100_000) -> dict[str, list[TokenOutput]]:
    """Step until nothing is left to do; the outputs of each request."""
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(limit):
        if not core.has_work:
            return outputs
        for output in core.step()[0]:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"still working after {limit} steps")


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]
