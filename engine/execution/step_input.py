"""The seam between deciding and computing: a step as plain data, and what comes back.

The scheduler decides with live sequences; `engine.execution.builder` writes down what a runner has to know of its
decision. Nothing here refers to a sequence, a request or a tensor, so a step can be compared, kept, or sent to another
process. A runner may keep between two steps only what it can check against the next StepInput.

```
rows, starts, counts   one entry a sequence of the step   |  seq in row 4  |  seq in row 9   |
token_ids              their tokens, one after the other  |  17  5  88  2  |  -1 (UNKNOWN)   |
samples                tokens to choose                            ^ one            ^ one, and one for each fork
```
A *row* is a place that a runner keeps for a sequence: its block table, and the token that was chosen for it last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.protocol import TokenLogprobs

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

UNKNOWN = -1
"""A token id that only the runner knows: the one it chose last for the sequence's row."""

FAILED = -1
"""In a result, the token of a row whose logits are not finite: there is none."""

SAMPLING = np.dtype(
    [("temperature", np.float32), ("top_p", np.float32), ("min_p", np.float32), ("top_k", np.int32), ("seed", np.int64)]
)
"""How one token is drawn once its logits stand; a field each of `SamplingParams`."""


def _no_ints() -> Ints:
    return np.zeros(0, np.int32)


def _no_pairs() -> Ints:
    return np.zeros((0, 2), np.int32)


@dataclass(frozen=True, slots=True)
class LogitsEdit:
    """What changes the logits of one sample before its temperature; see `SamplingParams` for the order."""

    sample: int
    """Index of the sample."""
    tokens: Ints = field(default_factory=_no_ints)
    """Distinct tokens of the prompt and the answer so far, when a penalty wants them."""
    counts: Ints = field(default_factory=_no_ints)
    """How often each of `tokens` was generated; 0: it is in the prompt only."""
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    newest_unknown: bool = False
    """The newest token is UNKNOWN, so `tokens` and `counts` lack it: the runner adds it."""
    bias_tokens: Ints = field(default_factory=_no_ints)
    bias_values: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    mask: Ints | None = None
    """Allowed tokens, packed as kernels.sampling.Mask says; None: all."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Prompt tokens whose log probabilities are wanted."""

    span: int
    """Index of the sequence in the step."""
    first: int
    """The first of `following` is judged by the logits after this token of the sequence's tokens in the step."""
    following: Ints
    count: int
    """So many of the most likely tokens are reported beside each."""


@dataclass(frozen=True, slots=True, eq=False)
class StepInput:
    """One forward pass. Arrays are int32 where nothing else is said; S sequences, T tokens, N samples."""

    number: int
    rows: Ints
    """[S]."""
    starts: Ints
    """[S] Tokens of each sequence that were computed before: the place of its first token in this step."""
    counts: Ints
    """[S] Tokens of each sequence in this step."""
    token_ids: Ints
    """[T]."""
    patches: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    """[P, 3] (row, index, block): entries of block tables that change before the step, in ascending order a row. Entry
    0 of a row begins a new table."""
    swap_out: Ints = field(default_factory=_no_pairs)
    """[., 2] (block, host slot). Before the forward KV moves in this order: swap_out, copies, swap_in."""
    copies: Ints = field(default_factory=_no_pairs)
    """[., 2] (source, destination) blocks, in all layers (copy-on-write). All are read before any is written."""
    swap_in: Ints = field(default_factory=_no_pairs)
    """[., 2] (host slot, block)."""
    sampled: Ints = field(default_factory=_no_ints)
    """[N] Index of the sequence whose last logits each sample is drawn from."""
    sample_rows: Ints = field(default_factory=_no_ints)
    """[N] The row that each sample belongs to: that of the sequence, or of a fork that is born in this step."""
    settings: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, SAMPLING))
    """SAMPLING [N]."""
    logprobs: Ints = field(default_factory=_no_ints)
    """[N] How many of the most likely tokens to report with each sample; -1: nothing."""
    edits: tuple[LogitsEdit, ...] = ()
    """A sample has one edit at most."""
    beams: tuple[tuple[int, int], ...] = ()
    """(index of the sequence, candidates): beams, which get no sample but their best next tokens."""
    prompt_scores: tuple[PromptScores, ...] = ()

    @property
    def is_decode(self) -> bool:
        """Every sequence has one token, and each of them is asked what comes next; nothing forks."""
        each = len(self.token_ids) == len(self.rows) == len(self.sampled) + len(self.beams)
        return each and np.array_equal(self.sample_rows, self.rows[self.sampled])

    @property
    def places(self) -> Ints:
        """[N] The place that each chosen token takes in its sequence."""
        return (self.starts + self.counts)[self.sampled]

    @property
    def firsts(self) -> Ints:
        """[S] Index of each sequence's first token in `token_ids`."""
        return (np.cumsum(self.counts) - self.counts).astype(np.int32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepInput) and encode_step(self) == encode_step(other)

    __hash__ = None  # type: ignore[assignment]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner makes of a StepInput, in the order in which that asks for it."""

    tokens: list[int]
    """One a sample; FAILED where its logits were not finite."""
    logprobs: list[TokenLogprobs | None] = []
    """One entry for each of `tokens`, None where nobody asked; the list is empty when nobody asked at all."""
    beams: list[tuple[list[int], list[float]]] = []
    """Each beam's best next tokens and their log probabilities, the best first."""
    prompt_scores: list[list[TokenLogprobs]] = []
    swap_s: float = 0.0
    """Seconds spent moving blocks between device and host."""


def encode_step(step: StepInput) -> bytes:
    """The step as one MessagePack frame, for a runner in another process."""
    return _encoder.encode(_plain(step))


def decode_step(frame: bytes) -> StepInput:
    """The inverse of `encode_step`. Raises msgspec.DecodeError."""
    found = msgspec.msgpack.decode(frame)
    arrays = {name: _array(value) for name, value in found.items()}
    arrays["edits"] = tuple(
        LogitsEdit(**{name: _array(value) for name, value in edit.items()}) for edit in found["edits"]
    )
    arrays["prompt_scores"] = tuple(
        PromptScores(**{name: _array(value) for name, value in scores.items()}) for scores in found["prompt_scores"]
    )
    arrays["beams"] = tuple((span, count) for span, count in found["beams"])
    return StepInput(**arrays)


def _plain(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        kind = "sampling" if value.dtype == SAMPLING else value.dtype.str
        return {"dtype": kind, "shape": value.shape, "bytes": value.tobytes()}
    return _plain(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_as_plain)


def _array(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    dtype = SAMPLING if value["dtype"] == "sampling" else np.dtype(value["dtype"])
    return np.frombuffer(bytearray(value["bytes"]), dtype).reshape(value["shape"])
