"""Shadows: what each allocation policy would hold of the requests that are live now, without holding anything.

A shadow sees the live requests arrive, hold tokens and end, over as many slots as the engine has. Requests
are admitted first come, first served, and wait behind one that does not fit; each live request that ends leaves
the shadow too, admitted or not. A request of n answers, or n beams, counts as n requests: none of these
policies shares. What a finished session keeps in place is not a request and is not counted.

```
contiguous-*   | tokens | reserved waste | internal waste |    hole    | tokens | ...
               |<---------------- reservation ----------->|
```
reserved waste   slots behind the tokens up to prompt + max_tokens: the request may still fill them
internal waste   slots it can never fill: behind that (contiguous), or in its last block (paged)
external waste   all free slots, while a request waits that fits in no hole; paged needs no hole, so 0

`contiguous-oracle` is meant to know each answer's length. A live engine does not: here the oracle reserves
for `max_tokens`, which is exact for requests that ignore EOS, as in simulations, and too much for others.
contiguous-pow2 rounds the same bound up. `paged` is the plain counterpart on demand: at any moment it holds the
oldest requests whose tokens fit, each in blocks of its own.

A step costs the shadows nothing; an arrival or an end costs O(requests held), whatever the pool's size;
`status`, called about twice a second, O(live requests).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.blocks.contiguous import RESERVATIONS, Reservation, reserved_tokens
from engine.protocol import ShadowRegion, ShadowStatus
from engine.requests.sequence import Sequence

MOST_REGIONS = 512
Name = tuple[str, int]
"""Request id, and which of its answers."""


@dataclass(frozen=True, slots=True)
class _Live:
    """An answer of a live request."""

    prompt: int
    longest: int
    """Tokens it may hold at most, prompt included."""
    max_tokens: int
    session: str


class ContiguousShadow:
    """One reservation scheme over `num_slots` slots, first fit."""

    def __init__(self, policy: Reservation, num_slots: int, max_context: int) -> None:
        self.policy = policy
        self.num_slots = num_slots
        self._max_context = min(max_context, num_slots)
        self._waiting: OrderedDict[Name, _Live] = OrderedDict()
        self._held: dict[Name, tuple[_Live, int, int]] = {}
        """The answer, its first slot, and the slots it has reserved."""
        self._holes = [(0, num_slots)]
        """(first slot, length), by first slot; none touches another."""
        self._free = num_slots

    def arrive(self, name: Name, live: _Live) -> None:
        """Hold a new answer, or queue it."""
        self._waiting[name] = live
        if len(self._waiting) == 1:
            self._admit()

    def finish(self, name: Name) -> None:
        """An answer is no longer live."""
        if name in self._held:
            _, first, length = self._held.pop(name)
            self._give_back(first, length)
            self._admit()
        elif name in self._waiting:
            head = next(iter(self._waiting)) == name
            del self._waiting[name]
            if head:
                self._admit()

    def status(self, tokens: Mapping[Name, int]) -> ShadowStatus:
        """`tokens` that each live answer holds; none for those not named."""
        used = reserved = internal = 0
        regions: list[ShadowRegion] = []
        for name, (live, first, length) in self._held.items():
            held = min(tokens.get(name, 0), length)
            used += held
            reserved += max(0, live.longest - held)
            internal += length - max(live.longest, held)
            if len(regions) < MOST_REGIONS:
                regions.append(ShadowRegion(first, length, held, min(length, max(live.longest, held)), live.session))
        return ShadowStatus(
            policy=self.policy,
            requests_held=len(self._held),
            slots_used=used,
            reserved_waste=reserved,
            internal_waste=internal,
            external_waste=self._free if self._waiting else 0,
            regions=regions,
        )

    def check(self) -> None:
        """Raise AssertionError when the shadow's books disagree. For tests."""
        runs = sorted([(first, length) for _, first, length in self._held.values()] + self._holes)
        ends = [first + length for first, length in runs]
        assert [first for first, _ in runs] + [self.num_slots] == [0, *ends], "runs fill the slots"
        assert self._free == sum(length for _, length in self._holes), "the free count is right"
        assert all(a + b < c for (a, b), (c, _) in zip(self._holes, self._holes[1:], strict=False)), "holes are joined"
        if self._waiting:
            needed = self._reservation(next(iter(self._waiting.values())))
            assert all(length < needed for _, length in self._holes), "who waits does not fit"

    def _reservation(self, live: _Live) -> int:
        return reserved_tokens(self.policy, live.prompt, live.max_tokens, self._max_context)

    def _admit(self) -> None:
        while self._waiting:
            name, live = next(iter(self._waiting.items()))
            needed = self._reservation(live)
            place = next((place for place, (_, length) in enumerate(self._holes) if length >= needed), None)
            if place is None:
                return
            first, length = self._holes[place]
            if length > needed:
                self._holes[place] = (first + needed, length - needed)
            else:
                del self._holes[place]
            self._free -= needed
            self._held[name] = (live, first, needed)
            del self._waiting[name]

    def _give_back(self, first: int, length: int) -> None:
        self._free += length
        place = bisect_left(self._holes, (first, 0))
        if place < len(self._holes) and self._holes[place][0] == first + length:
            length += self._holes.pop(place)[1]
        if place > 0 and sum(self._holes[place - 1]) == first:
            before = self._holes.pop(place - 1)
            first, length = before[0], before[1] + length
        insort(self._holes, (first, length))


class Shadows:
    """All policies beside one engine."""

    def __init__(self, num_blocks: int, block_size: int, max_context: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_context = min(max_context, num_blocks * block_size)
        self._contiguous = [ContiguousShadow(policy, num_blocks * block_size, max_context) for policy in RESERVATIONS]
        self._live: dict[Name, _Live] = {}
        """The requests stand in the order of their arrival."""
        self._answers: dict[str, int] = {}

    def arrive(self, request_id: str, prompt: int, max_tokens: int, answers: int = 1, session: str = "") -> None:
        """A request was accepted."""
        live = _Live(prompt, min(prompt + max_tokens, self._max_context), max_tokens, session)
        self._answers[request_id] = answers
        for index in range(answers):
            self._live[request_id, index] = live
            for shadow in self._contiguous:
                shadow.arrive((request_id, index), live)

    def finish(self, request_id: str) -> None:
        """A request ended, however it did. Unknown ids are ignored: requests that were refused never arrived."""
        for index in range(self._answers.pop(request_id, 0)):
            del self._live[request_id, index]
            for shadow in self._contiguous:
                shadow.finish((request_id, index))

    def status(self, running: Iterable[Sequence]) -> list[ShadowStatus]:
        """Each policy now, `paged` first. `running`: the engine's sequences, which tell what each answer holds."""
        tokens: dict[Name, int] = {}
        beams: dict[str, int] = {}
        for sequence in running:
            index = sequence.index
            if sequence.group:  # beams come and go and have no number of their own
                index = beams[sequence.request_id] = beams.get(sequence.request_id, -1) + 1
            tokens[sequence.request_id, index] = sequence.computed
        return [self._paged(tokens), *(shadow.status(tokens) for shadow in self._contiguous)]

    def _paged(self, tokens: Mapping[Name, int]) -> ShadowStatus:
        blocks = used = held = 0
        for name, live in self._live.items():
            # One that waits in the engine would be admitted here with its prompt, if that fits.
            has = tokens.get(name, 0)
            needed = -(-max(has, live.prompt) // self._block_size)
            if blocks + needed > self._num_blocks:
                break
            blocks += -(-has // self._block_size)
            used += has
            held += 1
        return ShadowStatus(
            policy="paged",
            requests_held=held,
            slots_used=used,
            reserved_waste=0,
            internal_waste=blocks * self._block_size - used,
            external_waste=0,
        )
