"""Derivatives that operations do not have are refused, where PyTorch would take what they return for constants: forward-mode
AD, torch.func, second derivatives, and gradients of scales."""

import pytest
import torch
from torch.autograd import forward_ad

import moe64

E, T, K, H, INTER = 3, 5, 2, 8, 4
IDS = torch.tensor([[0, 1], [2, -1], [1, 0], [E, 2], [-1, -1]])


def functions():
    """(what carries the tangent, a function of one tensor, that tensor), for every operation with derivatives."""
    x, factors, rows = torch.randn(T, H), torch.rand(T, K), torch.randn(T * K, H)
    gate_up, down = torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER)
    weights, plan = moe64.ExpertWeights(gate_up, down), moe64.plan(IDS, E, factors)
    codes = moe64.quantize(gate_up, "row")
    a, b = torch.randn(E, 2, H), torch.randn(E, 2 * INTER, 2)

    def layer(x=x, factors=factors, weights=weights):
        return moe64.experts(x, IDS, factors, weights)
    return [
        ("experts] x", lambda t: layer(x=t), x),
        ("experts] top_k_weights", lambda t: layer(factors=t), factors),
        ("experts] gate_up", lambda t: layer(weights=moe64.ExpertWeights(t, down)), gate_up),
        ("experts] gate_up_lora_a", lambda t: layer(weights=weights.with_lora(moe64.Lora(t, b, 1.0), None)), a),
        ("activate] gate", lambda t: moe64.activate(t, x), x),
        ("activate] up", lambda t: moe64.activate(x, t), x),
        ("activate] gate", lambda t: moe64.activate(t, activation="relu2"), x),
        ("route] logits", lambda t: moe64.route(t, 2)[1], x),
        ("gather] x", lambda t: moe64.gather(t, plan), x),
        ("gather] slot_weight", lambda t: moe64.gather(x, moe64.plan(IDS, E, t), weighted=True), factors),
        ("combine] rows", lambda t: moe64.combine(t, plan), rows),
        ("combine] slot_weight", lambda t: moe64.combine(rows, moe64.plan(IDS, E, t)), factors),
        ("grouped_gemm] x", lambda t: moe64.grouped_gemm(t, gate_up, plan), rows),
        ("grouped_gemm] weights", lambda t: moe64.grouped_gemm(rows, t, plan), gate_up),
        ("quantize] x", lambda t: moe64.quantize(t, "row").scales, x),
        ("dequantize] scales", lambda t: moe64.dequantize(codes.values, t, "row"), codes.scales),
    ]


CASES = [pytest.param(i, id=case[0].replace("] ", " ")) for i, case in enumerate(functions())]


@pytest.mark.parametrize("i", CASES)
def test_tangents_are_refused_not_dropped(i):
    what, function, at = functions()[i]
    message = rf"\[{what} carries a forward-mode tangent"
    with pytest.raises(moe64.GradientError, match=message):
        torch.func.jvp(function, (at,), (torch.ones_like(at),))
    with forward_ad.dual_level(), pytest.raises(moe64.GradientError, match=message):
        function(forward_ad.make_dual(at, torch.ones_like(at)))


@pytest.mark.parametrize("transform", ["jacfwd", "hessian", "jvp of jvp", "jvp of grad", "jvp of vmap", "vmap of jvp"])
def test_tangents_are_refused_inside_other_transforms(transform):
    x = torch.randn(T, H)
    weights = moe64.ExpertWeights(torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER))

    def layer(x):
        return moe64.experts(x, IDS, None, weights)
    f = torch.func
    calls = {
        "jacfwd": lambda: f.jacfwd(layer)(x),
        "hessian": lambda: f.hessian(lambda x: layer(x).sum())(x),
        "jvp of jvp": lambda: f.jvp(lambda x: f.jvp(lambda s: layer(x) * s, (x,), (x,))[1], (x,), (x,)),
        "jvp of grad": lambda: f.jvp(f.grad(lambda x: layer(x).sum()), (x,), (x,)),
        "jvp of vmap": lambda: f.jvp(f.vmap(lambda row: layer(row.expand(T, H))), (x,), (x,)),
        "vmap of jvp": lambda: f.vmap(lambda row: f.jvp(layer, (row.repeat(T, 1),), (x,))[1])(x),
    }
    with pytest.raises(moe64.GradientError, match="x carries a forward-mode tangent"):
        calls[transform]()


def test_what_carries_no_tangent_runs_with_what_does():
    x = torch.randn(T, H)
    weights = moe64.ExpertWeights(torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER))
    y = moe64.experts(x, IDS, None, weights)
    for made in (lambda: x, lambda: x + 0):
        _, tangent = torch.func.jvp(lambda s, made=made: moe64.experts(made(), IDS, None, weights) * s, (torch.ones(1),),
                                    (torch.ones(1),))
        assert torch.equal(tangent, y)
    with forward_ad.dual_level():
        assert torch.equal(moe64.experts(x, IDS, None, weights), y)


@pytest.mark.parametrize("i", [i for i, case in enumerate(functions()) if not case[0].endswith(("quantize] x", "scales"))])
@pytest.mark.parametrize("transform", ["grad", "vjp", "vmap of grad", "jacrev of jacrev"])
def test_gradients_inside_of_torch_func_are_refused_by_name(i, transform):
    what, function, at = functions()[i]
    f = torch.func

    def loss(t):
        return function(t).square().sum()
    calls = {
        "grad": lambda: f.grad(loss)(at),
        "vjp": lambda: f.vjp(function, at),
        "vmap of grad": lambda: f.vmap(f.grad(loss))(torch.stack((at, at))),
        "jacrev of jacrev": lambda: f.jacrev(f.jacrev(loss))(at),
    }
    with pytest.raises(moe64.GradientError, match=rf"\[{what} requires a gradient inside of torch.func"):
        calls[transform]()


@pytest.mark.parametrize("i", [i for i, case in enumerate(functions()) if case[0].startswith("experts")])
def test_a_second_derivative_of_the_layer_is_refused_not_dropped(i):
    """Also where nothing behind the layer is differentiated: there PyTorch takes its gradient for a constant."""
    _, function, at = functions()[i]
    factor = torch.ones(1, requires_grad=True)
    for outcome in (lambda y: y.sum(), lambda y: y.square().sum(), lambda y: (factor * y).sum()):
        leaf = at.clone().requires_grad_()
        if "top_k_weights" in functions()[i][0]:  # the layer is linear in them, its gradient a constant
            outcome = torch.sum
            gradient, = torch.autograd.grad(outcome(function(leaf)), leaf, create_graph=True)
            assert not gradient.requires_grad
            continue
        gradient, = torch.autograd.grad(outcome(function(leaf)), leaf, create_graph=True)
        with pytest.raises(moe64.GradientError, match="no second derivative"):
            gradient.square().sum().backward()
        with pytest.raises(moe64.GradientError, match="no second derivative"):
            torch.autograd.grad(gradient.sum(), leaf, allow_unused=True)


@pytest.mark.parametrize("move", ["gather", "combine"])
def test_second_derivatives_of_rows_that_are_moved_are_those_of_one_matrix_product(move):
    x, factors, rows = torch.randn(T, H), torch.rand(T, K), torch.randn(T * K, H)
    plan = moe64.plan(IDS, E, factors)
    chosen = torch.zeros(T * K, T)
    slots = plan.slot_to_row.view(T, K)
    results = []
    for ours in (True, False):
        leaf, weight = (x if move == "gather" else rows).clone().requires_grad_(), factors.clone().requires_grad_()
        if ours:
            at = moe64.plan(IDS, E, weight)
            y = moe64.gather(leaf, at, weighted=True) if move == "gather" else moe64.combine(leaf, at)
        else:
            matrix = chosen.clone()
            live = slots >= 0
            matrix = matrix.index_put((slots[live], torch.arange(T)[:, None].expand(T, K)[live]), weight[live])
            y = matrix @ leaf if move == "gather" else matrix.t() @ leaf
        gradient, = torch.autograd.grad(y.sin().sum(), leaf, create_graph=True)
        results.append((y, *torch.autograd.grad(gradient.square().sum(), (leaf, weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_of_scales_are_refused_not_dropped():
    codes, rows = moe64.quantize(torch.randn(E, H, H), "row"), torch.randn(E, H, requires_grad=True)
    trained = moe64.Quantized(codes.values, codes.scales.clone().requires_grad_(), "row")
    begin = torch.arange(E + 1)
    for call, what in ((lambda: moe64.dequantize(trained), "dequantize] values, its scale,"),
                       (lambda: moe64.grouped_gemm(rows, trained, begin), "grouped_gemm] weights, its scale,")):
        with pytest.raises(moe64.GradientError, match=rf"\[{what} requires a gradient"):
            call()
        with torch.no_grad():
            call()
