"""The size of the KV pool: as asked for, or a share of what is free, and never more than there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models import ModelError, load
from engine.models.loading.load import LoadedModel
from engine.process import available, memory
from engine.process.config import EngineConfig
from tests.models import tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 16 * 2 * 2 * 2 * 16 * 4
"""Bytes of a block: slots, keys and values, layers, key/value heads, head_dim, float32."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tiny_llama(tmp_path_factory.mktemp("model"))
    return load(directory, EngineConfig(model=str(directory), dtype="float32"), lambda _: None)


def free(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: nbytes)


def test_a_number_of_blocks_is_taken_as_it_is(model: LoadedModel) -> None:
    assert memory.choose_num_blocks(EngineConfig(num_blocks=77), model) == 77


def test_kv_memory_holds_the_blocks_and_the_null_block(model: LoadedModel) -> None:
    assert memory.choose_num_blocks(EngineConfig(kv_memory=10 * BLOCK), model) == 9
    assert memory.choose_num_blocks(EngineConfig(kv_memory=11 * BLOCK - 1), model) == 9


def test_without_a_wish_a_quarter_of_the_free_memory_is_taken(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 4000 * BLOCK)

    assert memory.choose_num_blocks(EngineConfig(), model) == 999


def test_of_much_memory_two_gibibytes_are_taken(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1 << 40)

    assert memory.choose_num_blocks(EngineConfig(), model) == (2 << 30) // BLOCK - 1


def test_one_sequence_of_full_length_may_take_more(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 tokens are 32 blocks; a quarter of 60 blocks would be too few."""
    free(monkeypatch, 60 * BLOCK)

    assert memory.choose_num_blocks(EngineConfig(), model) == 32


@pytest.mark.parametrize("config", [EngineConfig(num_blocks=1000), EngineConfig(kv_memory=999 * BLOCK), EngineConfig()])
def test_what_does_not_fit_is_refused_with_numbers(
    config: EngineConfig, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 2 * BLOCK)

    with pytest.raises(ModelError, match="free on cpu"):
        memory.choose_num_blocks(config, model)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")

    assert available._cgroup_available(tmp_path) == [600_000]


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("400000\n")

    assert available._cgroup_available(tmp_path) == []
