"""The other GPU kernels in Triton's interpreter, against their torch twins."""

from __future__ import annotations

import pytest
import torch

import kernels.torch as plain
import kernels.triton as triton_kernels
from kernels.backend import SpanTable
from kernels.triton import launch
from kernels.triton.copies import patch_tables
from kernels.triton.elementwise import embed_tokens


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norm_and_swiglu(dtype: torch.dtype) -> None:
    x, weight = random(3, 96).to(dtype), random(96, seed=1).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-3

    torch.testing.assert_close(
        triton_kernels.rms_norm(x, weight, 1e-5), plain.rms_norm(x, weight, 1e-5), rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(triton_kernels.silu_and_mul(x), plain.silu_and_mul(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("gate", "add"), [(False, False), (True, False), (False, True)])
def test_products_of_few_rows(with_bias: bool, gate: bool, add: bool) -> None:
    """Sizes that fill no tile, as those of small models."""
    x, weight = random(3, 80), random(36, 80, seed=1) / 9
    bias = random(36, seed=2) if with_bias else None
    packed = plain.pack_linear(weight, bias)
    columns = 18 if gate else 36
    out = random(3, columns, seed=4)
    before = out.clone()

    launch._few_rows(x, triton_kernels.pack_linear(weight, bias), out, gate=gate, add=add)

    product = plain.linear(x, packed)
    wanted = plain.silu_and_mul(product.clone()) if gate else product + before if add else product
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_few_rows_of_float16_take_the_kernel_that_reads_each_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = random(3, 80).half(), (random(36, 80, seed=1) / 9).half(), random(36, seed=2).half()
    packed, norm, residual = triton_kernels.pack_linear(weight, bias), torch.ones(80).half(), random(3, 36).half()
    wanted = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    before = residual.float()
    monkeypatch.setattr(launch.functional, "linear", None)  # cuBLAS' way

    triton_kernels.add_linear(x, packed, residual)

    torch.testing.assert_close(triton_kernels.linear(x, packed).float(), wanted, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(residual.float(), before + wanted, rtol=2e-3, atol=4e-3)
    assert triton_kernels.norm_swiglu(x, norm, 1e-6, packed).shape == (3, 18)


@pytest.mark.parametrize("with_norms", [False, True])
def test_norm_rotation_and_kv_write(with_norms: bool) -> None:
    spans = [SpanTable(33, 1, [4, 2, 5]), SpanTable(0, 18, [1, 3]), SpanTable(15, 2, [6, 7])]
    heads, kv_heads, head_dim = 3, 1, 24
    qkv, norms = random(21, 5, 24), (random(24, seed=1), random(24, seed=2), 1e-6) if with_norms else None
    inv_freq = 1 / 100 ** (torch.arange(0, 24, 2) / 24)

    def run(implementation: object) -> tuple[torch.Tensor, torch.Tensor]:
        kv = torch.zeros(9, 2, 1, 16, 24)
        plan = implementation.plan_attention(  # type: ignore[attr-defined]
            spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=kv.dtype, device="cpu"
        )
        angles = implementation.rope_angles(plan.positions, inv_freq, 1.5, kv.dtype)  # type: ignore[attr-defined]
        return implementation.rope_and_cache_kv(qkv.clone(), heads, angles, kv, plan, norms), kv  # type: ignore[attr-defined]

    for got, wanted in zip(run(triton_kernels), run(plain), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_blocks_are_copied_even_where_one_is_read_and_written() -> None:
    pool, host = random(9, 2, 1, 4, 6), torch.zeros(5, 2, 1, 4, 6)
    before = pool.clone()

    triton_kernels.copy_blocks(pool, [(3, 8), (3, 1)])
    triton_kernels.copy_blocks(pool, [(8, 5), (5, 6)])
    triton_kernels.move_blocks(pool, host, [(1, 4), (6, 0)])

    assert torch.equal(pool[[8, 1, 5, 6]], before[[3, 3, 3, 5]])
    assert torch.equal(host[[4, 0]], before[[3, 5]])


def test_tables_are_patched_and_negative_ids_name_a_rows_newest_token() -> None:
    tables = torch.zeros(4, 6, dtype=torch.int32)
    patches = torch.tensor([[1, 0, 7], [3, 5, 9], [2, 2, 99]], dtype=torch.int32)

    patch_tables[(1,)](tables, patches, torch.tensor([2]), 6, BLOCK=16, PDL=False)

    wanted = torch.zeros(4, 6, dtype=torch.int32)
    wanted[1, 0], wanted[3, 5] = 7, 9
    assert torch.equal(tables, wanted)
    embedding, newest, out = random(20, 48), torch.tensor([4, 11, 17]), torch.empty(3, 48)
    embed_tokens[(3, 3)](torch.tensor([6, -1, -3]), newest, embedding, out, 48, BLOCK=16, PDL=False)
    assert torch.equal(out, embedding[[6, 4, 17]])


def test_empty_moves_do_nothing() -> None:
    pool = random(2, 2, 1, 4, 6)
    before = pool.clone()

    triton_kernels.copy_blocks(pool, [])
    triton_kernels.move_blocks(pool, pool.clone(), [])

    assert torch.equal(pool, before)
