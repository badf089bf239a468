"""The runner for a model's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.execution.runner import Runner

if TYPE_CHECKING:
    from engine.models.loading.load import LoadedModel


def make_runner(
    model: LoadedModel, num_blocks: int, block_size: int, host_slots: int = 0, max_running: int = 256
) -> Runner:
    """`max_running` sequences at most will be in a step."""
    if model.device == "cpu":
        return Runner(model, num_blocks, block_size, host_slots)
    from engine.execution.cuda.runner import CudaRunner  # needs Triton

    return CudaRunner(model, num_blocks, block_size, host_slots, max_running)
