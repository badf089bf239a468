"""KV on its way between the pool and files, while the engine goes on.

```
save     step thread   fork | copy | copy | copy | let go
         file thread                             | check, hash, write, fsync |
         step thread                                                         | reply

restore  file thread   read, check, hash |
         step thread                     | take blocks | write | write | write | keep, reply
```
The step thread moves a bounded piece between two steps; the file thread does everything that touches the disk or looks
at each number. A save forks its session first, so whatever the session does meanwhile, its blocks are copied on write
and what is saved is what was there. Blocks that a restore writes belong to nobody else until all of them are written.
"""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.blocks.tables import Match
from engine.core import EngineCore
from engine.process.available import available_bytes, mib
from engine.protocol import SessionCommand, SessionReply
from engine.requests.sequence import Sequence
from engine.sessions import files
from engine.sessions.files import Cancelled, KvForm, Manifest, SavedSession, SessionMismatch

if TYPE_CHECKING:
    from torch import Tensor

    from engine.execution.runner import Runner

MOST_AT_ONCE = 4
"""Saves and restores that may be under way together; each takes as much host memory as its KV."""
_PIECE = 32 << 20
"""Bytes of KV that the step thread moves between two steps: some ten milliseconds."""
_SPARE = 256 << 20
"""Bytes of host memory that are left alone."""
_END_S = 3.0
"""Seconds that the engine's end waits for the file thread to take its unfinished file away."""
_ENDING = "the engine is ending, and this was given up"


@dataclass(slots=True, eq=False)
class _Save:
    command: SessionCommand
    sequence: Sequence
    """The fork of the session. It holds the blocks until they are copied."""
    kv: Tensor
    """On the CPU: [layers, blocks, 2, kv_heads, block_size, head_dim]."""
    moved: int = 0
    """Blocks copied so far."""


@dataclass(slots=True, eq=False)
class _Restore:
    command: SessionCommand
    before: Sequence | None
    """What the session had in place when this was asked for."""
    saved: SavedSession | None = None
    sequence: Sequence | None = None
    """It holds the blocks while they are written."""
    moved: int = 0
    """Blocks written so far."""


_Transfer = _Save | _Restore
_Outcome = SavedSession | int | Exception


class Transfers:
    """All saves and restores of one engine. Everything but the file thread's work is called between steps."""

    def __init__(
        self,
        core: EngineCore,
        runner: Runner,
        manifest: Callable[[bytes, list[int]], Manifest],
        wake: Callable[[], None],
    ) -> None:
        """`manifest` makes the one that this engine writes, of a salt and tokens; it is called in the file thread, and
        so is `wake`, when `advance` has something to do."""
        self._core, self._runner, self._manifest, self._wake = core, runner, manifest, wake
        self._moving: list[_Transfer] = []
        """Those whose KV the step thread moves, oldest first."""
        self._at_files: list[_Transfer] = []
        """Those whose file is being read or written, or waits for that."""
        self._replies: list[SessionReply] = []
        self._tasks: queue.SimpleQueue[tuple[_Transfer, Callable[[], _Outcome]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Transfer, _Outcome]] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._known_form: KvForm | None = None

    @property
    def has_work(self) -> bool:
        """True while a call to `advance` would do something."""
        return bool(self._moving or self._replies) or not self._done.empty()

    @property
    def holds_blocks(self) -> bool:
        return any(transfer.sequence is not None for transfer in self._moving)

    @property
    def sequences(self) -> list[Sequence]:
        """Those that hold blocks for a transfer."""
        return [transfer.sequence for transfer in self._moving if transfer.sequence is not None]

    # -- what clients ask ----------------------------------------------------------------------

    def save(self, command: SessionCommand) -> None:
        """Begin to save a session; the reply comes from `advance`. Raises SessionMismatch when it cannot begin."""
        self._refuse_too_many()
        core, name = self._core, command.session
        session = core.sessions.get(name)
        resident = session.resident if session else None
        if resident is None or resident.computed == 0:
            if self._runs(name):
                raise SessionMismatch(f"session {name!r} is running: save it when its turn has ended")
            raise SessionMismatch(f"session {name!r} has no blocks in place to save")
        if command.salt and command.salt != resident.salt:
            raise SessionMismatch(f"session {name!r} has another owner's salt")
        tokens = resident.tokens[: min(resident.computed, resident.known)]
        kv = _host_memory(self._form(), len(tokens))
        copy = core.live_sessions.new_sequence(name, tokens, resident.salt)
        core.blocks.fork(resident, copy, len(tokens))
        self._moving.append(_Save(command, copy, kv))

    def restore(self, command: SessionCommand) -> None:
        """Begin to restore a session; the reply comes from `advance`. Raises SessionMismatch when it cannot begin."""
        self._refuse_too_many()
        core, name = self._core, command.session
        if not core.blocks.shares:
            raise SessionMismatch("no session can be restored: with contiguous reservation the engine keeps none")
        if self._runs(name):
            raise SessionMismatch(f"session {name!r} is running: restore it when its turn has ended")
        session = core.sessions.get(name)
        form = self._form()

        def read() -> SavedSession:
            here = self._manifest(command.salt, [])
            return files.read(Path(command.target), here, form, core.vocab_size, self._check_room, self._cancelled)

        self._submit(_Restore(command, session.resident if session else None), read)

    # -- between steps -------------------------------------------------------------------------

    def advance(self) -> list[SessionReply]:
        """Move a piece, and take in what the file thread has done. The replies of all that has come to its end."""
        while not self._done.empty():
            self._take_in(*self._done.get())
        for transfer in self._moving:
            if self._can_move(transfer):
                self._move(transfer)
                break
        replies, self._replies = self._replies, []
        return replies

    def let_go(self) -> None:
        """Move all that is left of the transfers that hold blocks, so that these are needed no longer."""
        for transfer in [transfer for transfer in self._moving if transfer.sequence is not None]:
            while transfer in self._moving:
                self._move(transfer)

    def close(self) -> list[SessionReply]:
        """Give up what is under way, and take unfinished files away. What to tell those who wait."""
        self._cancelled.set()
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_END_S)
        while not self._done.empty():
            self._take_in(*self._done.get())
        for transfer in [*self._moving, *self._at_files]:
            self._reply(transfer, False, _ENDING)
        return self._replies

    # -- on the step thread --------------------------------------------------------------------

    def _can_move(self, transfer: _Transfer) -> bool:
        """Blocks that are taken now may be those from which KV is still to be swapped out."""
        return transfer.sequence is not None or not self._core.blocks.moves_pending

    def _move(self, transfer: _Transfer) -> None:
        if isinstance(transfer, _Save):
            self._copy(transfer)
        elif transfer.sequence is None:
            self._take_blocks(transfer)
        else:
            self._write(transfer, transfer.sequence)

    def _copy(self, save: _Save) -> None:
        """Copy the next blocks; behind the last one, the rest is the file thread's."""
        form, sequence = self._form(), save.sequence
        end = save.moved + self._piece()
        save.kv[:, save.moved : end] = self._runner.read_blocks(sequence.table[save.moved : end])
        save.moved = min(end, len(sequence.table))
        if save.moved < len(sequence.table):
            return
        _clear_unused(save.kv, len(sequence.tokens))
        self._moving.remove(save)
        self._core.blocks.release(sequence)

        def write() -> int:
            import torch  # not at the top: an engine says that it starts before it reads that

            raw = save.kv.view(-1).view(torch.uint8).numpy()
            manifest = self._manifest(sequence.salt, sequence.tokens)
            return files.write(Path(save.command.target), manifest, form, raw, self._cancelled)

        self._submit(save, write)

    def _take_blocks(self, restore: _Restore) -> None:
        saved, blocks = restore.saved, self._core.blocks
        assert saved is not None
        sequence = self._core.live_sessions.new_sequence(restore.command.session, saved.tokens, saved.salt)
        blocks.admit(sequence, Match())
        if blocks.grow(sequence, len(saved.tokens)):
            restore.sequence = sequence
            return
        blocks.release(sequence)
        needed, available = blocks.blocks_for(len(saved.tokens)), blocks.pool.available
        self._moving.remove(restore)
        self._reply(
            restore,
            False,
            f"there is no memory for {len(saved.tokens)} tokens: they need {needed} blocks, and {available} are "
            "available; the next turn computes them again",
        )

    def _write(self, restore: _Restore, sequence: Sequence) -> None:
        """Write the next blocks; behind the last one the sequence becomes its session's."""
        import torch

        saved, form = restore.saved, self._form()
        assert saved is not None
        kv = torch.from_numpy(saved.kv).view(getattr(torch, form.dtype)).view(form.shape(len(sequence.table)))
        if restore.moved == 0:
            _clear_unused(kv, len(saved.tokens))
        end = restore.moved + self._piece()
        self._runner.write_blocks(sequence.table[restore.moved : end], kv[:, restore.moved : end])
        restore.moved = min(end, len(sequence.table))
        if restore.moved < len(sequence.table):
            return
        self._moving.remove(restore)
        session = self._core.sessions.get(sequence.session)
        if self._runs(sequence.session) or (session.resident if session else None) is not restore.before:
            self._core.blocks.release(sequence)
            self._reply(restore, False, f"session {sequence.session!r} went on meanwhile, and was left as it is")
            return
        self._core.sessions.keep(sequence)
        self._core.blocks.publish(sequence, 0)
        self._reply(restore, True, f"{len(saved.tokens)} tokens restored without prefill", len(saved.tokens))

    def _take_in(self, transfer: _Transfer, outcome: _Outcome) -> None:
        self._at_files.remove(transfer)
        action = transfer.command.action
        if isinstance(outcome, Cancelled):
            self._reply(transfer, False, _ENDING)
        elif isinstance(outcome, SessionMismatch):
            self._reply(transfer, False, str(outcome))
        elif isinstance(outcome, OSError | MemoryError):
            why = getattr(outcome, "strerror", None) or str(outcome) or "there is no memory for it"
            self._reply(transfer, False, f"the session could not be {action}d: {why}")
        elif isinstance(outcome, Exception):  # a mistake of ours, but nobody else's answers are lost for it
            traceback.print_exception(outcome)
            self._reply(transfer, False, f"the session could not be {action}d: {type(outcome).__name__}: {outcome}")
        elif isinstance(outcome, SavedSession):
            assert isinstance(transfer, _Restore)
            transfer.saved = outcome
            self._moving.append(transfer)
        else:
            assert isinstance(transfer, _Save)
            tokens = len(transfer.sequence.tokens)
            self._reply(transfer, True, f"{tokens} tokens in {outcome} bytes", tokens)

    # -- inside --------------------------------------------------------------------------------

    def _refuse_too_many(self) -> None:
        if len(self._moving) + len(self._at_files) >= MOST_AT_ONCE:
            raise SessionMismatch(
                f"{MOST_AT_ONCE} sessions are being saved or restored already: try again when one is done"
            )

    def _runs(self, name: str) -> bool:
        return any(sequence.session == name for sequence in self._core.scheduler.running)

    def _reply(self, transfer: _Transfer, ok: bool, message: str, tokens: int = 0) -> None:
        self._replies.append(SessionReply(ticket=transfer.command.ticket, ok=ok, message=message, tokens=tokens))

    def _form(self) -> KvForm:
        """What this engine's blocks look like."""
        if self._known_form is None:
            layers, _, _, kv_heads, block_size, head_dim = self._runner.read_blocks([1]).shape
            self._known_form = KvForm(layers, kv_heads, block_size, head_dim, self._runner.kv_dtype)
        return self._known_form

    def _piece(self) -> int:
        """Blocks that are moved at once."""
        return max(1, _PIECE // self._form().nbytes(1))

    def _check_room(self, tokens: int, nbytes: int) -> None:
        core = self._core
        blocks, most = core.blocks.blocks_for(tokens), core.blocks.pool.num_blocks
        if tokens >= core.max_context or blocks > most:
            raise SessionMismatch(
                f"the saved session holds {tokens} tokens in {blocks} blocks, and this engine has room for "
                f"{core.max_context} tokens in {most} blocks"
            )
        _check_host_memory(nbytes)

    # -- on the file thread --------------------------------------------------------------------

    def _submit(self, transfer: _Transfer, task: Callable[[], _Outcome]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work_on_files, name="session-files", daemon=True)
            self._thread.start()
        self._at_files.append(transfer)
        self._tasks.put((transfer, task))

    def _work_on_files(self) -> None:
        while (item := self._tasks.get()) is not None:
            transfer, task = item
            outcome: _Outcome
            try:
                if self._cancelled.is_set():
                    raise Cancelled
                outcome = task()
            except Exception as error:  # told in the reply
                outcome = error
            self._done.put((transfer, outcome))
            del item, transfer, task, outcome  # gigabytes, until the next one comes
            self._wake()


def _host_memory(form: KvForm, tokens: int) -> Tensor:
    """Memory for a session's KV. Raises SessionMismatch when there is none."""
    import torch

    blocks = form.blocks_for(tokens)
    _check_host_memory(form.nbytes(blocks))
    try:
        return torch.empty(form.shape(blocks), dtype=getattr(torch, form.dtype))
    except RuntimeError as error:  # of torch's allocator
        raise SessionMismatch(f"there is no memory for {mib(form.nbytes(blocks))} of KV ({error})") from None


def _check_host_memory(nbytes: int) -> None:
    free = available_bytes("cpu")
    if nbytes + _SPARE > free:
        raise SessionMismatch(
            f"the session's KV takes {mib(nbytes)}, and {mib(free)} of host memory are free ({mib(_SPARE)} are left "
            "alone)"
        )


def _clear_unused(kv: Tensor, tokens: int) -> None:
    """Zero the slots of the last block that hold no token: what is there is an earlier owner's."""
    block_size = kv.shape[4]
    kv[:, -1, :, :, (tokens - 1) % block_size + 1 :] = 0
