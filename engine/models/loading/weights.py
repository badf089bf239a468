"""A model directory's safetensors files, read by tensor name and memory-mapped. No other format is ever opened.

Or random numbers in their place, for who only measures speed.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import read_json
from engine.models.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor, mapped from the file. Raises ModelError when it is missing, of another shape, or no floats."""
        if name not in self._where:
            raise ModelError(f"The model's files lack the tensor {name}.")
        try:
            tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"The tensor {name} cannot be read: {error}.") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"The tensor {name} has shape {list(tensor.shape)}; config.json asks for {list(shape)}.")
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ModelError(f"The tensor {name} is {tensor.dtype}; float32, float16 and bfloat16 are supported.")
        self._taken.add(name)
        self.parameters += tensor.numel()
        return tensor

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

    def take(self, name: str, *shape: int) -> Tensor:
        self.parameters += prod(shape)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.normal_(1.0 if len(shape) == 1 else 0.0, 0.02, generator=self._generator)

    def check_all_taken(self, ignored_suffixes: tuple[str, ...], ignored: tuple[str, ...]) -> None:
        """There is nothing else."""


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
