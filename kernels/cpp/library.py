"""The compiled library as ctypes sees it: the structures of source/*.h, and the functions of source/kernels.cpp.

Pointers are those of torch tensors; whoever fills a structure keeps the tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Literal

from torch import Tensor

Form = Literal["float32", "bf16", "int8", "int4"]
FORMS: tuple[Form, ...] = ("float32", "bf16", "int8", "int4")
"""In the order of `Form` in source/weights.h."""


class Linear(Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("form", c_int32),
    )


class Pool(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("heads", c_int64),
        ("block_size", c_int64),
        ("dim", c_int64),
        ("is_bf16", c_int32),
    )


class Plan(Structure):
    _fields_ = (
        ("spans", c_int64),
        ("tokens", c_int64),
        ("starts", c_void_p),
        ("firsts", c_void_p),
        ("tables", c_void_p),
        ("blocks", c_void_p),
        ("owners", c_void_p),
        ("tasks", c_void_p),
        ("pieces", c_void_p),
    )


class Layer(Structure):
    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", Linear),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("out", Linear),
        ("mlp_norm", c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
        ("rotates", c_int64),
    )


class Decoder(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("inv_freq", c_void_p),
        ("eps", c_float),
        ("scale", c_float),
    )


_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "instructions": (c_char_p, []),
    "packed_bytes": (c_int64, [c_int32, c_int64, c_int64]),
    "pack": (None, [c_int32, c_void_p, c_int32, c_int64, c_int64, c_void_p, c_int32]),
    "off_grid": (c_int64, [c_void_p, c_int32, c_int64, c_int64, c_int64]),
    "input_limit": (c_int32, [c_int32]),
    "linear_floats": (c_int64, [c_int64, c_int64]),
    "linear": (
        None,
        [POINTER(Linear), c_int32, c_void_p, c_int64, c_void_p, c_float, c_void_p, c_void_p, c_int32],
    ),
    "rope_and_cache": (
        None,
        [
            *(POINTER(Plan), POINTER(Pool), c_int64),
            *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_float, c_int32),
        ],
    ),
    "piece_floats": (c_int64, [c_int64, c_int64, c_int64]),
    "task_queries": (c_int64, [c_int64, c_int64]),
    "attention": (
        None,
        [POINTER(Plan), POINTER(Pool), c_int64, c_void_p, c_int64, c_float, c_void_p, c_void_p, c_int32],
    ),
    "step_floats": (c_int64, [POINTER(Decoder), c_int64]),
    "layers": (
        None,
        [POINTER(Decoder), POINTER(Plan), POINTER(Pool), c_void_p, c_void_p, c_void_p, c_int32],
    ),
}


class Library(ctypes.CDLL):
    """`library.pagechat_...`, with their types declared. Raises OSError for a file that is no library of ours."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path.resolve()))  # a bare name would be looked for among the system's libraries
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(self, f"pagechat_{name}")
            except AttributeError as error:
                raise OSError(str(error)) from error
            function.restype, function.argtypes = result, arguments

    @property
    def instructions(self) -> str:
        """What of this CPU it uses, in a few words."""
        words: bytes = self.pagechat_instructions()
        return words.decode()


_current: Library | None = None


def use(library: Library) -> None:
    """From now on, the library of all operations."""
    global _current
    _current = library


@contextlib.contextmanager
def trying(library: Library) -> Iterator[None]:
    """The library of all operations meanwhile, for who tries it before it is used."""
    global _current
    before, _current = _current, library
    try:
        yield
    finally:
        _current = before


def library() -> Library:
    """The one in use. `kernels.cpp.start` must have found one."""
    assert _current is not None, "kernels.cpp.start has not been called, or has found no library"
    return _current


def in_use() -> bool:
    return _current is not None


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
