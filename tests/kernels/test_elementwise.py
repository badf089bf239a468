"""The small operations and the matrix product, against their textbook formulas in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.backend import torch_backend

TORCH = torch_backend()

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normalized(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 300.0])
def test_rms_norm(dtype: torch.dtype, tolerance: float, magnitude: float) -> None:
    """With small inputs eps is what counts."""
    x, weight = random(5, 48, dtype=dtype) * magnitude, random(48, dtype=dtype, seed=1)

    got = TORCH.rms_norm(x, weight, 1e-5)

    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), normalized(x, weight, 1e-5), rtol=tolerance, atol=tolerance)


def test_rms_norm_of_the_heads_within_a_wider_tensor() -> None:
    qkv, weight = random(5, 8, 16), random(16, seed=1)

    got = TORCH.rms_norm(qkv[:, :4], weight, 1e-6)

    torch.testing.assert_close(got.double(), normalized(qkv[:, :4], weight, 1e-6), rtol=1e-5, atol=1e-5)


def test_products_with_what_stands_before_and_after_them() -> None:
    x, norm = random(5, 48), random(48, seed=1)
    wide, square = random(40, 48, seed=2) / 7, random(48, 48, seed=3) / 7
    residual = random(5, 48, seed=4)
    normal = normalized(x, norm, 1e-5)
    gate, up = (normal @ wide.double().T).chunk(2, -1)
    added = residual.double() + x.double() @ square.double().T

    product = TORCH.norm_linear(x, norm, 1e-5, TORCH.pack_linear(wide))
    gated = TORCH.norm_swiglu(x, norm, 1e-5, TORCH.pack_linear(wide))
    TORCH.add_linear(x, TORCH.pack_linear(square), residual)

    torch.testing.assert_close(product.double(), normal @ wide.double().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gated.double(), gate * torch.sigmoid(gate) * up, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(residual.double(), added, rtol=1e-5, atol=1e-5)


def test_silu_mul() -> None:
    gate_up = random(3, 20)
    gate, up = gate_up.double().chunk(2, -1)

    got = TORCH.silu_and_mul(gate_up)

    torch.testing.assert_close(got.double(), gate * torch.sigmoid(gate) * up, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [*DTYPES, (torch.float16, 2e-3)])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype: torch.dtype, tolerance: float, rows: int, with_bias: bool) -> None:
    x, weight = random(rows, 48, dtype=dtype), random(33, 48, dtype=dtype, seed=1) / 7
    bias = random(33, dtype=dtype, seed=2) if with_bias else None

    got = TORCH.linear(x, TORCH.pack_linear(weight, bias))

    expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's own count of pages")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_pool_is_zero_and_takes_no_memory_before_it_is_written(dtype: torch.dtype) -> None:
    """A gibibyte, of which only the pages that are looked at become resident."""

    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = resident_pages()
    pool = TORCH.new_kv((1 << 30) // (2 * 3 * 16 * 64 * dtype.itemsize), 3, 16, 64, dtype)
    grown = (resident_pages() - before) * 4096

    assert grown < 16 << 20
    assert pool.dtype == dtype
    assert pool.is_contiguous()
    assert not pool[:5].any()
    assert not pool[-5:].any()
