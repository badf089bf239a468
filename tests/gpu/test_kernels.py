"""Each kernel on the GPU against float32, by FlashAttention 3's rule: at most twice the error of torch in that dtype.

Inputs are fresh and random, unwritten KV and outputs are NaN, shapes include those of vLLM's own kernel tests.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import kernels.torch as plain
import kernels.triton as triton_kernels
from kernels.triton import launch
from kernels.triton.plan import plan_decode
from tests.gpu.scenes import Scene, make_scene, plain_attention

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def assert_as_good_as_torch(got: Tensor, exact: Tensor, torchs: Tensor) -> None:
    error, allowed = (got.float() - exact).abs(), (torchs.float() - exact).abs()
    assert not got.isnan().any()
    assert error.max() <= 2 * allowed.max() + 1e-5
    assert error.mean() <= 1.5 * allowed.mean() + 1e-6


def attend(scene: Scene, block_size: int, scale: float, **options: float) -> Tensor:
    heads, dtype = scene.heads, scene.qkv.dtype
    plan = triton_kernels.plan_attention(
        scene.spans,
        heads=heads,
        kv_heads=scene.kv.shape[2],
        head_dim=scene.kv.shape[-1],
        block_size=block_size,
        dtype=dtype,
        device="cuda",
    )
    plan.parts.fill_(float("nan"))
    plan.lse.fill_(float("nan"))
    q = triton_kernels.rope_and_cache_kv(scene.qkv.clone(), heads, None, scene.kv, plan)
    return triton_kernels.paged_attention(q, scene.kv, plan, scale, **options)


VLLM_PREFILL = [(1327, 1), (13, 5), (334, 129)]
"""(query, key lengths) (1, 1328), (5, 18), (129, 463) of vLLM's tests/kernels/attention."""
VLLM_DECODE = [(522, 1), (36, 1), (2010, 1)]
BORDERS = [(0, 1), (15, 1), (16, 1), (127, 1), (128, 1), (0, 64), (5, 3), (64, 64), (255, 2), (0, 257)]


@pytest.mark.parametrize("spans", [VLLM_PREFILL, VLLM_DECODE, BORDERS], ids=["vllm prefill", "vllm decode", "borders"])
@pytest.mark.parametrize(
    ("block_size", "heads", "kv_heads", "head_dim"),
    [
        (16, 4, 4, 128),
        (16, 8, 2, 128),
        (32, 8, 2, 128),
        (64, 8, 2, 128),
        (128, 8, 2, 128),
        (16, 5, 1, 64),
        (16, 9, 3, 64),
        (32, 8, 2, 96),
        (16, 8, 2, 256),
        (16, 24, 1, 128),
        (32, 71, 1, 64),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(
    spans: list[tuple[int, int]], block_size: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    scene = make_scene(
        spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype, seed=block_size
    )
    scale = head_dim**-0.5

    got = attend(scene, block_size, scale)

    exact = plain_attention(scene, scale, torch.float32)
    assert_as_good_as_torch(got, exact, plain_attention(scene, scale, dtype))


@pytest.mark.parametrize(("window", "soft_cap"), [(256, 0.0), (0, 50.0), (33, 30.0)])
def test_sliding_window_and_soft_cap(window: int, soft_cap: float) -> None:
    scene = make_scene(
        [*VLLM_PREFILL, *VLLM_DECODE], heads=8, kv_heads=2, head_dim=128, block_size=16, dtype=torch.bfloat16
    )

    got = attend(scene, 16, 0.1, window=window, soft_cap=soft_cap)

    exact = plain_attention(scene, 0.1, torch.float32, window, soft_cap)
    assert_as_good_as_torch(got, exact, plain_attention(scene, 0.1, torch.bfloat16, window, soft_cap))


def test_a_pool_whose_numbers_32_bits_cannot_address() -> None:
    """32,768 blocks of 64 tokens: the last block starts beyond 2**31 numbers."""
    scene = make_scene(
        [*VLLM_PREFILL, *VLLM_DECODE],
        heads=8,
        kv_heads=8,
        head_dim=128,
        block_size=64,
        dtype=torch.bfloat16,
        num_blocks=32768,
    )
    assert scene.kv.numel() > 2**31

    got = attend(scene, 64, 0.1)

    exact = plain_attention(scene, 0.1, torch.float32)
    assert_as_good_as_torch(got, exact, plain_attention(scene, 0.1, torch.bfloat16))


@pytest.mark.parametrize("sequences", [2, 4, 37, 200])
@pytest.mark.parametrize("shared", [512, 2048])
def test_blocks_read_once_for_all_give_what_each_alone_gives(sequences: int, shared: int) -> None:
    """A tree: half of the sequences share twice as much; and one shares nothing."""
    block_size, heads, kv_heads, head_dim = 16, 8, 2, 128
    deep = sequences // 2
    lengths = [2 * shared + 30 + 3 * i if i < deep else shared + 30 + 3 * i for i in range(sequences)] + [900]
    scene = make_scene(
        [(n - 1, 1) for n in lengths],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.bfloat16,
    )
    tables = [list(span.table) for span in scene.spans]
    for i in range(1, sequences):
        common = 2 * shared if i < deep else shared
        tables[i][: common // block_size] = tables[0][: common // block_size]
        scene.keys[i][:, :common], scene.values[i][:, :common] = scene.keys[0][:, :common], scene.values[0][:, :common]
    plan, order = plan_decode(
        lengths, tables, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, device="cuda"
    )
    qkv = scene.qkv[torch.from_numpy(order).cuda().long()]
    q = triton_kernels.rope_and_cache_kv(qkv, heads, None, scene.kv, plan)

    got = triton_kernels.paged_attention(q, scene.kv, plan, 0.1)

    assert plan.merges.grid >= sequences
    inverse = torch.from_numpy(order).cuda().long().argsort()
    exact = plain_attention(scene, 0.1, torch.float32)
    assert_as_good_as_torch(got[inverse], exact, plain_attention(scene, 0.1, torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 300])
@pytest.mark.parametrize(("out", "inputs"), [(6144, 4096), (960, 576), (576, 1536), (98, 80)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products(rows: int, out: int, inputs: int, with_bias: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(rows + out)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator, device="cuda") * scale).bfloat16()

    x, weight, norm, residual = random(rows, inputs), random(out, inputs, scale=0.05), random(inputs), random(rows, out)
    bias = random(out) if with_bias else None
    packed = launch.pack_linear(weight, bias)

    def formulas(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
        normal = functional.rms_norm(x.to(dtype), (inputs,), norm.to(dtype), 1e-5)
        product = functional.linear(normal, w, b)
        gate, up = product.chunk(2, -1)
        return product, functional.silu(gate) * up, residual.to(dtype) + functional.linear(x.to(dtype), w, b)

    added = residual.clone()
    launch.add_linear(x, packed, added)
    got = (launch.norm_linear(x, norm, 1e-5, packed), launch.norm_swiglu(x, norm, 1e-5, packed), added)

    for mine, exact, torchs in zip(got, formulas(torch.float32), formulas(torch.bfloat16), strict=True):
        assert_as_good_as_torch(mine, exact, torchs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (9, 3, 64), (5, 1, 80)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_norm_rotation_and_kv_write(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, with_norms: bool
) -> None:
    spans, block_size = [(3000, 1), (0, 40), (77, 5)], 16
    scene = make_scene(spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype)
    settings = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size, "device": "cuda"}
    inv_freq = 1 / 10000 ** (torch.arange(0, head_dim, 2, device="cuda") / head_dim)
    weights = torch.rand(2, head_dim, device="cuda").to(dtype)
    norms = (weights[0], weights[1], 1e-6) if with_norms else None

    def run(implementation: object, as_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        kv = scene.kv.to(as_dtype, copy=True)
        plan = implementation.plan_attention(scene.spans, dtype=as_dtype, **settings)  # type: ignore[attr-defined]
        angles = implementation.rope_angles(plan.positions, inv_freq, 1.0, as_dtype)  # type: ignore[attr-defined]
        own = tuple(n.to(as_dtype) if isinstance(n, Tensor) else n for n in norms) if norms else None
        q = implementation.rope_and_cache_kv(scene.qkv.to(as_dtype, copy=True), heads, angles, kv, plan, own)  # type: ignore[attr-defined]
        return q, kv

    got, exact, torchs = run(triton_kernels, dtype), run(plain, torch.float32), run(plain, dtype)

    assert_as_good_as_torch(got[0], exact[0], torchs[0])
    assert torch.equal(got[1].isnan(), exact[1].isnan())
    assert_as_good_as_torch(*(kv.nan_to_num() for kv in (got[1], exact[1], torchs[1])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_move_within_the_pool_and_to_the_host_and_back(dtype: torch.dtype) -> None:
    pool = torch.randn(300, 2, 3, 16, 64, device="cuda").to(dtype)
    host = torch.zeros(40, 2, 3, 16, 64, dtype=dtype, pin_memory=True)
    before = pool.clone()

    triton_kernels.copy_blocks(pool, [(5, 299), (5, 1), (7, 2)])
    triton_kernels.copy_blocks(pool, [(299, 10), (10, 11)])  # 10 is read as it was
    triton_kernels.move_blocks(pool, host, [(299, 0), (11, 39)])
    pool[3] = 0
    triton_kernels.move_blocks(host, pool, [(39, 3), (0, 4)])

    torch.cuda.synchronize()
    assert torch.equal(pool[[299, 1, 2, 10, 11, 3, 4]], before[[5, 5, 7, 5, 10, 10, 5]])
    untouched = [i for i in range(300) if i not in (299, 1, 2, 10, 11, 3, 4)]
    assert torch.equal(pool[untouched], before[untouched])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 4096), (7, 576), (3, 5, 96)])
def test_norm_and_swiglu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape, device="cuda").to(dtype), torch.rand(shape[-1], device="cuda").to(dtype)
    exact = functional.rms_norm(x.float(), weight.shape, weight.float(), 1e-5)
    assert_as_good_as_torch(
        triton_kernels.rms_norm(x, weight, 1e-5), exact, functional.rms_norm(x, weight.shape, weight, 1e-5)
    )
    x = x.reshape(-1, shape[-1])
    gate, up = x.float().chunk(2, -1)
    assert_as_good_as_torch(
        triton_kernels.silu_and_mul(x), functional.silu(gate) * up, functional.silu(gate.to(dtype)) * up.to(dtype)
    )
