"""`pagechat-daemon sessions` and `usage`: the engine's sessions between their turns, and who has used what.

The name of a session is the one given to `ask --session`, or the app's id of a chat.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from engine.protocol import OwnerUsage, SessionAction, SessionInfo, UsageReport
from pagechat.client import AsyncEngineClient
from pagechat.commands import exits
from pagechat.commands.exits import CommandError
from pagechat.commands.tables import aligned
from pagechat.store import Store
from pagechat.text_safety import one_line

ACTIONS: tuple[SessionAction, ...] = get_args(SessionAction)


async def sessions(run_dir: Path | None, words: Sequence[str], *, as_json: bool) -> int:
    """Exit code: FAILED when the engine could not do it. Raises NoDaemon, RequestFailed, CommandError, StoreError."""
    action, *names = words or ("list",)
    if action == "list" and not names:
        return await _list(run_dir, as_json)
    known = next((known for known in ACTIONS if known == action), None)
    wanted = 2 if action == "fork" else 1
    if known is None or len(names) != wanted:
        usage = "list, fork NAME NEW, or one of pin, unpin, close, save, restore and a NAME"
        raise CommandError(f"sessions takes {usage}", exits.USAGE)
    return await _manage(run_dir, known, names, as_json)


async def usage(run_dir: Path | None, *, as_json: bool) -> int:
    """Prints who has used what. Raises NoDaemon, RequestFailed."""
    async with await AsyncEngineClient.connect(run_dir, name="usage") as client:
        report = await client.usage()
    if as_json:
        data = msgspec.to_builtins(report)
        for key in ("type", "ticket"):
            del data[key]
        print(json.dumps(data, ensure_ascii=False))
    else:
        print(_usage_text(report))
    return exits.OK


async def _list(run_dir: Path | None, as_json: bool) -> int:
    async with await AsyncEngineClient.connect(run_dir, name="sessions") as client:
        found = await client.sessions()
    if as_json:
        print(json.dumps({"sessions": msgspec.to_builtins(found)}, ensure_ascii=False))
    elif found:
        print(_sessions_text(found))
    else:
        print("pagechat-daemon: the engine knows no sessions", file=sys.stderr)
    return exits.OK


async def _manage(run_dir: Path | None, action: SessionAction, names: list[str], as_json: bool) -> int:
    async with await AsyncEngineClient.connect(run_dir, name="sessions") as client:
        if action == "fork":
            _check_fork(*names)
        reply = await client.manage_session(action, names[0], names[1] if action == "fork" else "")
    if reply.ok and action == "fork":
        _fork_chat(*names)
    if as_json:
        print(json.dumps({"ok": reply.ok, "message": reply.message, "tokens": reply.tokens}, ensure_ascii=False))
    elif reply.ok:
        print(one_line(reply.message))
    if not reply.ok:
        print(f"pagechat-daemon: {one_line(reply.message)}", file=sys.stderr)
    return exits.OK if reply.ok else exits.FAILED


def _check_fork(source: str, target: str) -> None:
    if Store().find_chat(target) is not None:
        raise CommandError(f"there is a chat {target!r} already", exits.FAILED)


def _fork_chat(source: str, target: str) -> None:
    """The chat's messages go with its blocks, so that `ask --session` goes on from there under the new name."""
    store = Store()
    chat = store.find_chat(source)
    if chat is None:
        return
    store.create_chat(chat.title, target, afresh=True)
    for message in store.messages(chat.id):
        status = "stopped" if message.status == "streaming" else message.status
        stored = store.add_message(target, message.role, message.content)
        store.update_message(stored, message.content, status, message.facts)


def _sessions_text(found: list[SessionInfo]) -> str:
    header = ("session", "state", "tokens", "blocks", "pinned", "priority")
    rows = [
        (
            one_line(one.session),
            one.state,
            f"{one.tokens:,}",
            f"{one.blocks:,}",
            "yes" if one.pinned else "no",
            f"{one.priority}" if one.state in ("running", "waiting") else "",
        )
        for one in found
    ]
    return aligned(header, rows, left=2)


def _usage_text(report: UsageReport) -> str:
    total = report.num_blocks * report.seconds
    owned = sum(owner.block_seconds for owner in report.sessions)
    return "\n\n".join(
        (
            _owners("session", report.sessions),
            _owners("tenant", report.tenants),
            f"{owned:,.1f} block-seconds of sessions + {report.unowned_block_seconds:,.1f} of nobody "
            f"= {report.num_blocks:,} blocks x {report.seconds:,.1f} s = {total:,.1f}",
        )
    )


def _owners(kind: str, owners: list[OwnerUsage]) -> str:
    header = (kind, "prompt computed", "prompt cached", "generated", "block-seconds")
    rows = [
        (
            one_line(owner.name) or "(none)",
            f"{owner.prompt_tokens_computed:,}",
            f"{owner.prompt_tokens_cached:,}",
            f"{owner.generated_tokens:,}",
            f"{owner.block_seconds:,.1f}",
        )
        for owner in owners
    ]
    return aligned(header, rows)
