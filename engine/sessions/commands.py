"""What clients may do with sessions between turns: list, fork, pin, close, save to disk and restore.

Stands between the step loop and the parts it needs for that: the scheduler knows which sessions run,
`Sessions` which are resident, the runner holds the KV itself, `Transfers` moves it to files and back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.core import EngineCore
from engine.protocol import SessionCommand, SessionReply
from engine.requests.sequence import Sequence
from engine.sessions import files
from engine.sessions.files import Manifest, SessionMismatch
from engine.sessions.residents import UnknownSession
from engine.sessions.transfers import Transfers

if TYPE_CHECKING:
    from engine.execution.runner import Runner


class SessionDesk:
    """Answers `SessionCommand`s of one engine, between two of its steps."""

    def __init__(
        self,
        core: EngineCore,
        runner: Runner,
        model_directory: Path,
        weights: str = "auto",
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`weights`: how the weights were asked to be held, which with the model's folder settles what they are.
        `wake` is called, in another thread, when `advance` has something to do."""
        self._core = core
        self._runner = runner
        self._directory = model_directory
        self._weights = weights
        self._model_key: str | None = None
        self._transfers = Transfers(core, runner, self._manifest, wake)
        core.sessions.holder = self._transfers

    @property
    def has_work(self) -> bool:
        """True while a call to `advance` would do something."""
        return self._transfers.has_work

    @property
    def sequences(self) -> list[Sequence]:
        """Those that hold blocks while their KV is copied or written."""
        return self._transfers.sequences

    def answer(self, command: SessionCommand) -> SessionReply | None:
        """Do what the command says. None: it has only begun, and `advance` will bring the reply.

        Problems are in the reply; nothing is raised for them.
        """
        try:
            done = getattr(self, f"_{command.action}")(command)
        except UnknownSession:
            return SessionReply(ticket=command.ticket, ok=False, message=f"no session {command.session!r} here")
        except (SessionMismatch, OSError) as error:
            return SessionReply(ticket=command.ticket, ok=False, message=str(error))
        if done is None:
            return None
        tokens, message = done
        return SessionReply(ticket=command.ticket, ok=True, message=message, tokens=tokens)

    def advance(self) -> list[SessionReply]:
        """Go on with what was begun, for some milliseconds. The replies to what has come to its end."""
        return self._transfers.advance()

    def close(self) -> list[SessionReply]:
        """Give up what was begun, because the engine ends. The replies to that."""
        return self._transfers.close()

    def _fork(self, command: SessionCommand) -> tuple[int, str] | None:
        tokens = self._core.live_sessions.fork(command.session, command.target, command.tokens)
        if not tokens:
            raise UnknownSession(command.session)
        return tokens, f"{command.target!r} shares {tokens} tokens of {command.session!r}"

    def _pin(self, command: SessionCommand) -> tuple[int, str] | None:
        self._core.sessions.pin(command.session, True)
        return 0, f"{command.session!r} is never reclaimed"

    def _unpin(self, command: SessionCommand) -> tuple[int, str] | None:
        self._core.sessions.pin(command.session, False)
        return 0, f"{command.session!r} may be reclaimed"

    def _close(self, command: SessionCommand) -> tuple[int, str] | None:
        self._core.sessions.close(command.session)
        return 0, f"{command.session!r} is closed; its full blocks stay cached until they are evicted"

    def _save(self, command: SessionCommand) -> tuple[int, str] | None:
        self._transfers.save(command)
        return None

    def _restore(self, command: SessionCommand) -> tuple[int, str] | None:
        self._transfers.restore(command)
        return None

    def _manifest(self, salt: bytes, tokens: list[int]) -> Manifest:
        if self._model_key is None:
            self._model_key = files.model_key(self._directory)
        info = self._runner.model.info
        return Manifest(
            format=files.FORMAT,
            model_key=self._model_key,
            weights_dtype=f"{info.weights_dtype} ({self._weights})",
            compute_dtype=info.dtype,
            layout=self._runner.kv_layout,
            dtype=self._runner.kv_dtype,
            block_size=self._core.blocks.block_size,
            salt_key=files.salt_key(salt),
            salt=salt.hex(),
            tokens=tokens,
        )
