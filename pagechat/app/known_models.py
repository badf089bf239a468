"""Names of models that are at hand, and daemons that run: what a person may choose without typing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.process.config import EngineConfig
from pagechat import rundir

MOST_REMEMBERED = 10


def models(remembered: Iterable[str], folder: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The default one, those used before, those in `folder`, those that the Hugging Face hub's cache has. Each once."""
    found = [EngineConfig().model, *remembered, *_in_folder(folder), *_in_hub_cache(environment)]
    return list(dict.fromkeys(found))


def daemons(run_dir: Path) -> list[Path]:
    """Run directories beside `run_dir`, itself included, in which a daemon lives."""
    name = run_dir.name.split("-")[0]
    try:
        places = sorted(place for place in run_dir.parent.glob(f"{name}*") if place.is_dir())
    except OSError:
        return []
    return [place for place in places if rundir.daemon_lives(place)]


def is_run_dir(text: str) -> bool:
    """A daemon has its lock in a folder of that name."""
    return (Path(text).expanduser() / "daemon.lock").is_file()


def remember(remembered: Iterable[str], name: str) -> list[str]:
    """With a name that was just used, the newest first."""
    return list(dict.fromkeys([name, *remembered]))[:MOST_REMEMBERED]


def _in_folder(folder: Path) -> list[str]:
    """Model files and folders right there, and the folder itself when it is one."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    ggufs = [entry for entry in entries if entry.suffix == ".gguf" and entry.is_file()]
    folders = [entry for entry in (folder, *entries) if (entry / "config.json").is_file()]
    return [str(entry) for entry in [*ggufs, *folders] if entry in ggufs or (entry / "tokenizer.json").is_file()]


def _in_hub_cache(environment: Mapping[str, str]) -> list[str]:
    home = (
        environment.get("HF_HOME") or Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    cache = Path(environment.get("HF_HUB_CACHE") or Path(home) / "hub")
    try:
        entries = sorted(cache.glob("models--*--*/snapshots/*/config.json"))
    except OSError:
        return []
    return [entry.parents[2].name.removeprefix("models--").replace("--", "/", 1) for entry in entries]
