"""A model directory's safetensors files, read by tensor name and memory-mapped. No other format is ever opened.

Or random numbers in their place, for who only measures speed.
"""

from __future__ import annotations

import math
from collections import Counter
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import read_json
from engine.models.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""By the names that safetensors files have for them."""


class Checkpoint:
    """Tensors of one model; remembers which were taken, so that a leftover is noticed."""

    def __init__(self, directory: Path) -> None:
        self._files = {name: _open(directory / name) for name in _file_names(directory)}
        self._where = {tensor: name for name, file in self._files.items() for tensor in file.keys()}  # noqa: SIM118
        self._taken: set[str] = set()
        self.parameters = 0
        """Numbers taken so far."""

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def dtype(self) -> torch.dtype | None:
        """The floating-point type of most of the numbers; None where that is none that `take` accepts."""
        numbers: Counter[str] = Counter()
        for name, file in self._where.items():
            part = self._files[file].get_slice(name)
            numbers[part.get_dtype()] += prod(part.get_shape())
        return _DTYPES.get(numbers.most_common(1)[0][0]) if numbers else None

    def take(self, name: str, *shape: int, device: str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device` in `dtype` (None: in its own); mapped from the file where both are the file's.

        Raises ModelError when it is missing, of another shape, of no floats, or holds a number that is not finite,
        in the file or in `dtype`: one of those would turn answers into nonsense long after the start.
        """
        if name not in self._where:
            raise ModelError(f"The model's files lack the tensor {name}.")
        try:
            stored: Tensor = self._files[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"The tensor {name} cannot be read: {error}.") from error
        if tuple(stored.shape) != shape:
            raise ModelError(f"The tensor {name} has shape {list(stored.shape)}; config.json asks for {list(shape)}.")
        if not stored.is_floating_point() or stored.element_size() < 2:
            raise ModelError(f"The tensor {name} is {stored.dtype}; float32, float16 and bfloat16 are supported.")
        tensor = stored.to(device, dtype or stored.dtype)
        if not _is_finite(tensor):
            if not _is_finite(stored):
                raise ModelError(f"The tensor {name} holds NaN or infinity: the model's files are damaged.")
            raise _out_of_range(name, stored, tensor.dtype)
        self._taken.add(name)
        self.parameters += tensor.numel()
        return tensor

    def in_range(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor that `take` gave, in another dtype. Raises ModelError where a number is too large for that."""
        if tensor.dtype == dtype:
            return tensor
        converted = tensor.to(dtype)
        if not _is_finite(converted):
            raise _out_of_range(name, tensor, dtype)
        return converted

    def same(self, name: str, tensor: Tensor) -> bool:
        """Whether the file's tensor of this name holds the numbers of `tensor`, which may be on another device."""
        other: Tensor = self._files[self._where[name]].get_tensor(name)
        return other.shape == tensor.shape and torch.equal(other.to(tensor.device, tensor.dtype), tensor)

    def check_all_taken(self, ignored_suffixes: tuple[str, ...], ignored: tuple[str, ...]) -> None:
        """Raises ModelError when a tensor was left over: the model has a part that this decoder would leave out."""
        left = sorted(
            name for name in self._where.keys() - self._taken - set(ignored) if not name.endswith(ignored_suffixes)
        )
        if left:
            raise ModelError(f"The model has {len(left)} tensors that its config does not account for: {left[0]}, ...")


class RandomWeights:
    """Instead of a checkpoint: normal numbers of a small spread, made where they are used."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator(device).manual_seed(0)
        self.parameters = 0
        """Numbers made so far."""

    def __contains__(self, name: str) -> bool:
        return True

    def take(self, name: str, *shape: int, device: str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        """A new tensor, on the device and in the dtype that this object was made for."""
        self.parameters += prod(shape)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.normal_(1.0 if len(shape) == 1 else 0.0, 0.02, generator=self._generator)

    def in_range(self, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor in another dtype."""
        return tensor.to(dtype)

    def check_all_taken(self, ignored_suffixes: tuple[str, ...], ignored: tuple[str, ...]) -> None:
        """There is nothing else."""


def _is_finite(tensor: Tensor) -> bool:
    """Whether there is neither NaN nor infinity among the numbers. NaN is the least and the largest of any numbers."""
    low, high = torch.aminmax(tensor)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def _out_of_range(name: str, stored: Tensor, dtype: torch.dtype) -> ModelError:
    return ModelError(
        f"The tensor {name} has numbers too large for {_name(dtype)}: the file has them in {_name(stored.dtype)}. "
        "Choose another dtype."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _file_names(directory: Path) -> list[str]:
    if (directory / INDEX).exists():
        mapping = read_json(directory / INDEX).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise ModelError(f"{directory / INDEX} has no weight_map.")
        names = sorted({str(name) for name in mapping.values()})
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ModelError(f"{directory / INDEX} names {name!r}, which is no safetensors file beside it.")
        return names
    if (directory / SINGLE).exists():
        return [SINGLE]
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if others:
        raise ModelError(
            f"{directory} has its weights in {others[0]}. Only safetensors files are read: loading pickled weights "
            "can execute code. Convert the model to safetensors."
        )
    raise ModelError(f"{directory} holds no {SINGLE} and no {INDEX}.")


def _open(path: Path) -> safe_open:
    """Opens one file; the library checks the header and that the file is as long as the header says."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is no complete safetensors file: {error}.") from error
