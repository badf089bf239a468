"""From a model directory to a decoder in memory, on the device and in the dtype asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.decoder import Decoder
from engine.models.errors import ModelError
from engine.models.loading.build import build_decoder
from engine.models.loading.dtypes import (
    check_gpu,
    check_gpu_room,
    check_gpu_shape,
    cpu_dtypes,
    gpu_dtypes,
    multiplies_bfloat16,
)
from engine.models.loading.names import cache_dir
from engine.models.loading.weights import Checkpoint, RandomWeights
from engine.models.registry import read_config
from engine.process.config import EngineConfig
from engine.protocol import LoadProgress, ModelInfo
from kernels.backend import Backend, Form, gpu_backend, start_cpp_backend, torch_backend
from kernels.cpp import detail as cpp_detail


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder, and what is told about it."""

    info: ModelInfo
    config: DecoderConfig
    decoder: Decoder
    dtype: torch.dtype
    """Of what is computed."""
    kv_dtype: torch.dtype
    device: str
    backend: Backend
    """What computes it: chosen here, for as long as the model is loaded."""

    @property
    def compiled(self) -> bool:
        """With a CPU's C++ kernels."""
        return self.backend.rounds_weights

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.config.kv_bytes_per_token(self.kv_dtype.itemsize)


def load(path: Path, config: EngineConfig, progress: Callable[[LoadProgress], None]) -> LoadedModel:
    device = _device(config.device)
    if device == "cpu":
        torch.set_num_threads(config.threads or _cpu_threads())
    elif ":" in device:
        torch.cuda.set_device(device)  # what names no device, as events and graphs, means this one
    decoder_config = read_config(path)
    if device != "cpu":
        check_gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        check_gpu_shape(decoder_config.heads, decoder_config.kv_heads, decoder_config.head_dim)
    backend, kernels_detail = _backend(config, device, progress)
    compiled = backend.rounds_weights
    checkpoint = None if config.random_weights else Checkpoint(path)
    stored = None if checkpoint is None else checkpoint.dtype()
    if device == "cpu":
        dtype, kv_dtype = cpu_dtypes(config.dtype, stored, compiled=compiled, fast_bfloat16=multiplies_bfloat16())
    else:
        dtype, kv_dtype = gpu_dtypes(config.dtype, stored)
        from kernels.triton.plan import shared_memory  # needs Triton

        check_gpu_room(torch.cuda.get_device_name(device), shared_memory(device), decoder_config.head_dim, dtype)
    max_context = _max_context(decoder_config, config.max_context)
    name = _display_name(config.model)

    def layer_done(done: int, total: int) -> None:
        progress(LoadProgress(stage="loading", detail=name, done=done, total=total))

    layer_done(0, decoder_config.num_layers)
    weights = checkpoint or RandomWeights(dtype, device)
    with torch.inference_mode():
        decoder = build_decoder(decoder_config, weights, dtype, backend, layer_done)
    if device != "cpu":
        with torch.inference_mode():
            _compile_kernels(decoder, config.block_size, progress)
    info = ModelInfo(
        name=name,
        path=str(path),
        architecture=decoder_config.architecture,
        parameters=weights.parameters,
        vocab_size=decoder_config.vocab_size,
        max_context=max_context,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        weights_dtype=decoder.weights_dtype(),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        kernels=backend.name,
        kernels_detail=kernels_detail,
    )
    return LoadedModel(
        info=info,
        config=decoder_config,
        decoder=decoder,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        backend=backend,
    )


def _compile_kernels(decoder: Decoder, block_size: int, progress: Callable[[LoadProgress], None]) -> None:
    """All that this model can need, so that no step ever waits for the compiler."""
    from kernels.triton import warm_up  # needs Triton
    from kernels.triton.compilations import compilations

    def tell(kernel: str, done: int, total: int) -> None:
        progress(LoadProgress(stage="warming", detail=f"compiling {kernel}", done=done, total=total))

    compilations.watch()
    sizes = decoder.config
    warm_up.compile_all(
        warm_up.Model(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            block_size=block_size,
            layers=sizes.num_layers,
            dtype=decoder.dtype,
            embedding=decoder.embedding,
            forward=decoder.forward,
            logits=decoder.logits,
        ),
        tell,
    )


def _display_name(model: str) -> str:
    """What people call it: the last part of a path, a name as it is."""
    given = Path(model).expanduser()
    if given.suffix == ".gguf":
        return given.stem
    return given.resolve().name if given.is_dir() else model


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = wanted.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ModelError(f"The device {wanted!r} is not supported; use cpu, cuda or cuda:N.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelError("This machine, or this build of torch, has no CUDA device; use --device cpu.")
    return wanted


def _cpu_threads() -> int:
    """torch's own count (physical cores), or fewer where this process may use fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), allowed))


def _backend(config: EngineConfig, device: str, progress: Callable[[LoadProgress], None]) -> tuple[Backend, str]:
    """The kernels that compute this model, and `ModelInfo.kernels_detail`.

    Raises ModelError where only others could do what was asked for.
    """
    needed = config.weights_dtype != "auto"
    if device != "cpu":
        if needed:
            raise ModelError(f"weights-dtype {config.weights_dtype} is for CPUs; on {device} weights are in the dtype.")
        return gpu_backend(device), ""
    if config.dtype not in ("auto", "float32"):
        if needed:
            raise ModelError(
                f"weights-dtype {config.weights_dtype} goes with the dtypes auto and float32, not with {config.dtype}."
            )
        return torch_backend(), f"they compute in float32 only, and dtype {config.dtype} was asked for"

    def tell(detail: str) -> None:
        progress(LoadProgress(stage="starting", detail=f"CPU kernels: {detail}"))

    if config.cpu_kernels == "torch":
        missing = "they are switched off (cpu-kernels torch)"
    else:
        started = start_cpp_backend(cache_dir() / "kernels", tell, _form_chooser(config))
        if not isinstance(started, str):
            return started, cpp_detail()
        missing = started
    if needed:
        raise ModelError(f"weights-dtype {config.weights_dtype} needs the C++ kernels of the CPU: {missing}.")
    tell(f"torch's, which are slower than those in C++: {missing}")
    return torch_backend(), missing


def _form_chooser(config: EngineConfig) -> Callable[[Tensor], Form] | None:
    """How the C++ kernels hold a matrix of the checkpoint; None: as they choose themselves."""
    wanted = config.weights_dtype
    if wanted != "auto":
        return lambda weight: wanted
    if config.dtype == "float32":  # what is stored in bfloat16 is the same number in float32
        return lambda weight: "bf16" if weight.dtype == torch.bfloat16 else "float32"
    return None


def _max_context(config: DecoderConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.max_context
    if wanted > config.max_context:
        raise ModelError(f"A context of {wanted} tokens was asked for; this model takes {config.max_context} at most.")
    return wanted
