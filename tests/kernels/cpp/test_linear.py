"""Products with weights in panels: what is held, what is computed, and that no row depends on the others."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import kernels.cpp as cpp
from kernels.backend import torch_backend
from kernels.cpp.library import FORMS, Form, library
from kernels.cpp.linear import PanelLinear

TORCH = torch_backend()

SHAPES = [(32, 32), (64, 96), (40, 70), (1, 33), (97, 576), (576, 1536)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def held(packed: PanelLinear) -> torch.Tensor:
    """The weight [out, in] that products are made with: each is one product and a sum of zeros."""
    return cpp.linear(torch.eye(packed.in_features), packed).T


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_float32_and_bfloat16_weights_are_held_as_they_are(outputs: int, inputs: int) -> None:
    weight = random(outputs, inputs)

    assert torch.equal(held(cpp.pack_linear(weight, None, "float32")), weight)
    assert torch.equal(held(cpp.pack_linear(weight, None, "bf16")), weight.bfloat16().float())
    assert torch.equal(held(cpp.pack_linear(weight.bfloat16(), None, "bf16")), weight.bfloat16().float())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize(("form", "steps"), [("int8", 254), ("int4", 15)])
def test_fewer_bits_are_off_by_half_a_step_of_their_group_at_most(
    outputs: int, inputs: int, form: Form, steps: int
) -> None:
    weight = random(outputs, inputs)
    got = held(cpp.pack_linear(weight, None, form))

    for first in range(0, inputs, 32):
        group, found = weight[:, first : first + 32], got[:, first : first + 32]
        if form == "int8":  # from -largest to largest
            step = 2 * group.abs().amax(1) / steps
        else:  # from least to largest; zeros fill a last group up
            padded = functional.pad(group, (0, 32 - group.shape[1]))
            step = (padded.amax(1) - padded.amin(1)) / steps
        # scale and least are 16-bit floats for int4: 2^-11 of either, up to 15 times
        allowed = step * 0.51 + (padded.abs().amax(1) * 0.01 if form == "int4" else 0)
        assert ((group - found).abs().amax(1) <= allowed).all()


def test_numbers_of_a_4_bit_file_lose_nothing_but_their_own_rounding() -> None:
    """Q4_1: 32 numbers are q * scale + least, q of 0 to 15, both 16-bit floats; the converter rounds to bfloat16."""
    q = torch.randint(0, 16, (64, 3, 32), generator=torch.Generator().manual_seed(1)).float()
    q[..., 0], q[..., 1] = 0, 15
    scale, least = random(64, 3, 1).abs().half().float() * 0.1, random(64, 3, 1, seed=2).half().float()
    exact = (q * scale + least).reshape(64, 96)
    weight = exact.bfloat16()

    assert cpp.choose_form(weight) == "int4"
    error = (held(cpp.pack_linear(weight, None, "int4")) - exact).abs().reshape(64, 3, 32)
    rounding = (weight.float() - exact).abs().reshape(64, 3, 32).amax(-1)
    assert (error.amax(-1) <= 3 * rounding + 1e-3 * exact.abs().reshape(64, 3, 32).amax(-1)).all()


def test_numbers_that_lie_on_no_grid_get_8_bits() -> None:
    assert cpp.choose_form(random(64, 96)) == "int8"
    assert cpp.choose_form(random(64, 96).bfloat16()) == "int8"
    assert cpp.choose_form(random(64, 31)) == "int8"  # no group to look at


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 70, 200])
def test_products(form: Form, outputs: int, inputs: int, rows: int) -> None:
    packed = cpp.pack_linear(random(outputs, inputs), random(outputs, seed=3), form)
    x = random(rows, inputs, seed=4)

    expected = taken(x, form).double() @ held_without_bias(packed).T.double() + packed.bias.double()
    torch.testing.assert_close(cpp.linear(x, packed), expected.float(), rtol=1e-4, atol=3e-4)


def taken(x: torch.Tensor, form: Form) -> torch.Tensor:
    """The inputs that a product is made with: whole numbers times a scale of their group, where the weights are such
    and this CPU multiplies those."""
    limit = library().pagechat_input_limit(FORMS.index(form))
    if not limit:
        return x
    groups = functional.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    largest = groups.abs().amax(2, keepdim=True)
    inverse = torch.tensor(float(limit)) / largest  # `limit / largest` would be a product with the reciprocal
    return ((groups.double() * inverse).round().float() * (largest / limit)).flatten(1)[:, : x.shape[1]]


def held_without_bias(packed: PanelLinear) -> torch.Tensor:
    zero = cpp.linear(torch.zeros(1, packed.in_features), packed)
    return held(packed) - zero.T if packed.bias is not None else held(packed)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_to_the_last_bit_alone_and_among_others(form: Form) -> None:
    packed = cpp.pack_linear(random(160, 600), None, form)
    norm, x = random(600, seed=5), random(256, 600, seed=6)
    whole, gated = cpp.norm_linear(x, norm, 1e-5, packed), cpp.norm_swiglu(x[:, :], norm, 1e-5, half_of(form))
    for first, count in ((0, 1), (5, 1), (5, 2), (17, 3), (3, 33), (100, 156), (255, 1)):
        some = x[first : first + count]
        assert torch.equal(cpp.norm_linear(some, norm, 1e-5, packed), whole[first : first + count])
        assert torch.equal(cpp.norm_swiglu(some, norm, 1e-5, half_of(form)), gated[first : first + count])


def half_of(form: Form) -> PanelLinear:
    packed = cpp.pack_linear(random(128, 600, seed=7), None, form)
    assert isinstance(packed, PanelLinear)
    return packed


@pytest.mark.parametrize("outputs", [64, 128, 72])
@pytest.mark.parametrize("with_bias", [False, True])
def test_norm_swiglu_and_sum_are_torchs(outputs: int, with_bias: bool) -> None:
    """72: gate and up of an output are not in the same place of two panels."""
    weight, bias = random(outputs, 96), random(outputs, seed=1) if with_bias else None
    norm, x = random(96, seed=2), random(9, 96, seed=3)
    packed, plain = cpp.pack_linear(weight, bias, "float32"), TORCH.pack_linear(weight, bias)

    torch.testing.assert_close(cpp.norm_linear(x, norm, 1e-5, packed), TORCH.norm_linear(x, norm, 1e-5, plain))
    torch.testing.assert_close(
        cpp.norm_swiglu(x, norm, 1e-5, packed), TORCH.norm_swiglu(x, norm, 1e-5, plain), rtol=1e-5, atol=3e-5
    )
    sums = [random(9, outputs, seed=4) for _ in range(2)]
    cpp.add_linear(x, packed, sums[0])
    TORCH.add_linear(x, plain, sums[1])
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=3e-5)


def test_a_swiglu_of_large_numbers_is_no_nan() -> None:
    weight = torch.cat((torch.full((32, 32), 50.0), torch.full((32, 32), 1.0)))
    packed = cpp.pack_linear(weight, None, "float32")
    x = torch.tensor([1.0, -1.0])[:, None].repeat(1, 32)

    gate, up = (x @ weight.T).chunk(2, 1)
    torch.testing.assert_close(
        cpp.norm_swiglu(x, torch.ones(32), 0.0, packed), functional.silu(gate) * up, atol=1e-4, rtol=1e-4
    )
