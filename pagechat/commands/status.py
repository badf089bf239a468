"""`pagechat-daemon status`: what the daemon and its engine do now, for people or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine.protocol import PoolStatus, ShadowStatus
from pagechat.client import AsyncEngineClient, NoDaemon
from pagechat.commands import exits
from pagechat.commands.tables import aligned
from pagechat.protocol import RequestStatus, Status
from pagechat.text_safety import one_line, sanitize

MOST_REQUESTS = 20
"""Of those that wait, so many are shown to people."""


async def status(run_dir: Path | None, *, as_json: bool) -> int:
    """Prints it. Exit code NO_DAEMON when none runs; the JSON form then is {"state": "stopped"}."""
    try:
        async with await AsyncEngineClient.connect(run_dir, name="status") as client:
            found = await client.status()
    except NoDaemon as error:
        if as_json:
            print(json.dumps({"state": "stopped"}))
        print(f"pagechat-daemon: {error}", file=sys.stderr)
        return exits.NO_DAEMON
    if as_json:
        print(json.dumps(as_data(found), indent=None if not sys.stdout.isatty() else 2))
    else:
        print(sanitize(as_text(found)))
    return exits.OK


def as_data(found: Status) -> dict[str, Any]:
    """The JSON form: the message less what belongs to the conversation, the model by its name."""
    data: dict[str, Any] = msgspec.to_builtins(found)
    for key in ("type", "ticket"):
        del data[key]
    data["model"] = found.model.name if found.model else None
    data["model_info"] = msgspec.to_builtins(found.model)
    return data


def as_text(found: Status) -> str:
    """Aligned lines: a name, a value."""
    rows = [("state", _state(found)), ("process", f"{found.pid}, pagechat {found.daemon_version}")]
    if found.engine_pid is not None:
        rows.append(("engine", f"process {found.engine_pid}"))
    rows.append(("up", duration(found.uptime_s)))
    if found.http or found.http_problem:
        rows.append(("http", f"{found.http}/v1" if found.http else f"none: {found.http_problem}"))
    if found.error:
        rows.append(("error", found.error))
    if found.load and found.state in ("loading", "restarting"):
        share = f", {found.load.done / found.load.total:.0%}" if found.load.total else ""
        rows.append(("doing", f"{found.load.stage} {found.load.detail}{share}"))
    if found.model:
        model = found.model
        rows.append(("model", f"{model.name} ({model.architecture}, {model.parameters / 1e6:,.0f} M parameters)"))
        rows.append(("runs on", f"{model.device}, {model.numbers}, context {model.max_context:,} tokens"))
    if found.pool:
        rows += _pool_rows(found.pool)
    if found.scheduler:
        scheduler = found.scheduler
        preempted = f", {scheduler.preemptions:,} preemptions so far"
        rows.append(("requests", f"{scheduler.running:,} running, {scheduler.waiting:,} waiting{preempted}"))
    speed = found.throughput
    rows.append(
        (
            "last 10 s",
            f"{speed.generated_tokens_per_s:,.1f} tok/s generated, {speed.prompt_tokens_per_s:,.1f} tok/s read",
        )
    )
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    parts = [text]
    if found.requests:
        parts.append(_request_table(found.requests))
    if found.shadows:
        parts.append(_shadow_table(found.shadows))
    return "\n\n".join(parts)


def _state(found: Status) -> str:
    if found.next_try_s is not None:
        return f"{found.state} for {duration(found.state_s)}, the next engine is started in {found.next_try_s:.0f} s"
    return found.state if found.state == "ready" else f"{found.state} for {duration(found.state_s)}"


def _request_table(requests: list[RequestStatus]) -> str:
    """In the order they are served."""
    header = ("request of", "key", "state", "priority", "prompt", "generated", "for")
    rows = [
        (
            one_line(one.session),
            one.tenant,
            one.state,
            str(one.priority),
            f"{one.prompt_tokens:,}",
            f"{one.generated_tokens:,}",
            duration(one.age_s),
        )
        for one in requests[:MOST_REQUESTS]
    ]
    text = aligned(header, rows, left=3)
    more = len(requests) - len(rows)
    return f"{text}\n... and {more:,} more, which --json tells" if more else text


def _shadow_table(shadows: list[ShadowStatus]) -> str:
    """What each policy would hold of the live requests on as many slots."""
    header = ("would hold", "requests", "real tokens", "reserved", "internal waste", "external waste")
    figures = [(s.requests_held, s.slots_used, s.reserved_waste, s.internal_waste, s.external_waste) for s in shadows]
    rows = [[s.policy, *(f"{figure:,}" for figure in row)] for s, row in zip(shadows, figures, strict=True)]
    return aligned(header, rows)


def _pool_rows(pool: PoolStatus) -> list[tuple[str, str]]:
    slots = (pool.active + pool.shared) * pool.block_size
    waste = f" ({pool.internal_waste / slots:.1%})" if slots else ""
    return [
        ("pool", f"{pool.num_blocks:,} blocks of {pool.block_size} tokens"),
        (
            "blocks",
            f"{pool.free:,} free, {pool.cached:,} cached, {pool.active:,} active, {pool.shared:,} shared "
            f"(sharing saves {pool.saved:,})",
        ),
        ("slots", f"{pool.slots_used:,} used, {pool.internal_waste:,} wasted{waste}"),
        ("largest run", f"{pool.largest_free_run:,} blocks without owner"),
    ]


def duration(seconds: float) -> str:
    """ "12 s", "3 min 05 s", "2 h 07 min"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
