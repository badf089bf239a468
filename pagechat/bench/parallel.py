"""Independent pieces of work in forked processes, as many at a time as there are processors.

Results come back as bytes through a pipe; nothing is pickled.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess


class WorkerDied(RuntimeError):
    """A process ended without its result; what it said about that is on stderr."""


def run_parallel(jobs: list[Callable[[], bytes]], *, at_once: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(index, result) of each job as it ends. `at_once`: default, the processors this process may use.

    Raises WorkerDied. Whatever still runs when the iterator is left is ended.
    """
    at_once = at_once or len(os.sched_getaffinity(0))
    fork = multiprocessing.get_context("fork")
    waiting = list(enumerate(jobs))[::-1]
    running: dict[Connection, tuple[int, ForkProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                index, job = waiting.pop()
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_work, args=(job, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = index, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                index, process = running.pop(ready)
                try:
                    result = ready.recv_bytes()
                except EOFError:
                    raise WorkerDied(f"process {process.pid} ended without a result") from None
                finally:
                    ready.close()
                    process.join()
                yield index, result
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _work(job: Callable[[], bytes], to_parent: Connection) -> None:
    try:
        to_parent.send_bytes(job())
    except KeyboardInterrupt:  # Ctrl-C reaches the whole terminal; the parent tells
        os._exit(130)
