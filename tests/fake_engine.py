"""An engine that plays a part, so that the front can be tested without a model: `python -m tests.fake_engine`.

Everything but the model is real: sockets, step loop, scheduler, block pool. In place of the model an executor
answers a prompt with the prompt's own text tokens and then the stop token (where it may not stop, it begins again);
the second of several answers leaves out the first of those tokens, the third the first two. A beam search finds that
echo best, and after it the echoes that are cut short. A saved session is a file of its tokens. It behaves otherwise
when told so, by the environment (for the whole engine) or by the beginning of a request's session label (for that
request):

FAKE_ENGINE_MODEL    folder with tokenizer.json, told to the front as the model's path
FAKE_ENGINE_NOTES    file that gets one line for each command received, and "start" for each start
FAKE_ENGINE_STEP_S   seconds a step takes (0)
FAKE_ENGINE_LOAD     fail: EngineFailed while loading     exit: ends while loading, with a word in the log only
                     slow: reports progress for a second   version: speaks another version of the protocol
FAKE_ENGINE_VOCAB    (512)

long...   never stops by itself
die...    kills the engine with SIGKILL after DIE_AFTER tokens of this request
hang...   the step loop sticks after DIE_AFTER tokens of this request
raise...  the step raises after DIE_AFTER tokens of this request
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import msgspec

from engine import protocol
from engine.core import EngineCore
from engine.execution.step_input import StepInput, StepResult
from engine.process.config import EngineConfig
from engine.process.io import EngineIO
from engine.protocol import (
    AbortRequest,
    AddRequest,
    Command,
    EngineFailed,
    EngineReady,
    GetBlock,
    GetUsage,
    ListSessions,
    LoadProgress,
    ModelInfo,
    Ping,
    Pong,
    PoolInfo,
    SessionCommand,
    SessionList,
    SetPriority,
    Shutdown,
    StepOutputs,
    TakeSnapshot,
)
from engine.requests.sequence import Sequence
from engine.sessions.commands import SessionDesk
from engine.sessions.files import SessionMismatch

DIE_AFTER = 3
SPECIAL_IDS = 3
"""Token ids below are special (tests/models.py); the echo leaves them out."""

NUM_BLOCKS = 64
MAX_CONTEXT = 512


class EchoExecutor:
    """Looks up in the core, which no runner may, whose token it is to choose."""

    depth = 1
    core: EngineCore

    def launch(self, step: StepInput) -> None:
        self._step = step

    def collect(self) -> StepResult:
        time.sleep(float(os.environ.get("FAKE_ENGINE_STEP_S", "0")))
        step = self._step
        sequences = {s.id: s for request in self.core._requests.values() for s in request.sequences}

        def at(row: int) -> Sequence:
            return sequences[self.core.builder.sequence_in(row)]  # type: ignore[index]

        beams = []
        for place, _ in step.beams:
            sequence = at(int(step.rows[place]))
            best, other = self._next(sequence), sequence.sampling.stop_token_ids[0]
            others = [other, *(token for token in range(SPECIAL_IDS, 64) if token != best)]
            others = others[1:] if best == other else others
            beams.append(([best, *others], [-0.1, -1.0, *[-9.0] * (len(others) - 1)]))
        return StepResult(tokens=[self._next(at(row)) for row in step.sample_rows.tolist()], beams=beams)

    def _next(self, sequence: Sequence) -> int:
        if sequence.generated == DIE_AFTER:
            if sequence.session.startswith("die"):
                time.sleep(0.1)  # what was sampled before is on its way
                os.kill(os.getpid(), signal.SIGKILL)
            if sequence.session.startswith("hang"):
                time.sleep(3600)
            if sequence.session.startswith("raise"):
                raise RuntimeError("the step went wrong")
        echo = [token for token in sequence.tokens[: sequence.prompt_len] if token >= SPECIAL_IDS][sequence.index :]
        stops = sequence.sampling.stop_token_ids
        if sequence.session.startswith("long") or not stops:
            endless = echo or [SPECIAL_IDS]
            return endless[sequence.generated % len(endless)]
        return echo[sequence.generated] if sequence.generated < len(echo) else stops[0]


class Desk(SessionDesk):
    """Saves tokens only: there is no KV."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def _save(self, command: SessionCommand) -> tuple[int, str]:
        session = self._core.sessions.get(command.session)
        if session is None or session.resident is None:
            raise SessionMismatch("nothing to save")
        tokens = session.resident.tokens[: session.resident.computed]
        Path(command.target).write_bytes(msgspec.json.encode(tokens))
        return len(tokens), f"{len(tokens)} tokens"

    def _restore(self, command: SessionCommand) -> tuple[int, str]:
        try:
            tokens = msgspec.json.decode(Path(command.target).read_bytes(), type=list[int])
        except FileNotFoundError:
            raise SessionMismatch("there is no saved session of this name") from None
        if self._core.place_session(command.session, tokens, command.salt) is None:
            raise SessionMismatch("no memory")
        return len(tokens), f"{len(tokens)} tokens restored"


class NotingIO(EngineIO):
    def take(self, timeout: float | None) -> Command | None:
        command = super().take(timeout)
        if command is not None:
            note(f"{type(command).__name__} {getattr(command, 'session', '')}".strip())
        return command


def note(line: str) -> None:
    if path := os.environ.get("FAKE_ENGINE_NOTES"):
        with Path(path).open("a") as notes:
            notes.write(line + "\n")


def load(config: EngineConfig, io: EngineIO) -> tuple[EngineCore, EngineReady]:
    how = os.environ.get("FAKE_ENGINE_LOAD", "")
    io.reply(LoadProgress(stage="loading", detail="nothing", done=1, total=4))
    if how == "fail":
        raise RuntimeError("no such model: [bold]nope[/bold]")
    if how == "exit":
        print("the machine has no memory left", file=sys.stderr)
        sys.stderr.flush()
        os._exit(9)
    if how == "slow":
        for done in range(10):
            io.reply(LoadProgress(stage="loading", detail="slowly", done=done, total=10))
            time.sleep(0.1)
    num_blocks = config.num_blocks or NUM_BLOCKS
    vocab_size = int(os.environ.get("FAKE_ENGINE_VOCAB", "512"))
    step_tokens, max_running = config.limits("cpu")
    echo = EchoExecutor()
    core = echo.core = EngineCore(
        echo,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_context=config.max_context or MAX_CONTEXT,
        vocab_size=vocab_size,
        step_tokens=step_tokens,
        max_running=max_running,
        prefix_cache=config.prefix_cache,
        policy=config.policy,
    )
    ready = EngineReady(
        version=protocol.VERSION + 1 if how == "version" else protocol.VERSION,
        pid=os.getpid(),
        model=ModelInfo(
            name=config.model,
            path=os.environ["FAKE_ENGINE_MODEL"],
            architecture="Echo",
            parameters=0,
            vocab_size=vocab_size,
            max_context=core.max_context,
            dtype="float32",
            device="cpu",
        ),
        pool=PoolInfo(num_blocks=num_blocks, block_size=config.block_size, bytes_per_block=1024),
        load_s=0.0,
    )
    return core, ready


def end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(2)


def serve(core: EngineCore, io: EngineIO) -> None:
    """As engine.loop does it, for the commands that these tests need."""
    desk = Desk(core)
    while True:
        command = io.take(0 if core.has_work else None)
        while command is not None:
            match command:
                case Shutdown():
                    return
                case AddRequest():
                    core.add(command)
                case SetPriority():
                    core.set_priority(command.request_id, command.priority)
                case AbortRequest() if output := core.abort(command.request_id, command.index):
                    io.reply(StepOutputs(step=-1, outputs=[output]))
                case TakeSnapshot():
                    if report := core.flush():
                        io.publish(report)
                    io.reply(core.snapshot(command.ticket))
                case GetUsage():
                    if report := core.flush():
                        io.publish(report)
                    io.reply(core.accounting.usage(command.ticket))
                case GetBlock():
                    io.reply(core.block_content(command))
                case SessionCommand():
                    io.reply(desk.answer(command))
                case ListSessions():
                    io.reply(SessionList(ticket=command.ticket, sessions=core.session_infos()))
                case Ping():
                    io.reply(Pong(ticket=command.ticket))
            command = io.take(0)
        outputs, report = core.step()
        if outputs:
            io.reply(StepOutputs(step=report.step if report else -1, outputs=outputs))
        if report:
            io.publish(report)


def main() -> int:
    """The course of engine.loop.main, with another model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=end_with_parent, daemon=True).start()
    note("start")
    io = NotingIO(config.command_endpoint, config.telemetry_endpoint)
    try:
        core, ready = load(config, io)
        io.reply(ready)
        serve(core, io)
        status = 0
    except Exception as error:
        traceback.print_exc()
        io.reply(EngineFailed(message=f"{type(error).__name__}: {error}"))
        status = 1
    io.close()
    return status


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)
