"""`pagechat-bench capacity`: the figures of the PagedAttention papers' worked example, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from engine.process.config import BLOCK_SIZES
from pagechat.bench.capacity import capacity, capacity_command
from pagechat.bench.presets import PRESETS

WORKED_EXAMPLE = "--model llama-2-13b --memory 80GiB --weights 26GiB --reserve 2048 --used 256"
"""An 80 GiB card, 26 GiB of weights, answers of 256 tokens where 2,048 are reserved."""

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def run(arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(capacity_command)
    return CliRunner().invoke(app, arguments.split())


def run_json(arguments: str) -> dict[str, Any]:
    result = run(arguments + " --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(arguments: str) -> str:
    """The one line on stderr of a call that ends with exit code 2 and no data."""
    result = run(arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def write(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return folder


def test_a_token_of_llama_2_13b_takes_819200_bytes() -> None:
    # 2 x 40 layers x 40 heads x 128 x 2 bytes
    assert run_json(WORKED_EXAMPLE)["kv_bytes_per_token"] == 819_200


def test_the_worked_example_holds_eight_times_as_many_requests_paged() -> None:
    result = run_json(WORKED_EXAMPLE)
    # 54 GiB / (2,048 x 819,200 B) = 34.56 and 54 GiB / (256 x 819,200 B) = 276.48
    assert result["kv_memory_bytes"] == 54 * 1024**3
    assert result["contiguous"]["requests"] == 34
    assert result["contiguous"]["requests_unrounded"] == pytest.approx(34.56)
    assert result["paged"]["requests"] == 276
    assert result["paged"]["requests_unrounded"] == pytest.approx(276.48)
    assert result["ratio"] == pytest.approx(8.0)


def test_the_worked_example_leaves_seven_eighths_of_a_reservation_empty() -> None:
    result = run_json(WORKED_EXAMPLE)
    assert result["contiguous"]["empty_slots_per_request"] == 2048 - 256
    assert result["contiguous"]["empty_share"] == 0.875
    assert result["paged"]["empty_slots_per_request"] == 0
    assert result["paged"]["max_empty_slots_per_request"] == 15


def test_the_table_for_people_tells_the_same() -> None:
    table = run(WORKED_EXAMPLE).stdout
    for figure in ("0.78 MiB (819,200 bytes)", "54 GiB of 80 GiB", "87.5%", "34.56", "276.48", "8.0 times"):
        assert figure in table


def test_a_last_block_that_is_not_full_is_paid_for() -> None:
    # given 257 tokens: 17 blocks of 16, 15 slots empty
    result = run_json(WORKED_EXAMPLE.replace("--used 256", "--used 257"))
    assert result["paged"]["blocks_per_request"] == 17
    assert result["paged"]["empty_slots_per_request"] == 15
    # 54 GiB are 4,423 whole blocks
    assert result["paged"]["requests"] == 4423 // 17


@given(
    used=st.integers(1, 4096),
    more=st.integers(0, 4096),
    memory=st.integers(64 * 1024**3, 200 * 1024**3),
    block_size=st.sampled_from(BLOCK_SIZES),
)
def test_paging_wastes_less_than_a_block_a_request_and_never_overfills(
    used: int, more: int, memory: int, block_size: int
) -> None:
    result = capacity(
        PRESETS["llama-2-13b"],
        memory=memory,
        weights=26 * 1024**3,
        reserve=used + more,
        used=used,
        block_size=block_size,
        kv_dtype="bfloat16",
    )
    assert 0 <= result.paged.empty_slots_per_request < block_size
    assert result.paged.requests * result.paged.slots_per_request * result.kv_bytes_per_token <= result.kv_memory_bytes
    assert result.contiguous.requests * result.reserve * result.kv_bytes_per_token <= result.kv_memory_bytes


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [  # as published with each model's safetensors
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3.1-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("phi-3-mini-128k", 3_821_079_552),
    ],
)
def test_a_preset_counts_its_published_parameters(preset: str, parameters: int) -> None:
    assert PRESETS[preset].parameters == parameters


def test_a_preset_goes_by_its_hub_name_too() -> None:
    by_repository = WORKED_EXAMPLE.replace("llama-2-13b", "meta-llama/Llama-2-13b-hf")
    assert run_json(by_repository) == run_json(WORKED_EXAMPLE)


def test_weights_not_given_are_parameters_times_dtype() -> None:
    result = run_json("--model smollm2 --memory 1GiB --used 100")
    assert result["weights_bytes"] == 134_515_008 * 2
    assert result["weights_from"] == "134,515,008 parameters in bfloat16"


def test_a_directory_is_read_from_its_config(tmp_path: Path) -> None:
    # given grouped-query attention (2 KV heads), a head_dim that hidden / heads does not give, and no weight files
    result = run_json(f"--model {write(tmp_path, head_dim=32)} --memory 1GiB --used 10 --kv-dtype float32")
    # 2 x 4 layers x 2 heads x 32 x 4 bytes
    assert result["kv_bytes_per_token"] == 2 * 4 * 2 * 32 * 4
    assert result["reserve"] == 512
    # embeddings twice, 4 x (attention, gated MLP, two norms), last norm; 4 bytes each
    layer = 64 * (128 + 2 * 64) + 128 * 64 + 3 * 64 * 128 + 2 * 64
    assert result["weights_bytes"] == 4 * (2 * 64 * 1000 + 4 * layer + 64)


def test_weight_files_beside_the_config_count_as_they_are(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model-1.safetensors").write_bytes(bytes(700))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(300))
    assert run_json(f"--model {tmp_path / 'config.json'} --memory 1GiB --used 10")["weights_bytes"] == 1000


def test_more_paged_than_none_has_no_ratio() -> None:
    # given memory for less than one reservation
    result = run_json("--model llama-2-13b --memory 27GiB --weights 26GiB --reserve 2048 --used 256")
    assert result["contiguous"]["requests"] == 0
    assert result["paged"]["requests"] == 5  # 1 GiB / (256 x 819,200 B) = 5.12
    assert result["ratio"] is None


def test_a_reservation_beyond_the_context_is_noted_on_stderr() -> None:
    result = run("--model llama-2-13b --memory 80GiB --reserve 8192 --used 256 --json")
    assert "context of 4,096" in result.stderr
    assert json.loads(result.stdout)["reserve"] == 8192


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--model llama-2-70b --memory 80GiB --used 256", "not one request fits"),
        ("--model llama-2-13b --memory 80G --used 256", "--memory"),
        ("--model llama-2-13b --memory 0 --used 256", "--memory"),
        ("--model llama-2-13b --memory 80GiB --weights 26apples --used 256", "--weights"),
        ("--model llama-2-13b --memory 80GiB --used 0", "--used"),
        ("--model llama-2-13b --memory 80GiB --used ten", "--used"),
        ("--model llama-2-13b --memory 80GiB --used 256 --reserve -1", "--reserve"),
        ("--model llama-2-13b --memory 80GiB --used 256 --reserve 255", "does not fit in a reservation"),
        ("--model llama-2-13b --memory 80GiB --used 256 --block-size 12", "8, 16, 32, 64, 128"),
        ("--model llama-2-13b --memory 80GiB --used 256 --kv-dtype int3", "bfloat16"),
        ("--model no-such-model --memory 80GiB --used 256", "llama-2-13b"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: str, says: str) -> None:
    assert says in refusal(arguments)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"sliding_window": 128}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "not constant"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"mamba_d_state": 16}, "state"),
        ({"num_local_experts": 8}, "--weights"),
        ({"quantization_config": {}}, "--weights"),
        ({"model_type": "gpt_unknown"}, "--weights"),
    ],
)
def test_a_config_that_does_not_tell_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    assert says in refusal(f"--model {write(tmp_path, **changes)} --memory 1GiB --used 10")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{" * 10, b"[" * 100_000])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert "config.json" in refusal(f"--model {tmp_path} --memory 1GiB --used 10")


def test_a_window_as_wide_as_the_context_is_full_attention(tmp_path: Path) -> None:
    assert run_json(f"--model {write(tmp_path, sliding_window=512)} --memory 1GiB --used 10")["reserve"] == 512


def test_a_window_that_is_switched_off_is_full_attention(tmp_path: Path) -> None:
    folder = write(tmp_path, sliding_window=128, use_sliding_window=False)
    assert run_json(f"--model {folder} --memory 1GiB --used 10")["reserve"] == 512
