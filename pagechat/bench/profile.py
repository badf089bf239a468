"""`pagechat-bench engine --profile`: where the steps' time goes on the GPU, kernel by kernel."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from engine.core import EngineCore
from engine.protocol import StepReport

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

PROMPT_STEPS, DECODE_STEPS = 4, 16
"""Steps looked at: enough for a mean, few enough for the profiler not to fill memory."""
SETTLED = 8
"""Steps of a kind that go before."""
KERNELS = 14
"""Rows of the table; the rest is added up."""

Phase = Literal["prompts", "decode"]


class KernelShare(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, in the mean step."""

    name: str
    calls: float
    milliseconds: float
    """All its calls together; kernels that run side by side count each in full."""


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What the mean step of one phase consists of."""

    phase: Phase
    """prompts: steps with tokens of prompts. decode: one token of each sequence."""
    steps: int
    tokens: float
    """Computed, of prompts and answers."""
    milliseconds: float
    """From start to end, the profiler's own cost included."""
    busy: float
    """Share of it in which at least one kernel ran."""
    kernels: list[KernelShare]


def profile_steps(core: EngineCore, sequences: int, publish: Callable[[StepReport], None]) -> list[StepProfile]:
    """Step `core`, which has been given its requests, to their end; look at some steps of each phase on the way."""
    found: dict[Phase, StepProfile] = {}
    settled: Counter[Phase] = Counter()
    while core.has_work:
        _, report = core.step()
        if report is None:
            continue
        publish(report)
        phase: Phase = "prompts" if report.prompt_tokens else "decode"
        if phase == "decode" and report.generated_tokens < sequences:
            continue
        settled[phase] += 1
        if phase not in found and settled[phase] >= (1 if phase == "prompts" else SETTLED):
            found[phase] = _look(core, phase, PROMPT_STEPS if phase == "prompts" else DECODE_STEPS, publish)
    return list(found.values())


def _look(core: EngineCore, phase: Phase, most: int, publish: Callable[[StepReport], None]) -> StepProfile:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    steps = tokens = 0
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        started = time.perf_counter()
        while steps < most and core.has_work:
            _, report = core.step()
            steps += 1
            if report is not None:
                publish(report)
                tokens += report.prompt_tokens + report.generated_tokens
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return StepProfile(
        phase=phase,
        steps=steps,
        tokens=tokens / steps,
        milliseconds=seconds / steps * 1e3,
        busy=_busy(events) / 1e6 / seconds,
        kernels=_shares(events, steps),
    )


def _shares(events: Sequence[FunctionEvent], steps: int) -> list[KernelShare]:
    """Longest first."""
    calls: Counter[str] = Counter()
    total: defaultdict[str, float] = defaultdict(float)
    for event in events:
        calls[event.name] += 1
        total[event.name] += event.time_range.elapsed_us()
    return [
        KernelShare(name=name, calls=calls[name] / steps, milliseconds=total[name] / steps / 1e3)
        for name in sorted(total, key=lambda name: -total[name])
    ]


def _busy(events: Sequence[FunctionEvent]) -> float:
    """Microseconds in which at least one of the events lasts."""
    busy = end = 0.0
    for event in sorted(events, key=lambda event: event.time_range.start):
        busy += max(0.0, event.time_range.end - max(end, event.time_range.start))
        end = max(end, event.time_range.end)
    return busy


def table(profiles: Sequence[StepProfile]) -> str:
    lines = []
    for p in profiles:
        lines += [
            "",
            f"{p.phase}, mean of {p.steps} steps: {p.milliseconds:.2f} ms, {p.tokens:,.0f} tokens, "
            f"GPU busy {p.busy:.0%} of it",
        ]
        rest = p.kernels[KERNELS:]
        lines += [f"{k.milliseconds:>10.3f} ms {k.calls:>8.1f} x  {k.name[:70]}" for k in p.kernels[:KERNELS]]
        if rest:
            lines.append(
                f"{sum(k.milliseconds for k in rest):>10.3f} ms {sum(k.calls for k in rest):>8.1f} x  "
                f"{len(rest)} other kernels"
            )
    return "\n".join(lines)
