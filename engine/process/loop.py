"""The engine process: load the model, then step for ever.

It is started by the front with a pipe on its stdin: one JSON line of `EngineConfig`, then nothing
until the end. The pipe's end means that the front is gone, however it went, and the engine with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback

import msgspec

from engine import protocol
from engine.core import EngineCore
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
from engine.sessions.commands import SessionDesk


def main() -> int:
    """Run until the front says `Shutdown` or goes away. Returns the exit status."""
    started = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the front decides
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.excepthook = _end_with_thread
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    io = EngineIO(config.command_endpoint, config.telemetry_endpoint)
    try:
        core, desk, ready = _load(config, io, started)
        io.reply(ready)
        _serve(core, desk, io)
        status = 0
    except Exception as error:  # the last words of the process; the front shows them and starts another
        traceback.print_exc()
        io.reply(EngineFailed(message=f"{type(error).__name__}: {error}"))
        status = 1
    io.close()
    return status


def _end_with_parent() -> None:
    # os.read, not sys.stdin: a buffered reader's lock, held by this thread for ever, would abort
    # the interpreter's own end.
    while os.read(0, 4096):
        pass
    os._exit(2)


def _end_with_thread(args: threading.ExceptHookArgs) -> None:
    # A step loop without its I/O thread would compute for nobody, for ever.
    threading.__excepthook__(args)
    sys.stderr.flush()
    os._exit(3)


def _load(config: EngineConfig, io: EngineIO, started: float) -> tuple[EngineCore, SessionDesk, EngineReady]:
    io.reply(LoadProgress(stage="starting", detail="importing torch"))
    from engine.process.build import build

    built = build(config, io.reply)
    core, runner = built.core, built.runner
    ready = EngineReady(
        version=protocol.VERSION,
        pid=os.getpid(),
        model=built.model,
        pool=PoolInfo(
            num_blocks=built.num_blocks, block_size=config.block_size, bytes_per_block=runner.bytes_per_block
        ),
        load_s=time.monotonic() - started,
    )
    return core, SessionDesk(core, runner, built.path), ready


def _serve(core: EngineCore, desk: SessionDesk, io: EngineIO) -> None:
    """Commands between steps, steps while there is work; publish each before the next begins."""
    while True:
        command = io.take(0 if core.has_work else None)
        while command is not None:
            if isinstance(command, Shutdown):
                return
            _obey(command, core, desk, io)
            command = io.take(0)
        outputs, report = core.step()
        if outputs:  # first: somebody reads them
            io.reply(StepOutputs(step=report.step if report else -1, outputs=outputs))
        if report:
            io.publish(report)


def _obey(command: Command, core: EngineCore, desk: SessionDesk, io: EngineIO) -> None:
    if isinstance(command, AddRequest):
        core.add(command)
    elif isinstance(command, SetPriority):
        core.set_priority(command.request_id, command.priority)
    elif isinstance(command, AbortRequest):
        output = core.abort(command.request_id, command.index)
        if output:
            io.reply(StepOutputs(step=-1, outputs=[output]))
    elif isinstance(command, TakeSnapshot):
        _publish_changes(core, io)
        io.reply(core.snapshot(command.ticket))
    elif isinstance(command, GetUsage):
        _publish_changes(core, io)
        io.reply(core.accounting.usage(command.ticket))
    elif isinstance(command, GetBlock):
        io.reply(core.block_content(command))
    elif isinstance(command, SessionCommand):
        io.reply(desk.answer(command))
    elif isinstance(command, ListSessions):
        io.reply(SessionList(ticket=command.ticket, sessions=core.session_infos()))
    elif isinstance(command, Ping):
        io.reply(Pong(ticket=command.ticket))


def _publish_changes(core: EngineCore, io: EngineIO) -> None:
    """What changed since the last report, so that an answer given now does not run ahead of the telemetry."""
    report = core.flush()
    if report:
        io.publish(report)
