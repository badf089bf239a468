"""Simulations for people: tables and charts. Computes nothing but their layout."""

from __future__ import annotations

from pagechat.bench.outcome import Outcome, Setup
from pagechat.bench.plot import Line, as_svg, in_terminal
from pagechat.bench.simulation import Simulation, Sweep, TraceInfo


def table(result: Simulation) -> str:
    """The outcomes side by side, and the share of slots that hold tokens over time."""
    outcomes = result.policies.values()
    rows = [
        f"{'':<19}{'of what is':>12}  {'of the whole pool, %':<45}{'requests held':>16}{'pre-':>9}",
        f"{'':<19}{'allocated, %':>12}  {'holding':>8}{'reserved':>10}{'internal':>10}{'external':>10}{'free':>7}"
        f"{'mean':>9}{'peak':>7}{'empted':>9}",
        *(_row(outcome) for outcome in outcomes),
    ]
    notes = []
    for outcome in outcomes:
        if outcome.refused:
            notes.append(f"{outcome.policy} refused {outcome.refused:,} requests, longer than the pool or the context.")
    if any(outcome.cached_tokens for outcome in outcomes):
        hits = ", ".join(f"{outcome.policy} {outcome.hit_share:.1%}" for outcome in outcomes)
        notes.append(f"Prompt blocks found in the prefix cache: {hits}.")
    return "\n".join(
        [
            *_heading(result.trace, result.setup),
            "",
            *rows,
            *notes,
            "",
            "Slots of the pool that hold a token, over simulated time (full height: all of them)",
            in_terminal(_lines(result)),
            f"0 to {max(o.seconds_simulated for o in outcomes):,.0f} s of simulated time",
            "",
            result.machine.line(),
        ]
    )


def _row(outcome: Outcome) -> str:
    waste, held = outcome.waste, outcome.requests_held
    free = max(0.0, 1 - outcome.pool_utilisation - waste.reserved - waste.internal - waste.external)
    return (
        f"{outcome.policy:<19}{outcome.utilisation * 100:>12.1f}  {outcome.pool_utilisation * 100:>8.1f}"
        f"{waste.reserved * 100:>10.1f}{waste.internal * 100:>10.1f}{waste.external * 100:>10.1f}{free * 100:>7.1f}"
        f"{held.mean:>9,.1f}{held.peak:>7,}{outcome.preemptions:>9,}"
    )


def sweep_table(result: Sweep) -> str:
    """Prefix hits by pool size."""
    rows = [f"{'blocks':>10}{'slots':>14}  {'prompt blocks found in the cache':<32}{'preempted':>12}{'refused':>9}"]
    for point in result.points:
        bar = "█" * round(point.hit_share * 24)
        rows.append(
            f"{point.num_blocks:>10,}{point.slots:>14,}  {point.hit_share:>6.1%} {bar:<25}"
            f"{point.preemptions:>12,}{point.refused:>9,}"
        )
    return "\n".join([*_heading(result.trace, result.setup), "", *rows, "", result.machine.line()])


def _heading(trace: TraceInfo, setup: Setup) -> list[str]:
    cost, slots = setup.cost, setup.num_blocks * setup.block_size
    arrivals = "all queued at the start" if setup.rate is None else f"arriving {setup.rate:g} times as fast"
    lines = [
        f"{trace.name}: {trace.requests:,} requests, {trace.prompt_tokens:,} prompt and {trace.output_tokens:,} output"
        f" tokens ({trace.lengths}), {arrivals}",
        f"  pool       {setup.num_blocks:,} blocks of {setup.block_size} = {slots:,} slots; contiguous-max reserves"
        f" {setup.max_context:,}",
        f"  scheduler  at most {setup.max_running:,} sequences and {setup.step_tokens:,} tokens a step;"
        f" prefix cache {'on' if setup.prefix_cache else 'off'}",
        f"  a step is taken to last {cost.step_ns / 1e6:g} ms, {cost.prompt_token_ns / 1e3:g} us more for each prompt"
        f" token and {cost.sequence_ns / 1e3:g} us for each sequence",
    ]
    if trace.reusable_share is not None:
        lines.append(
            f"  {trace.reusable_share:.1%} of the prompts' 512-token blocks stood in an earlier prompt already"
        )
    return lines


def simulation_svg(result: Simulation) -> str:
    """Slots that hold tokens, over time, a line a policy."""
    return as_svg(
        _lines(result),
        title=f"{result.trace.name}: {result.setup.num_blocks:,} blocks of {result.setup.block_size}",
        x_label="simulated time, s",
        y_label="slots of the pool that hold a token",
    )


def sweep_svg(result: Sweep) -> str:
    """Prefix hits over pool size."""
    points = [(float(point.slots), point.hit_share) for point in reversed(result.points)]
    return as_svg(
        [Line("paged", points)],
        title=f"{result.trace.name}: blocks of {result.setup.block_size}",
        x_label="slots of the pool (logarithmic)",
        y_label="prompt blocks found in the prefix cache",
        logarithmic=True,
    )


def _lines(result: Simulation) -> list[Line]:
    return [Line(o.policy, [(sample.seconds, sample.used) for sample in o.samples]) for o in result.policies.values()]
