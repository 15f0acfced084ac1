"""Dense FP8 layers of Transformers that moe64 runs: the products and gradients of the dequantised matrices, on any device."""

import copy

import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate", reason="fine-grained FP8 needs accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64 import dense  # noqa: E402
from moe64.transformers import CodeLinear  # noqa: E402
from test_transformers import near  # noqa: E402
from transformers.integrations.finegrained_fp8 import FP8Linear  # noqa: E402

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def layer(out, width, block, bias=True, scheme="dynamic", device="cpu", scales=None):
    """A served FP8Linear, and its matrix in float32."""
    made = FP8Linear(width, out, block_size=block, activation_scheme=scheme, has_bias=bias)
    q = moe64.quantize(torch.randn(out, width), "tensor" if block is None else f"block:{block[0]}x{block[1]}")
    if scales is not None:
        q.scales = q.scales.log2().ceil().exp2().to(scales)
    with torch.no_grad():
        made.weight.copy_(q.values)
        made.weight_scale_inv = torch.nn.Parameter(q.scales.reshape(made.weight_scale_inv.shape), requires_grad=False)
        if bias:
            made.bias.normal_()
    assert moe64.transformers.serve(torch.nn.Sequential(made)) == ["0"]
    return made.to(device), moe64.dequantize(q, dtype=torch.float32).to(device)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("shape", [(96, 64, (32, 32)), (50, 37, (32, 16)), (1, 1, (128, 128)), (128, 129, None),
                                   (200, 130, (128, 128))], ids=str)
def test_products_and_gradients_are_those_of_the_dequantised_matrix(shape, dtype, device):
    linear, matrix = layer(*shape, device=device)
    linear.activation_scheme = "none"  # or a Hopper would quantise x too
    assert isinstance(linear, CodeLinear) and isinstance(linear, FP8Linear)
    x = torch.randn(2, 3, shape[1], dtype=dtype, device=device, requires_grad=True)
    dy = torch.randn(2, 3, shape[0], dtype=dtype, device=device)
    y = linear(x)
    assert y.shape == dy.shape and y.dtype == dtype
    near(y, F.linear(x.float(), matrix, linear.bias), BOUNDS[dtype], "y")
    y.backward(dy)
    near(x.grad, dy.float() @ matrix, BOUNDS[dtype], "dx")
    near(linear.bias.grad, dy.float().sum((0, 1)), BOUNDS[dtype], "d_bias")
    assert linear.weight.grad is None and linear.weight_scale_inv.grad is None
    turned = x.detach().reshape(6, -1).t().contiguous().t()  # columns apart
    assert torch.equal(linear(turned), y.reshape(6, -1))
    assert torch.equal(linear(x[0, 0]), y[0, 0]) and torch.equal(linear(x.detach()), y)  # any leading dimensions


@pytest.mark.parametrize("scales", ["float8_e8m0fnu", "bfloat16"])
def test_scales_of_other_types_are_multiplied(scales):
    linear, matrix = layer(96, 64, (32, 32), scales=getattr(torch, scales))
    assert linear.weight_scale_inv.dtype == getattr(torch, scales)
    x = torch.randn(5, 64)
    near(linear(x), F.linear(x, matrix, linear.bias), 1e-5, "y")


def test_no_tokens_are_legal():
    linear, _ = layer(50, 37, (32, 16))
    x = torch.zeros(2, 0, 37, requires_grad=True)
    y = linear(x)
    y.sum().backward()
    assert y.shape == (2, 0, 50) and x.grad.shape == x.shape and linear.bias.grad.eq(0).all()


def test_static_activation_scales_are_applied_and_gradients_pass_straight_through():
    linear, matrix = layer(50, 37, (32, 16), scheme="static")
    with torch.no_grad():
        linear.activation_scale.fill_(0.02)
    x = torch.randn(5, 37, requires_grad=True)
    codes = (x.detach() / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.02
    near(linear(x), F.linear(codes, matrix, linear.bias), 1e-5, "y")
    linear(x).sum().backward()
    near(x.grad, matrix.sum(0).expand(5, 37), 1e-5, "dx")
    linear.activation_scale = None
    with pytest.raises(moe64.UnsupportedError, match="no activation_scale"):
        linear(x)


@pytest.mark.parametrize("block", [(32, 128), None])
def test_w8a8_is_the_product_of_the_quantised_activations(block, device):
    """Which a Hopper computes where the checkpoint states dynamic quantisation; elsewhere it must be asked for."""
    linear, matrix = layer(64, 256, block, device=device)
    x = torch.randn(5, 256, device=device).bfloat16()
    q = moe64.quantize(x, "group:128" if block else "row")
    values, scales, form = linear._stored(1)
    y = torch.ops.moe64.dense(x, values, scales, linear.bias[None], False, "w8a8", *form)
    near(y, F.linear(moe64.dequantize(q, dtype=torch.float32), matrix, linear.bias), 8e-3, "y")
    mode, why = dense.explain(linear)
    assert (mode, bool(why)) == ("w8a8" if "w8a8" in mode else "w8a16", True)
    if device.type == "cpu":
        assert (mode, why) == ("w8a16", "no CPU multiplies 8-bit floats")
        assert torch.equal(linear(x), torch.ops.moe64.dense(x, values, scales, linear.bias[None], False, "w8a16", *form))


def test_block_diagonal_layers_are_stacks():
    finegrained = transformers.integrations.finegrained_fp8
    if not hasattr(finegrained, "FP8GroupedLinear"):
        pytest.skip(f"Transformers {transformers.__version__} has no FP8GroupedLinear")
    for block in ((16, 32), None):
        made = finegrained.FP8GroupedLinear(40, 96, n_groups=3, block_size=block, has_bias=True)
        q = moe64.quantize(torch.randn(96, 40), "tensor" if block is None else "block:16x32")
        with torch.no_grad():
            made.weight.copy_(q.values)
            made.weight_scale_inv.copy_(q.scales.reshape(made.weight_scale_inv.shape))
            made.bias.normal_()
        moe64.transformers.serve(torch.nn.Sequential(made))
        matrix = moe64.dequantize(q, dtype=torch.float32).view(3, 32, 40)
        x = torch.randn(2, 5, 3, 40, requires_grad=True)
        expected = torch.einsum("btgi,goi->btgo", x.detach(), matrix) + made.bias.view(3, 32)
        y = made(x)
        near(y, expected, 1e-5, "y")
        dy = torch.randn_like(y)
        y.backward(dy)
        near(x.grad, torch.einsum("btgo,goi->btgi", dy, matrix), 1e-5, "dx")
        near(made.bias.grad.view(3, 32), dy.sum((0, 1)), 1e-5, "d_bias")
    made.block_size = (24, 32)
    with pytest.raises(moe64.ShapeMismatchError, match="a block would scale rows of two groups"):
        made(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_compile_without_a_break(dynamic):
    linear, _ = layer(50, 37, (32, 16))
    compiled = torch.compile(linear, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (5, 7):
        x = torch.randn(rows, 37, requires_grad=True)
        y = compiled(x)
        y.square().sum().backward()
        found, x.grad = x.grad, None
        linear(x).square().sum().backward()
        assert torch.equal(y, linear(x)) and torch.equal(found, x.grad)


def test_operators_pass_the_checks_of_pytorch():
    linear, _ = layer(50, 37, (32, 16))
    values, scales, form = linear._stored(1)  # codes as bytes: torch.testing compares no FP8
    given = (torch.randn(3, 37, requires_grad=True), values.detach().view(torch.uint8), scales.detach(),
             linear.bias.detach()[None].requires_grad_(), False, "w8a16", *form._replace(dtype="e4m3"))
    torch.library.opcheck(torch.ops.moe64.dense.default, given)


def test_checkpointed_layers_have_the_same_gradients():
    from torch.utils.checkpoint import checkpoint
    linear, _ = layer(64, 64, (32, 32))
    x = torch.randn(5, 64, requires_grad=True)
    linear(linear(x)).sum().backward()
    expected, x.grad = x.grad, None
    for reentrant in (False, True):
        checkpoint(lambda v: linear(linear(v)), x, use_reentrant=reentrant).sum().backward()
        assert torch.equal(x.grad, expected)
        x.grad = None


def test_codes_keep_their_type_and_copies_their_values():
    linear, _ = layer(50, 37, (32, 16))
    x = torch.randn(5, 37)
    expected = linear(x)
    assert torch.equal(copy.deepcopy(linear)(x), expected)
    linear.to(torch.bfloat16)
    assert (linear.weight.dtype, linear.weight_scale_inv.dtype, linear.bias.dtype) == (
        torch.float8_e4m3fn, torch.float32, torch.bfloat16)
    near(linear(x), expected, 1e-2, "after .to(bfloat16)")
    linear.half().double().float()
    assert linear.weight.dtype == torch.float8_e4m3fn and linear.bias.dtype == torch.float32
    assert linear.to("meta").weight.device.type == "meta"


def test_autocast_chooses_the_type_of_the_product():
    linear, matrix = layer(50, 37, (32, 16))
    x = torch.randn(5, 37)
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(x)
    assert y.dtype == torch.bfloat16 and torch.equal(y, linear(x.bfloat16()))


def test_what_cannot_be_is_refused_by_name():
    linear, _ = layer(50, 37, (32, 16))
    with pytest.raises(moe64.ShapeMismatchError, match=r"\[dense\] x has 36 columns, CodeLinear takes 37"):
        linear(torch.randn(5, 36))
    with pytest.raises(moe64.DtypeMismatchError, match=r"\[dense\] x is torch.float64"):
        linear(torch.randn(5, 37).double())
    with pytest.raises(moe64.GradientError, match="quantised weights have none"):
        linear.requires_grad_(True)(torch.randn(5, 37))
    linear.requires_grad_(False)
    linear.block_size = (16, 16)  # another grid than the scales have
    with pytest.raises(moe64.Moe64Error, match="scale"):
        linear(torch.randn(5, 37))
    linear.block_size = None
    with pytest.raises(moe64.ShapeMismatchError, match=r"weight_scale_inv is \[2, 3\], expected one value"):
        linear(torch.randn(5, 37))


def test_layers_are_given_back():
    linear, _ = layer(50, 37, (32, 16))
    model = torch.nn.Sequential(linear)
    assert moe64.transformers.leave(model) == ["0"] and type(linear) is FP8Linear
    assert moe64.transformers.serve(model) == ["0"] and moe64.transformers.serve(model) == []
