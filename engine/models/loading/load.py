"""From a model directory to a decoder in memory, on the device and in the dtype asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import DecoderConfig, read_config
from engine.models.decoder import Decoder, build_decoder
from engine.models.errors import ModelError
from engine.models.loading.names import cache_dir
from engine.models.loading.weights import Checkpoint, RandomWeights
from engine.process.config import EngineConfig
from engine.protocol import LoadProgress, ModelInfo
from kernels import ops
from kernels.ops import Form


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
    compiled: bool
    """With a CPU's C++ kernels."""

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
    missing = _start_cpu_kernels(config, device, progress)
    compiled = missing is None
    dtype, kv_dtype = _dtypes(config.dtype, device, compiled)
    decoder_config = read_config(path)
    max_context = _max_context(decoder_config, config.max_context)
    name = _display_name(config.model)

    def layer_done(done: int, total: int) -> None:
        progress(LoadProgress(stage="loading", detail=name, done=done, total=total))

    layer_done(0, decoder_config.num_layers)
    checkpoint = RandomWeights(dtype, device) if config.random_weights else Checkpoint(path)
    with torch.inference_mode():
        choose_form = _form_chooser(config) if compiled else None
        decoder = build_decoder(decoder_config, checkpoint, dtype, device, layer_done, choose_form)
    info = ModelInfo(
        name=name,
        path=str(path),
        architecture=decoder_config.architecture,
        parameters=checkpoint.parameters,
        vocab_size=decoder_config.vocab_size,
        max_context=max_context,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        weights_dtype=_weights_dtype(decoder, dtype),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        kernels="C++" if compiled else "torch" if device == "cpu" else "Triton",
        kernels_detail=ops.cpu_kernels_detail() if missing is None else missing,
    )
    return LoadedModel(
        info=info,
        config=decoder_config,
        decoder=decoder,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        compiled=compiled,
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


def _start_cpu_kernels(config: EngineConfig, device: str, progress: Callable[[LoadProgress], None]) -> str | None:
    """None when the C++ kernels compute this model; else why they do not, or "" on a GPU, which has others.

    Raises ModelError where only they could do what was asked for.
    """
    needed = config.weights_dtype != "auto"
    if device != "cpu":
        if needed:
            raise ModelError(f"weights-dtype {config.weights_dtype} is for CPUs; on {device} weights are in the dtype.")
        return ""
    if config.dtype not in ("auto", "float32"):
        if needed:
            raise ModelError(
                f"weights-dtype {config.weights_dtype} goes with the dtypes auto and float32, not with {config.dtype}."
            )
        return f"they compute in float32 only, and dtype {config.dtype} was asked for"
    missing = "they are switched off (cpu-kernels torch)" if config.cpu_kernels == "torch" else None

    def tell(detail: str) -> None:
        progress(LoadProgress(stage="starting", detail=f"CPU kernels: {detail}"))

    if missing is None:
        missing = ops.start_cpu_kernels(cache_dir() / "kernels", tell)
    if missing is not None:
        tell(f"torch's, which are slower than those in C++: {missing}")
    if missing is not None and needed:
        raise ModelError(f"weights-dtype {config.weights_dtype} needs the C++ kernels of the CPU: {missing}.")
    return missing


def _form_chooser(config: EngineConfig) -> Callable[[Tensor], Form]:
    """How the C++ kernels hold a matrix of the checkpoint."""
    wanted = config.weights_dtype
    if wanted != "auto":
        return lambda weight: wanted
    if config.dtype == "float32":  # what is stored in bfloat16 is the same number in float32
        return lambda weight: "bf16" if weight.dtype == torch.bfloat16 else "float32"
    return ops.choose_form


def _weights_dtype(decoder: Decoder, dtype: torch.dtype) -> str:
    """Of the layers' largest matrices."""
    largest = decoder.layers[0].gate_up
    return largest.form if isinstance(largest, ops.PanelLinear) else str(dtype).removeprefix("torch.")


def _dtypes(wanted: str, device: str, compiled: bool) -> tuple[torch.dtype, torch.dtype]:
    """Of what is computed, and of KV: what was asked for. auto is float32 and KV in bfloat16 with C++ kernels, else
    bfloat16 where the device multiplies it in hardware, else float32.

    A CPU without such instructions reads bfloat16 weights of one sequence faster, but is many times slower on a batch.
    """
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype, dtype
    if compiled:
        return torch.float32, torch.bfloat16
    if device != "cpu":
        return torch.bfloat16, torch.bfloat16
    probes = (getattr(torch.cpu, probe, None) for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    dtype = torch.bfloat16 if any(probe is not None and probe() for probe in probes) else torch.float32
    return dtype, dtype


def _max_context(config: DecoderConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.max_context
    if wanted > config.max_context:
        raise ModelError(f"A context of {wanted} tokens was asked for; this model takes {config.max_context} at most.")
    return wanted
