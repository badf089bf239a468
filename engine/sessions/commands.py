"""What clients may do with sessions between turns: list, fork, pin, close, save to disk and restore.

Stands between the step loop and the parts it needs for that: the scheduler knows which sessions run,
`Sessions` which are resident, the runner holds the KV itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.core import EngineCore
from engine.protocol import SessionCommand, SessionReply
from engine.sessions import files as session_files
from engine.sessions.files import Manifest, SessionMismatch
from engine.sessions.residents import UnknownSession

if TYPE_CHECKING:
    from engine.execution.runner import Runner


class SessionDesk:
    """Answers `SessionCommand`s of one engine, between two of its steps."""

    def __init__(self, core: EngineCore, runner: Runner, model_directory: Path) -> None:
        self._core = core
        self._runner = runner
        self._directory = model_directory
        self._model_key: str | None = None

    def answer(self, command: SessionCommand) -> SessionReply:
        """Do what the command says. Problems are in the reply; nothing is raised for them."""
        try:
            tokens, message = getattr(self, f"_{command.action}")(command)
        except UnknownSession:
            return SessionReply(ticket=command.ticket, ok=False, message=f"no session {command.session!r} here")
        except (SessionMismatch, OSError) as error:
            return SessionReply(ticket=command.ticket, ok=False, message=str(error))
        return SessionReply(ticket=command.ticket, ok=True, message=message, tokens=tokens)

    def _fork(self, command: SessionCommand) -> tuple[int, str]:
        tokens = self._core.fork_session(command.session, command.target, command.tokens)
        if not tokens:
            raise UnknownSession(command.session)
        return tokens, f"{command.target!r} shares {tokens} tokens of {command.session!r}"

    def _pin(self, command: SessionCommand) -> tuple[int, str]:
        self._core.sessions.pin(command.session, True)
        return 0, f"{command.session!r} is never reclaimed"

    def _unpin(self, command: SessionCommand) -> tuple[int, str]:
        self._core.sessions.pin(command.session, False)
        return 0, f"{command.session!r} may be reclaimed"

    def _close(self, command: SessionCommand) -> tuple[int, str]:
        self._core.sessions.close(command.session)
        return 0, f"{command.session!r} is closed; its full blocks stay cached until they are evicted"

    def _save(self, command: SessionCommand) -> tuple[int, str]:
        session = self._core.sessions.get(command.session)
        if session is None or session.resident is None:
            raise SessionMismatch(f"session {command.session!r} has no blocks in place to save")
        resident = session.resident
        tokens = resident.tokens[: resident.computed]
        kv = self._runner.read_blocks(resident.table)
        size = session_files.save(Path(command.target), self._manifest(command.salt, tokens), kv)
        return len(tokens), f"{len(tokens)} tokens in {size} bytes"

    def _restore(self, command: SessionCommand) -> tuple[int, str]:
        tokens, kv = session_files.load(Path(command.target), self._manifest(command.salt, []))
        blocks = self._core.place_session(command.session, tokens, command.salt)
        if blocks is None:
            raise SessionMismatch(f"there is no memory for {len(tokens)} tokens; the next turn computes them again")
        self._runner.write_blocks(blocks, kv)
        session = self._core.sessions.get(command.session)
        assert session is not None
        assert session.resident is not None
        self._core.blocks.publish(session.resident, 0)
        return len(tokens), f"{len(tokens)} tokens restored without prefill"

    def _manifest(self, salt: bytes, tokens: list[int]) -> Manifest:
        if self._model_key is None:
            self._model_key = session_files.model_key(self._directory)
        return Manifest(
            format=session_files.FORMAT,
            model_key=self._model_key,
            layout=self._runner.kv_layout,
            dtype=self._runner.kv_dtype,
            block_size=self._core.blocks.block_size,
            salt_key=session_files.salt_key(salt),
            tokens=tokens,
        )
