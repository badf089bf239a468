"""Reads what stands before the weights in a GGUF file: metadata and the list of tensors, each bound checked.

The file comes from anywhere, so no count or length in it is believed before it is compared with what is left of the
file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.

```
"GGUF" version tensor_count kv_count | kv_count * (key, type, value) | tensor_count * (name, dims, type, offset)
padding | data of the tensors, each at its offset
```
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from engine.models.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct codes of the scalar value types; 8 is a string, 9 an array."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. `shape` is outermost dimension first, as in torch."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    """From the start of the file."""
    nbytes: int


class _Cursor:
    """Reads forward through the file; ModelError instead of a read past its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is no valid GGUF file: {what} at byte {self.at}.")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.fail(f"it ends {count - (len(self.data) - self.at)} bytes too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self) -> Any:
        return self._value(self.scalar("I"))

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise self.fail(f"unknown value type {kind}")
        item, count = self.scalar("I"), self.scalar("Q")
        if item in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[item])
            return np.frombuffer(self.take(count * size), dtype="<" + _SCALARS[item]).tolist()
        if item != _STRING:
            raise self.fail(f"arrays of type {item} are not supported")
        return [self.string() for _ in range(self.bounded(count, 8))]

    def bounded(self, count: int, least_bytes: int) -> int:
        """`count`, unless that many items of at least so many bytes cannot follow."""
        if count * least_bytes > len(self.data) - self.at:
            raise self.fail(f"{count} items cannot follow")
        return count


class GgufFile:
    """Metadata and tensors of one file, which stays mapped. Raises ModelError when it is malformed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}.") from error
        cursor = _Cursor(self._data, path)
        if self._data[:4] != b"GGUF":
            raise ModelError(f"{path} is no GGUF file: it does not begin with 'GGUF'.")
        cursor.at = 4
        version = cursor.scalar("I")
        if version not in _VERSIONS:
            raise ModelError(f"{path} has GGUF version {version}; versions 2 and 3, little-endian, are supported.")
        tensors = cursor.bounded(cursor.scalar("Q"), 24)
        pairs = cursor.bounded(cursor.scalar("Q"), 13)
        self.metadata: dict[str, Any] = {cursor.string(): cursor.value() for _ in range(pairs)}
        self.tensors = {tensor.name: tensor for tensor in self._tensors(cursor, tensors)}

    def _tensors(self, cursor: _Cursor, count: int) -> list[GgufTensor]:
        relative = []
        for _ in range(count):
            name, dimensions = cursor.string(), cursor.scalar("I")
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise cursor.fail(f"tensor {name!r} has {dimensions} dimensions")
            shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
            kind, offset = cursor.scalar("I"), cursor.scalar("Q")
            try:
                quantization = GGMLQuantizationType(kind)
            except ValueError:
                raise ModelError(f"{self.path}: the tensor {name!r} has the unknown type {kind}.") from None
            block, size = GGML_QUANT_SIZES[quantization]
            if shape[-1] % block or 0 in shape:
                raise cursor.fail(f"tensor {name!r} of type {quantization.name} has shape {list(shape)}")
            relative.append(GgufTensor(name, shape, quantization, offset, prod(shape) // block * size))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise cursor.fail(f"general.alignment is {alignment!r}")
        start = -(-cursor.at // alignment) * alignment
        for tensor in relative:
            if start + tensor.offset + tensor.nbytes > len(self._data):
                raise ModelError(
                    f"{self.path} is cut short or malformed: the tensor {tensor.name!r} ends at byte "
                    f"{start + tensor.offset + tensor.nbytes} of {len(self._data)}."
                )
        return [GgufTensor(t.name, t.shape, t.kind, start + t.offset, t.nbytes) for t in relative]

    def read(self, tensor: GgufTensor) -> np.ndarray:
        """The tensor, dequantized: float32 of its shape. Raises ModelError for a type that gguf cannot decode."""
        raw = np.frombuffer(self._data, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        if tensor.kind == GGMLQuantizationType.F32:
            return raw.view("<f4").reshape(tensor.shape)
        if tensor.kind == GGMLQuantizationType.F16:
            return raw.view("<f2").astype(np.float32).reshape(tensor.shape)
        row_bytes = tensor.nbytes // prod(tensor.shape[:-1])
        try:
            return dequantize(raw.reshape(*tensor.shape[:-1], row_bytes), tensor.kind)
        except NotImplementedError:
            raise ModelError(
                f"{self.path}: the tensor {tensor.name!r} has type {tensor.kind.name}, which is not supported."
            ) from None
