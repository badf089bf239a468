"""What runs the model: scheduler, block pool, decoder, and the process around them. Knows no text, client or screen.

core.py      one step from requests to tokens     process/    the process around it, and what it is told
protocol/    every message it takes and gives     requests/   requests, sequences, beams
scheduling/  who computes how much in a step      blocks/     block pool, tables, prefix index, observers
execution/   a step's forward pass, over kernels/ sampling/   rules, penalties, masks, grammars
models/      model names, loading, the decoder    sessions/   chats between their turns
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


class ForeignKernels(ImportError):
    """The import name `kernels` leads to another project's package, the Hugging Face one most likely."""


def _check_kernels() -> None:
    """Raises ForeignKernels unless `kernels` is the folder beside this one, and ours alone."""
    beside = Path(__file__).resolve().parent.parent
    spec = find_spec("kernels")
    found = Path(spec.origin).resolve().parent if spec is not None and spec.origin else None
    if found != beside / "kernels" or any(beside.glob("kernels-*.dist-info")):
        raise ForeignKernels(
            f"The package 'kernels' in {found or 'no folder at all'} is not pagechat's own, which it shadows: "
            "install pagechat in an environment of its own (`make setup` makes one)."
        )


def _let_other_processes_compute() -> None:
    """A thread that waits for the others of its team spins for some microseconds and then sleeps.

    OpenMP, which reads this when torch is loaded, would spin for milliseconds: where other processes compute, that
    keeps the thread it waits for from its core, at each of the hundreds of meetings of a step.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


_check_kernels()
_let_other_processes_compute()
