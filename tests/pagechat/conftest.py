"""What tests of the front, the client and the commands share."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons import FAKE_ENGINE, ROOT, Daemon, end, model_folder


@pytest.fixture
def fake_engine(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every engine this test starts is tests/fake_engine.py. The folder of the model it names."""
    model = model_folder(folders / "model")
    for name, value in fake_engine_environment(model, folders / "notes").items():
        monkeypatch.setenv(name, value)
    return model


@pytest.fixture(scope="module")
def _daemon_of_the_module() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="pc-", dir="/tmp"))
    run_dir = base / "run"
    environment = fake_engine_environment(model_folder(base / "model"), base / "notes")
    daemon = Daemon("--num-blocks", "400", "--run-dir", str(run_dir), env={**os.environ, **environment})
    try:
        daemon.until_answering(run_dir)
        yield run_dir
    finally:
        end(daemon)
        shutil.rmtree(base)


@pytest.fixture
def shared_daemon(_daemon_of_the_module: Path, fake_engine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run directory of a daemon that several tests use, for those that leave it as they found it. It is this
    test's daemon by the environment."""
    monkeypatch.setenv("PAGECHAT_RUN_DIR", str(_daemon_of_the_module))
    monkeypatch.setenv("FAKE_ENGINE_NOTES", str(_daemon_of_the_module.parent / "notes"))
    return _daemon_of_the_module


def fake_engine_environment(model: Path, notes: Path) -> dict[str, str]:
    return {
        "FAKE_ENGINE_MODEL": str(model),
        "FAKE_ENGINE_NOTES": str(notes),
        "PAGECHAT_ENGINE_COMMAND": shlex.join(FAKE_ENGINE),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
