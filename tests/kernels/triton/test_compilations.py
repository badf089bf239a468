"""After warm-up no step needs a kernel that was not compiled then, whatever its sizes; what is compiled is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import kernels.torch as plain
import kernels.triton as triton_kernels
from kernels.triton import warm_up
from kernels.triton.compilations import compilations

ROOT = Path(__file__).parents[3]


def unlaunched(*arguments: str, cache: Path) -> dict[str, Any]:
    """What tests/kernels/triton/unlaunched.py says: a process of its own, since here kernels are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.triton.unlaunched", *arguments],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "head_dim"),
    [("bfloat16", 4, 2, 16), ("float16", 24, 1, 20), ("float32", 6, 6, 16)],
)
def test_steps_of_all_sizes_need_nothing_that_was_not_compiled_before(
    dtype: str, heads: int, kv_heads: int, head_dim: int, tmp_path: Path
) -> None:
    found = unlaunched("steps", dtype, str(heads), str(kv_heads), str(head_dim), cache=tmp_path)

    assert found["later"] == []
    assert found["since ready"] == 0
    assert found["after a float64"] == 1  # the count counts
    assert 15 <= found["made ready"] <= 40
    assert [done for _, done, _ in found["told"]] == list(range(found["made ready"]))
    assert {total for *_, total in found["told"]} == {found["made ready"]}


def test_a_kernel_is_compiled_once_and_comes_from_the_cache_the_next_time(tmp_path: Path) -> None:
    found = unlaunched("hooks", cache=tmp_path)

    assert (found["variants"], found["compiled"]) == (2, 1)
    assert found["told"] == [["silu_and_mul", 0, 1]] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about the interpreter")
def test_where_kernels_are_interpreted_nothing_is_compiled_and_every_variant_runs() -> None:
    norm, inv_freq = torch.ones(32), torch.ones(8)
    qkv, out, gate_up, down, head = (
        triton_kernels.pack_linear(torch.ones(outputs, inputs), None)
        for outputs, inputs in ((64, 32), (32, 32), (96, 32), (32, 48), (50, 32))
    )

    def forward(residual: torch.Tensor, kv: Any, plan: Any) -> torch.Tensor:
        angles = triton_kernels.rope_angles(plan.positions, inv_freq, 1.0, torch.float32)
        for pool in kv:
            x = triton_kernels.norm_linear(residual, norm, 1e-6, qkv).view(len(residual), -1, 16)
            q = triton_kernels.rope_and_cache_kv(x, 2, angles, pool, plan)
            triton_kernels.add_linear(triton_kernels.paged_attention(q, pool, plan, 0.25).flatten(1), out, residual)
            triton_kernels.add_linear(triton_kernels.norm_swiglu(residual, norm, 1e-6, gate_up), down, residual)
        return residual

    model = warm_up.Model(
        heads=2,
        kv_heads=1,
        head_dim=16,
        block_size=16,
        layers=2,
        dtype=torch.float32,
        embedding=torch.ones(50, 32),
        forward=forward,
        logits=lambda hidden: triton_kernels.norm_linear(hidden, norm, 1e-6, head),
    )
    warm_up.compile_all(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # integers of the interpreter wrap around, as they should
        warm_up.launch_all(model)

    assert (compilations.variants, compilations.since_mark) == (0, 0)


def test_rows_at_an_odd_address_are_normalised_as_any_other() -> None:
    """Some rows of a tensor of odd width: the kernel takes a copy, for which it was compiled."""
    x, weight = torch.randn(5, 37, generator=torch.Generator().manual_seed(0)), torch.ones(37)

    got = triton_kernels.rms_norm(x[1:4], weight, 1e-5)

    torch.testing.assert_close(got, plain.rms_norm(x[1:4], weight, 1e-5), rtol=1e-5, atol=1e-5)
