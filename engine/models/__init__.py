"""Model names, files and the decoder: from what a person types after --model to something that computes logits.

config.py     what a decoder is made of, as data
registry.py   config.json to that, by the tables in families/
loading/      a name to a directory, and a directory to a LoadedModel
decoder.py    the transformer; attention.py and mlp.py are the halves of its layers
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.models.errors import ModelError
from engine.models.loading.names import resolve
from engine.process.config import EngineConfig
from engine.protocol import LoadProgress

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel

__all__ = ["LoadedModel", "ModelError", "load", "resolve"]


def load(path: Path, config: EngineConfig, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """The model in directory `path`, ready to compute. Raises ModelError."""
    from engine.models.loading.load import (
        load as load_directory,  # here, so that resolving a name need not import torch
    )

    return load_directory(path, config, progress)
