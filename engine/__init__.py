"""What runs the model: scheduler, block pool, decoder, and the process around them. Knows no text, client or screen.

protocol.py   every message on every socket        config.py    what an engine is told at its start
scheduler.py  who computes how much in a step      sequence.py  sequences, spans, steps
blocks/       block pool, tables, prefix index, and their mirror in other processes
models/       model names, loading, the decoder    runner.py    a step's forward pass, over kernels/
core.py       one step from requests to tokens     loop.py      the process that repeats it
"""

from __future__ import annotations

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


_check_kernels()
