"""A new library computes a small product in every form, whose result is known, before anything relies on it."""

from __future__ import annotations

import ctypes

import numpy as np

from kernels.cpp.library import FORMS, Library, Linear

_OUTPUTS, _INPUTS, _ROWS = 40, 70, 5
_TOLERANCES = {"float32": 1e-4, "bf16": 1e-4, "int8": 0.1, "int4": 1e-4}
"""Of sums of 70 products; the weights lie on a grid that every form but int8 holds exactly."""


def passes(library: Library) -> bool:
    weight = ((np.arange(_OUTPUTS * _INPUTS, dtype=np.float32) * 7 % 16 - 5) / 16).reshape(_OUTPUTS, _INPUTS)
    x = np.rint(127 * np.cos(np.arange(_ROWS * _INPUTS, dtype=np.float32))).reshape(_ROWS, _INPUTS)
    x[:, ::32] = 127  # the largest of its group: nothing is lost where inputs are rounded to 8 bits
    x /= 127
    errors = (np.abs(_product(library, form, weight, x) - x @ weight.T).max() for form in range(len(FORMS)))
    return all(error < _TOLERANCES[form] for error, form in zip(errors, FORMS, strict=True))


def _product(library: Library, form: int, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    packed = np.zeros(library.pagechat_packed_bytes(form, _OUTPUTS, _INPUTS), np.uint8)
    out = np.empty((_ROWS, _OUTPUTS), np.float32)
    library.pagechat_pack(form, weight.ctypes.data, 0, _OUTPUTS, _INPUTS, packed.ctypes.data, 1)
    memory = np.empty(library.pagechat_linear_floats(_INPUTS, _ROWS), np.float32)
    linear = Linear(packed.ctypes.data, None, _OUTPUTS, _INPUTS, form)
    library.pagechat_linear(
        ctypes.byref(linear), 0, x.ctypes.data, _ROWS, None, 0.0, memory.ctypes.data, out.ctypes.data, 1
    )
    return out
