"""The seven operations: numbers against torch, gradients, fake kernels, and what is refused."""

import pytest
import torch

import moe64
import reference

E, T, K, H = 4, 6, 3, 10


def routing(device="cpu"):
    ids = torch.randint(0, E, (T, K), device=device)
    ids[0, 1], ids[2, 0], ids[5] = -1, E, -1
    return ids


@pytest.mark.parametrize("layout", ["tensor", "row", "block:4x3", "block:128x128", "group:4"])
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "int8"])
def test_quantize_then_dequantize_is_codes_times_scales(layout, dtype, device):
    x = torch.randn(2, 9, 10, device=device)
    q = moe64.quantize(x, layout, dtype)
    rows, cols = moe64.Granularity.parse(layout).grid(9, 10)
    assert q.scales.shape == (2, rows, cols)
    high = {"row": 1, "tensor": 9, "group:4": 1}.get(layout, q.layout.block_rows)
    wide = {"row": 10, "tensor": 10}.get(layout, q.layout.block_cols)
    grown = q.scales.repeat_interleave(high, 1)[:, :9].repeat_interleave(wide, 2)[:, :, :10]
    expected = q.values.float() * grown
    assert torch.equal(moe64.dequantize(q, dtype=torch.float32), expected)
    assert torch.equal(moe64.dequantize(q), expected.bfloat16())
    step = {"e4m3": 2 ** -4, "e5m2": 2 ** -3, "int8": 1 / 127}[dtype]
    assert (expected - x).abs().max() <= step * x.abs().max()


def test_a_missing_scale_or_layout_is_refused():
    codes = torch.zeros(4, 4).to(torch.float8_e4m3fn)
    with pytest.raises(moe64.MissingScaleError):
        moe64.dequantize(codes, None, "row")
    with pytest.raises(moe64.InvalidArgumentError, match="never guessed"):
        moe64.dequantize(codes, torch.ones(1, 1))
    with pytest.raises(moe64.ShapeMismatchError):
        moe64.dequantize(codes, torch.ones(2, 1), "block:128x128")
    with pytest.raises(moe64.MissingScaleError):
        moe64.Quantized(codes, None, "row")


def test_scales_of_rows_may_lack_their_last_extent():
    q = moe64.quantize(torch.randn(2, 5, 6), "row")
    flat = moe64.Quantized(q.values, q.scales.squeeze(-1), "row")
    assert torch.equal(moe64.dequantize(flat), moe64.dequantize(q))
    with pytest.raises(moe64.ShapeMismatchError):
        moe64.dequantize(q.values, q.scales.squeeze(-1)[:, :4], "row")


def test_bytes_mean_nothing_unless_said():
    codes = torch.zeros(4, 4, dtype=torch.uint8)
    with pytest.raises(moe64.DtypeMismatchError):
        moe64.dequantize(codes, torch.ones(4, 1), "row")
    assert moe64.dequantize(codes, torch.ones(4, 1), "row", values_dtype="e4m3").shape == (4, 4)
    assert moe64.dequantize(codes, torch.ones(4, 2), "group:4", values_dtype="fp4").shape == (4, 8)
    e8m0 = torch.full((4, 1), 128, dtype=torch.uint8)
    ones = torch.full((4, 4), 0x38, dtype=torch.uint8)
    two = moe64.dequantize(ones, e8m0, "row", values_dtype="e4m3", scale_dtype="e8m0", dtype=torch.float32)
    assert (two == 2).all()


def test_fp4_of_both_kinds_round_trips():
    x = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6]).repeat(4).repeat(3, 1)
    for layout, scale in (("group:32", "e8m0"), ("group:16", "e4m3")):
        q = moe64.quantize(x, layout, "fp4", scale)
        assert q.values.shape == (3, 16) and (q.global_scale is not None) == (scale == "e4m3")
        torch.testing.assert_close(moe64.dequantize(q, dtype=torch.float32), x, rtol=1e-3, atol=1e-3)
    with pytest.raises(moe64.UnsupportedError, match="whole bytes"):
        moe64.quantize(torch.randn(2, 5), "row", "int4")


@pytest.mark.parametrize("kind", ["silu_glu", "gelu_glu", "gelu_tanh_glu", "gptoss_glu", "clamped_silu_glu", "step_glu",
                                  "silu", "gelu", "relu2"])
def test_activate_and_its_gradient(kind, device):
    gated = kind.endswith("glu")
    both = torch.randn(7, 8, device=device, requires_grad=True)
    gate, up = (both[:, 0::2], both[:, 1::2]) if gated else (both, None)
    act = moe64.Activation(kind, alpha=1.3, limit=0.8)
    ours = moe64.activate(gate, up, act)
    theirs = reference.activation(kind, gate, up, alpha=1.3, limit=0.8)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    dy = torch.randn_like(ours)
    torch.testing.assert_close(torch.autograd.grad(ours, both, dy), torch.autograd.grad(theirs, both, dy), rtol=1e-4,
                               atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gptoss_glu", "clamped_silu_glu"])
def test_gradients_at_exactly_the_clamp_limit_are_those_from_within(kind, dtype, device):
    """As docs/numerics.md states; PyTorch's own clamps each have another answer there, which are all right."""
    act, wide = moe64.Activation(kind, limit=3.0), moe64.Activation(kind, limit=100.0)
    gate = torch.tensor([[3.0, 3.125, -3.0, 1.0, 1.0, 1.0, 1.0, 3.0]], device=device, dtype=dtype).requires_grad_()
    up = torch.tensor([[1.0, 1.0, 1.0, 3.0, 3.125, -3.0, -3.125, -3.0]], device=device, dtype=dtype).requires_grad_()
    bounded, free = (torch.autograd.grad(moe64.activate(gate, up, one).sum(), (gate, up)) for one in (act, wide))
    inside = torch.ones(2, 1, 8, dtype=torch.bool, device=device)
    inside[0, 0, 1] = inside[1, 0, 4] = inside[1, 0, 6] = False
    for gradient, unclamped, passes in zip(bounded, free, inside):
        assert torch.equal(gradient != 0, passes)
        same = passes & inside.all(0)  # elsewhere the other factor is clamped
        assert torch.equal(gradient[same], unclamped[same])


def test_activate_wants_the_inputs_of_its_kind():
    with pytest.raises(moe64.InvalidArgumentError, match="one input"):
        moe64.activate(torch.zeros(1, 1), torch.zeros(1, 1), "relu2")
    with pytest.raises(moe64.InvalidArgumentError, match="none of"):
        moe64.activate(torch.zeros(1, 1), torch.zeros(1, 1), "mish")


@pytest.mark.parametrize("score", ["softmax", "softmax_of_selected", "sigmoid"])
def test_route_and_its_gradient(score, device):
    logits = torch.randn(5, 8, device=device, requires_grad=True)
    ids, weights = moe64.route(logits, 3, score=score, renormalize=True, scaling=2.0)
    assert torch.equal(ids, logits.topk(3).indices)
    chosen = {"softmax": logits.softmax(-1), "softmax_of_selected": logits.exp(), "sigmoid": logits.sigmoid()}[score]
    chosen = chosen.gather(1, ids)
    expected = 2.0 * chosen / chosen.sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    dy = torch.randn_like(weights)
    torch.testing.assert_close(torch.autograd.grad(weights, logits, dy), torch.autograd.grad(expected, logits, dy),
                               rtol=1e-4, atol=1e-5)


def test_plan_is_the_stable_sort_without_sentinels(device):
    ids = routing(device)
    plan = moe64.plan(ids, E)
    flat = ids.flatten()
    legal = (flat >= 0) & (flat < E)
    order = torch.argsort(flat, stable=True)
    order = order[legal[order]]
    assert plan.counts() == {"kept": len(order), "skipped": T * K - len(order), "elsewhere": 0, "dropped": 0,
                             "invalid": 0, "first_invalid": -1}
    assert torch.equal(plan.row_to_slot[:len(order)], order)
    assert torch.equal(plan.expert_begin[1:], torch.bincount(flat[legal], minlength=E).cumsum(0))


def test_plan_refuses_an_id_that_is_none_and_takes_masks():
    with pytest.raises(moe64.InvalidExpertError, match="9"):
        moe64.plan(torch.tensor([[0, 9]]), E)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    plan = moe64.plan(mask, 3, mask=True)
    assert plan.counts()["kept"] == 2 and plan.top_k == 3
    assert moe64.plan(torch.zeros(3, 2, dtype=torch.int64), 2, capacity=1).counts()["dropped"] == 5
    part = moe64.plan(torch.tensor([[0, 5], [6, -1]]), 2, experts_total=8, first_expert=5)
    assert part.counts()["kept"] == 2 and part.counts()["elsewhere"] == 1


def test_weights_of_slots_without_a_row_are_zero_and_have_no_gradient():
    weights = torch.tensor([[float("nan"), 2.0], [3.0, float("inf")]], requires_grad=True)
    plan = moe64.plan(torch.tensor([[-1, 1], [0, 2]]), 2, weights)
    assert plan.slot_weight.tolist() == [0.0, 2.0, 3.0, 0.0]
    grad, = torch.autograd.grad(plan.slot_weight.sum(), weights)
    assert grad.tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("weighted", [False, True])
def test_gather_and_combine_are_each_others_gradient(weighted, device):
    ids = routing(device)
    x = torch.randn(T, H, device=device, requires_grad=True)
    weights = torch.rand(T, K, device=device, requires_grad=True)
    plan = moe64.plan(ids, E, weights)
    y = moe64.combine(moe64.gather(x, plan) * 2, plan, weighted=weighted)
    legal = ((ids >= 0) & (ids < E)).float()
    factor = (legal * weights if weighted else legal).sum(1, keepdim=True)
    torch.testing.assert_close(y, 2 * x * factor)
    dy = torch.randn_like(y)
    inputs = (x, weights) if weighted else (x,)
    for one, other in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(2 * x * factor, inputs, dy)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_grouped_gemm(quantised, transpose, device):
    plan = moe64.plan(routing(device), E)
    full = torch.randn(E, 7, H, device=device)
    weights = moe64.quantize(full, "block:3x4") if quantised else full.requires_grad_()
    exact = moe64.dequantize(weights, dtype=torch.float32) if quantised else weights
    x = torch.randn(T * K, 7 if transpose else H, device=device, requires_grad=True)
    bias = None if transpose else torch.randn(E, 7, device=device, requires_grad=True)
    ours = moe64.grouped_gemm(x, weights, plan, bias=bias, transpose=transpose)
    begin, rows = plan.expert_begin.tolist(), []
    for e in range(E):
        piece = x[begin[e]:begin[e + 1]] @ (exact[e] if transpose else exact[e].T)
        rows.append(piece if bias is None else piece + bias[e])
    theirs = torch.cat([*rows, torch.zeros(T * K - begin[-1], ours.shape[1], device=device)])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    inputs = [t for t in (x, None if quantised else weights, bias) if t is not None]
    dy = torch.randn_like(ours)
    for one, other in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
