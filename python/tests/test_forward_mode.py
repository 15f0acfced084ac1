"""Forward-mode AD: no operation has it, and PyTorch would take what they return for constants, so tangents are refused."""

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
