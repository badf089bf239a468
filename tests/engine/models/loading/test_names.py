"""From a name to a directory: what is accepted, what is cached, and what is left when something goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.models import ModelError, resolve
from engine.models.loading import names
from engine.protocol import LoadProgress
from tests.gguf_models import write_gguf
from tests.models import tiny_llama


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGECHAT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return write_gguf(tiny_llama(tmp_path), tmp_path / "tiny model.gguf")


def stages(name: str | Path) -> tuple[Path, list[str]]:
    seen: list[LoadProgress] = []
    path = resolve(str(name), seen.append)
    return path, list(dict.fromkeys(progress.stage for progress in seen))


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.startswith(".lock-"))


def test_a_directory_is_itself(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)

    assert stages(directory) == (directory.resolve(), [])


def test_a_gguf_file_is_converted_once(gguf_path: Path, cache: Path) -> None:
    first, work = stages(gguf_path)
    again, no_work = stages(gguf_path)

    assert (first, work, no_work) == (again, ["converting"], [])
    assert first.parent == cache
    assert sorted(path.name for path in first.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_changed_gguf_file_is_converted_anew(gguf_path: Path) -> None:
    before, _ = stages(gguf_path)
    os.utime(gguf_path, ns=(1, 1))

    after, work = stages(gguf_path)

    assert (after != before, work) == (True, ["converting"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-model", "smollm2, a directory"),
        ("./no/such/dir", "no model './no/such/dir'"),
        ("missing.gguf", "missing.gguf cannot be read"),
        ("", "is no model directory"),
        ("a/b/c", "no model 'a/b/c'"),
        ("../up", "no model '../up'"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_would(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelError) as caught:
        stages(name)
    assert said in str(caught.value)


def test_a_directory_without_config_is_refused_and_a_gguf_in_it_is_pointed_at(gguf_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(gguf_path, folder / "weights.gguf")

    with pytest.raises(ModelError, match=r"lacks config\.json and tokenizer\.json.*weights\.gguf"):
        stages(folder)


def test_the_hub_out_of_reach_is_said_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is read when the library is imported, so the call is made in a fresh process."""
    code = (
        "from engine.models import ModelError, resolve\n"
        "try: resolve('someone/some-model', lambda p: None)\n"
        "except ModelError as error: print(error)"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "someone/some-model could not be fetched" in done.stdout
    assert "Offline, give a model directory" in done.stdout


def test_a_failed_conversion_leaves_nothing(gguf_path: Path, cache: Path) -> None:
    data = gguf_path.read_bytes()
    gguf_path.write_bytes(data.replace(b"output_norm.weight", b"output_mron.weight"))

    with pytest.raises(ModelError, match="output_mron"):
        stages(gguf_path)

    assert entries(cache) == []


def test_too_little_disk_space_is_said_before_anything_is_written(
    gguf_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(gguf_path)
    monkeypatch.setattr(names.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))

    with pytest.raises(ModelError, match="1 MB are free"):
        stages(gguf_path)

    assert entries(cache) == []


def test_a_killed_conversion_leaves_no_model_and_the_next_start_cleans_up(gguf_path: Path, cache: Path) -> None:
    """kill -9 in the middle of the weights."""
    code = (
        "import sys, time\n"
        "from engine.models import resolve\n"
        "def hold(progress):\n"
        "    if 0 < progress.done < progress.total: print('half', flush=True); time.sleep(60)\n"
        "resolve(sys.argv[1], hold)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(gguf_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    (left,) = entries(cache)
    assert left.startswith(".partial-")

    other = write_gguf(gguf_path.parent / "tiny-llama", gguf_path.parent / "other.gguf")
    path, _ = stages(other)

    assert entries(cache) == [path.name]


def test_two_starts_at_once_convert_once(gguf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, says so, and then finds the model made."""
    from engine.models.loading import convert

    started, release, conversions = threading.Event(), threading.Event(), []
    real = convert.convert

    def slow(*arguments: object) -> None:
        conversions.append(1)
        started.set()
        assert release.wait(30)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(convert, "convert", slow)
    results: list[Path] = []
    said: list[str] = []
    first = threading.Thread(target=lambda: results.append(stages(gguf_path)[0]))
    second = threading.Thread(target=lambda: results.append(resolve(str(gguf_path), lambda p: said.append(p.detail))))
    first.start()
    assert started.wait(30)
    second.start()
    deadline = time.monotonic() + 30
    while not said and time.monotonic() < deadline:
        time.sleep(0.01)
    release.set()
    first.join(30)
    second.join(30)

    assert conversions == [1]
    assert len(set(results)) == 1
    assert "another process is preparing this model" in said[0]


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGECHAT_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(ModelError, match="model cache"):
        stages(gguf_path)
