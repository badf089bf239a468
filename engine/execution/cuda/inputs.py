"""Numbers on their way to the device: written by the host into pinned memory, and uploaded in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class PinnedInputs:
    """Named arrays of 32-bit words (64-bit where the type says so) in one buffer on the device, the same every step.

    The host writes into one of a few pinned copies in turn: the copy of a step that is still being uploaded is not
    touched.
    """

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], torch.dtype]], device: str, copies: int = 4) -> None:
        places, words = {}, 0
        for name, (shape, dtype) in fields.items():
            count = int(np.prod(shape)) * dtype.itemsize // 4
            places[name] = slice(words, words + count)
            words += count + count % 2  # the next one may be of 64 bits
        pinned = device.startswith("cuda")
        self._host = [torch.zeros(words, dtype=torch.int32, pin_memory=pinned) for _ in range(copies)]
        self._device = torch.zeros(words, dtype=torch.int32, device=device)
        self._turn = 0
        self.device: dict[str, Tensor] = _views(self._device, places, fields)
        self._arrays = [{name: view.numpy() for name, view in _views(h, places, fields).items()} for h in self._host]

    def next(self) -> dict[str, NDArray[np.generic]]:
        """The arrays to fill for the next step."""
        self._turn = (self._turn + 1) % len(self._host)
        return self._arrays[self._turn]

    def upload(self) -> None:
        """Start the copy of the arrays last given out, in stream order."""
        self._device.copy_(self._host[self._turn], non_blocking=True)


_ALIGNED = 16
"""Bytes: kernels are compiled for pointers that are multiples of it, and anew for others."""


def upload(arrays: Sequence[NDArray[Any]], device: str) -> list[Tensor]:
    """The arrays as tensors on the device, in one copy, each aligned to 16 bytes. Arrays are of numbers torch knows."""
    places, size = [], 0
    for array in arrays:
        places.append(size)
        size += -(-array.nbytes // _ALIGNED) * _ALIGNED
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    host = pinned.numpy()
    for place, array in zip(places, arrays, strict=True):
        host[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = pinned.to(device, non_blocking=True)
    return [
        there[place : place + array.nbytes].view(_TORCH[array.dtype]).view(array.shape)
        for place, array in zip(places, arrays, strict=True)
    ]


_TORCH = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


def _views(
    buffer: Tensor, places: dict[str, slice], fields: dict[str, tuple[tuple[int, ...], torch.dtype]]
) -> dict[str, Tensor]:
    return {name: buffer[places[name]].view(dtype).view(shape) for name, (shape, dtype) in fields.items()}
