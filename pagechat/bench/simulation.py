"""A trace replayed under several policies, or with pools of several sizes; each replay in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.blocks import Policy
from pagechat.bench.machine import Machine, this_machine
from pagechat.bench.outcome import Outcome, Setup
from pagechat.bench.parallel import run_parallel
from pagechat.bench.replay import Replay
from pagechat.bench.traces import Trace

_MOST_BLOCKS = 4_000_000


class SimulationError(ValueError):
    """What was asked cannot be simulated; the message is one line for people."""


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    longest: int
    lengths: str
    reusable_share: float | None
    """Share of the prompts' hash ids (512-token blocks) that an earlier prompt had; None for a trace without."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `simulate --json`."""

    trace: TraceInfo
    setup: Setup
    policies: dict[str, Outcome]
    machine: Machine


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    num_blocks: int
    slots: int
    hit_share: float
    utilisation: float
    preemptions: int
    refused: int


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `simulate --sweep --json`: prefix hits by size of the pool, policy `paged`."""

    trace: TraceInfo
    setup: Setup
    points: list[SweepPoint]
    """Largest pool first; the first one is never full."""
    machine: Machine


def simulate(trace: Trace, setup: Setup, policies: list[Policy], narrate: Callable[[str], None]) -> Simulation:
    """The same trace under each policy, in processes of their own."""
    setups = [msgspec.structs.replace(setup, policy=policy) for policy in policies]
    outcomes = replay_all(trace, setups, narrate, lambda setup: setup.policy)
    return Simulation(
        trace=describe(trace),
        setup=setup,
        policies=dict(zip(policies, outcomes, strict=True)),
        machine=this_machine(),
    )


def sweep(trace: Trace, setup: Setup, narrate: Callable[[str], None]) -> Sweep:
    """The policy `paged` with a pool that is never full, and its halves down to what the longest request needs."""
    least = -(-trace.longest // setup.block_size)
    sizes, size = [], unbounded(trace, setup.block_size)
    while size >= least:
        sizes.append(size)
        size //= 2
    setups = [msgspec.structs.replace(setup, policy="paged", num_blocks=size) for size in sizes]
    outcomes = replay_all(trace, setups, narrate, lambda setup: f"{setup.num_blocks:,} blocks")
    points = [
        SweepPoint(
            num_blocks=outcome.num_blocks,
            slots=outcome.num_blocks * outcome.block_size,
            hit_share=outcome.hit_share,
            utilisation=outcome.utilisation,
            preemptions=outcome.preemptions,
            refused=outcome.refused,
        )
        for outcome in outcomes
    ]
    return Sweep(trace=describe(trace), setup=setups[0], points=points, machine=this_machine())


def unbounded(trace: Trace, block_size: int) -> int:
    """Blocks for all requests of the trace, nothing shared and nothing given back. Raises SimulationError."""
    blocks = sum(-(-(request.prompt + request.output) // block_size) for request in trace.requests)
    if blocks > _MOST_BLOCKS:
        raise SimulationError(
            f"an unbounded pool for this trace has {blocks:,} blocks of {block_size}, more than the "
            f"{_MOST_BLOCKS:,} that are simulated: give a larger --block-size"
        )
    return blocks


def replay_all(
    trace: Trace, setups: list[Setup], narrate: Callable[[str], None], name: Callable[[Setup], str]
) -> list[Outcome]:
    """The outcome of each setup, in order; `narrate` hears of each as it ends, by its name."""

    def job(setup: Setup) -> Callable[[], bytes]:
        return lambda: msgspec.json.encode(Replay(trace, setup).run())

    outcomes: dict[int, Outcome] = {}
    for index, answer in run_parallel([job(setup) for setup in setups]):
        outcomes[index] = msgspec.json.decode(answer, type=Outcome)
        narrate(f"{name(setups[index])}: {outcomes[index].cpu_s:.1f} s of processor time")
    return [outcomes[index] for index in range(len(setups))]


def power_of_two(tokens: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (tokens - 1).bit_length()


def describe(trace: Trace) -> TraceInfo:
    """What is told of a trace beside figures made from it."""
    return TraceInfo(
        name=trace.name,
        requests=len(trace.requests),
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        longest=trace.longest,
        lengths=trace.lengths,
        reusable_share=trace.reusable_share(),
    )
