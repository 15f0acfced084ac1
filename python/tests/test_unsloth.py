"""Replacements of unsloth's FP8 functions: every form of scales, grids that are checked, and the calls that fail there."""

import pytest
import torch

import moe64
from moe64.compat import unsloth


def test_weight_dequant_block_checks_its_grid():
    x = (torch.randn(130, 70) * 3).to(torch.float8_e4m3fn)
    s = torch.rand(2, 1) + 0.5
    y = unsloth.weight_dequant_block(x, s, 128, torch.float32)
    assert torch.equal(y, x.float() * s.repeat_interleave(128, 0)[:130])
    with pytest.raises(moe64.ShapeMismatchError, match=r"expected \[2, 1\]"):
        unsloth.weight_dequant_block(x, s[:1])
    rectangular = torch.rand(3, 2)
    y = unsloth.weight_dequant_block(x, rectangular, (64, 48), torch.float32)
    assert torch.equal(y, x.float() * rectangular.repeat_interleave(64, 0)[:130].repeat_interleave(48, 1)[:, :70])


def test_weight_dequant_takes_every_form_and_refuses_the_rest():
    x = torch.randn(12, 20).to(torch.float8_e4m3fn)
    for s, grown in ((torch.tensor(0.5), 0.5), (torch.rand(12, 1), None), (torch.rand(12), None)):
        expected = x.float() * (grown if grown else s.view(-1, 1))
        assert torch.equal(unsloth.weight_dequant(x, s, torch.float32), expected)
        assert torch.equal(unsloth.weight_dequant(x, s), expected.bfloat16())
    column = torch.rand(20, 1)
    assert torch.equal(unsloth.weight_dequant(x, column, torch.float32), x.float() * column.view(1, -1))
    grid = torch.rand(1, 1)
    assert torch.equal(unsloth.weight_dequant(x, grid, torch.float32), x.float() * grid)
    with pytest.raises(moe64.ShapeMismatchError, match="neither"):
        unsloth.weight_dequant(x, torch.rand(3, 2))
    with pytest.raises(moe64.MissingScaleError):
        unsloth.weight_dequant(x, None)


def test_a_block_grid_of_one_column_is_not_a_row_scale():
    x = torch.randn(300, 100).to(torch.float8_e4m3fn)
    s = torch.rand(3, 1)
    assert torch.equal(unsloth.weight_dequant(x, s, torch.float32), x.float() * s.repeat_interleave(128, 0)[:300])


def test_act_quant_has_partial_blocks_and_exact_zeros():
    x = torch.randn(2, 3, 200)
    x[0, 0, :128] = 0
    y, s = unsloth.act_quant(x)
    assert y.shape == x.shape and s.shape == (2, 3, 2) and s[0, 0, 0] == 1 and (y[0, 0, :128].float() == 0).all()
    back = y.float() * s.repeat_interleave(128, -1)[..., :200]
    assert (back - x).abs().max() <= x.abs().max() / 16


@pytest.mark.parametrize("form", ["tensor", "row", "flat", "block", "small_block"])
def test_fp8_linear_keeps_its_bias_in_every_form(form):
    weight = torch.randn(60, 100).to(torch.float8_e4m3fn)
    scale = {"tensor": torch.tensor(0.3), "row": torch.rand(60, 1), "flat": torch.rand(60), "block": torch.rand(1, 1),
             "small_block": torch.rand(2, 4)}[form]
    if form == "small_block":
        weight.block_size = [32, 25]
        exact = unsloth.weight_dequant_block(weight, scale, (32, 25), torch.float32)
    else:
        exact = unsloth.weight_dequant(weight, scale, torch.float32)
    x = torch.randn(2, 5, 100, requires_grad=True)
    bias = torch.randn(60, requires_grad=True)
    y = unsloth.fp8_linear(x, weight, scale, bias)
    truth = torch.nn.functional.linear(x, exact, bias)
    torch.testing.assert_close(y, truth, rtol=1e-4, atol=1e-4)
    dy = torch.randn_like(y)
    for one, other in zip(torch.autograd.grad(y, (x, bias), dy), torch.autograd.grad(truth, (x, bias), dy)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with pytest.raises(moe64.ShapeMismatchError):
        unsloth.fp8_linear(x, weight, torch.rand(7, 3))


@pytest.mark.parametrize("shape, block, scale_shape", [((8, 8), (128, 128), (1, 1)), ((64, 256), (64, 128), (1, 2)),
                                                       ((128, 96), (64, 64), (2, 2))])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "e8m0"])
def test_fp8_linear_of_tiny_weights_rectangular_blocks_and_every_scale(shape, block, scale_shape, stored, device):
    """Unsloth's own cases: the block is an attribute of the weight or of the scale, scales are also powers of two."""
    if stored == "e8m0" and not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip("this torch has no e8m0")
    weight = torch.randn(shape, device=device).to(torch.float8_e4m3fn)
    exponents = torch.randint(120, 130, scale_shape, device=device)
    scale = torch.exp2(exponents.float() - 127)
    given = (exponents.to(torch.uint8).view(torch.float8_e8m0fnu) if stored == "e8m0" else scale.to(getattr(torch, stored)))
    (weight if stored == "float32" else given).block_size = list(block)
    exact = weight.float() * scale.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
    x = torch.randn(2, 3, shape[1], device=device, requires_grad=True)
    y = unsloth.fp8_linear(x, weight, given)
    truth = torch.nn.functional.linear(x, exact)
    torch.testing.assert_close(y, truth, rtol=1e-4, atol=1e-4)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(truth, x, dy), rtol=1e-4, atol=1e-4)
    assert torch.equal(unsloth.weight_dequant_block(weight, given, block, torch.float32), exact)


def test_a_grid_is_never_turned():
    """unsloth takes W.t() with the scales of W by their shape, and is wrong where W is square: here the caller says so."""
    weight = torch.randn(60, 100).to(torch.float8_e4m3fn)
    weight.block_size = [32, 32]
    scale, x = torch.rand(2, 4), torch.randn(5, 100)
    turned = scale.t().contiguous()
    with pytest.raises(moe64.ShapeMismatchError, match=r"is \[4, 2\], expected \[2, 4\].*weight_scale\.t\(\)"):
        unsloth.fp8_linear(x, weight, turned)
    assert torch.equal(unsloth.fp8_linear(x, weight, turned.t()), unsloth.fp8_linear(x, weight, scale))
    with pytest.raises(moe64.ShapeMismatchError, match=r"expected \[2, 4\]"):
        unsloth.fp8_linear(x, weight, torch.rand(3, 4))
