"""In which mode FP8 layers run: what mode="auto" makes of a scheme on a CPU, and on a Hopper."""

import pytest
import torch

import moe64
import reference

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
E, K = 8, 2

# A value that is rounded to e4m3 is off by 0.41 * 2^-4 of itself, in the root mean square over all mantissas
# (cli/cases/tolerance.cpp). In w8a8 x has that error, and with it gate and up, as sums of independent errors are to sums of
# values. silu(gate) * up has the errors of both and, as codes, one of its own: in squares 1.07 times that of gate (d^2 times
# the mean of silu'(g)^2 by that of silu(g)^2, for normal g of deviation d, 1 to 2), and once each of the others. That is
# 0.045 of y. A tenth of it is left for what is rounded to 16 bits and for chance, which for 96 tokens is a hundredth of it
# (for 9 tokens a tenth: too few).
E4M3_ROUNDING = 0.41 * 2 ** -4
W8A8_ERROR = 1.1 * (1.07 + 1 + 1) ** 0.5 * E4M3_ROUNDING


def fp8(layout="block:128x128", hidden=512, inter=384, device="cuda", **how):
    """A layer whose gate, up and x are numbers of deviation 1, with codes of the weights."""
    torch.manual_seed(6)
    gate, up, down = (moe64.quantize(torch.randn(E, rows, cols, device=device) / cols ** 0.5, layout)
                      for rows, cols in ((inter, hidden), (inter, hidden), (hidden, inter)))
    return moe64.ExpertWeights((gate, up), down, **how)


def needs_hopper():
    mode, reason = moe64.explain(fp8(scheme="dynamic"), "cuda")
    if torch.cuda.get_device_capability() != (9, 0) or "this build has no kernels" in reason:
        pytest.skip(f"{mode}: {reason}")


def fp8_call(hidden=512, tokens=96, device="cuda"):
    torch.manual_seed(7)
    return (torch.randn(tokens, hidden, device=device).bfloat16(), torch.randint(-1, E, (tokens, K), device=device),
            torch.rand(tokens, K, device=device) + 0.5)


def apart(one, other):
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


@pytest.mark.parametrize("layout", ["block:128x128", "row", "tensor"])
def test_what_w8a8_costs(layout, device):
    y, numbers = (moe64.experts(*fp8_call(device=device), fp8(layout, device=device, mode=mode)) for mode in ("w8a8", "w8a16"))
    assert E4M3_ROUNDING < apart(y, numbers) < W8A8_ERROR


@GPU
@pytest.mark.parametrize("tokens", [1, 96, 700])
@pytest.mark.parametrize("layout", ["block:128x128", "row", "tensor"])
def test_dynamic_fp8_runs_as_w8a8_on_hopper(layout, tokens):
    needs_hopper()
    call = fp8_call(tokens=tokens)
    auto = fp8(layout, scheme="dynamic")
    mode, reason = moe64.explain(auto, "cuda", torch.bfloat16)
    assert mode == "w8a8" and "states dynamic quantisation" in reason
    y = moe64.experts(*call, auto)
    assert torch.equal(y, moe64.experts(*call, fp8(layout, mode="w8a8")))
    numbers = moe64.experts(*call, fp8(layout, scheme="dynamic", mode="w8a16"))
    assert torch.equal(numbers, moe64.experts(*call, fp8(layout)))


@GPU
def test_dynamic_fp8_runs_as_w8a16_where_codes_are_not_multiplied():
    needs_hopper()
    for weights, dtype, why in ((fp8(scheme="dynamic"), torch.float32, "gate_up: y "),
                                (fp8("block:64x64", scheme="dynamic"), torch.bfloat16, "block:64x64"),
                                (fp8(hidden=200, scheme="dynamic"), torch.bfloat16, "gate_up: x "),
                                (fp8(inter=72, scheme="dynamic"), torch.bfloat16, "down: x ")):
        mode, reason = moe64.explain(weights, "cuda", dtype)
        assert mode == "w8a16" and why in reason, reason
        x, ids, factors = fp8_call(weights.down.weights.values.shape[1])
        same = moe64.ExpertWeights(weights.gate_up, weights.down)
        assert torch.equal(moe64.experts(x.to(dtype), ids, factors, weights), moe64.experts(x.to(dtype), ids, factors, same))
    a, b = torch.zeros(E, 4, 384, device="cuda"), torch.zeros(E, 512, 4, device="cuda")
    mode, reason = moe64.explain(fp8(scheme="dynamic").with_lora(None, moe64.Lora(a, b, 1.0)), "cuda")
    assert (mode, reason) == ("w8a16", "down: there is a low-rank term")


@GPU
def test_gradients_behind_a_forward_in_w8a8():
    """Backward multiplies 16 bits by the codes of the weights, from what forward saved: straight through x's codes."""
    needs_hopper()
    x, ids, factors = fp8_call()
    dy = torch.randn_like(x)
    found = {}
    for name, weights in (("auto", fp8(scheme="dynamic")), ("w8a8", fp8(mode="w8a8")), ("w8a16", fp8())):
        inputs = x.clone().requires_grad_(), factors.clone().requires_grad_()
        y = moe64.experts(inputs[0], ids, inputs[1], weights)
        found[name] = (y.detach(), *torch.autograd.grad(y, inputs, dy))
    for auto, asked, numbers in zip(*found.values()):
        assert torch.equal(auto, asked)
        assert not torch.equal(auto, numbers) and apart(auto, numbers) < W8A8_ERROR


@pytest.mark.parametrize("scheme", ["dynamic", "none"])
def test_fp8_experts_run_as_their_activation_scheme_says(scheme, device):
    """With bfloat16 states: the codes of activations are multiplied where the device can and the scheme is "dynamic"."""
    pytest.importorskip("transformers", minversion="5.7")
    import moe64.transformers
    from test_transformers import fp8_experts
    module, exact = fp8_experts(hidden=512, inter=384, block=(128, 128))
    module.to(device).activation_scheme = scheme
    x, ids, weights = (t.to(device) for t in (torch.randn(96, 512).bfloat16(), torch.randint(0, 5, (96, 3)),
                                              torch.rand(96, 3)))
    described = moe64.transformers.weights_of(module)
    mode, reason = moe64.explain(described, device, torch.bfloat16)
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    wanted = "w8a8" if hopper and scheme == "dynamic" and "no kernels" not in reason else "w8a16"
    assert mode == wanted, reason
    as_asked = moe64.ExpertWeights(described.gate_up, described.down, mode=mode)
    ours = module(x, ids, weights)
    assert torch.equal(ours, moe64.experts(x, ids, weights, as_asked))
    truth = reference.layer(x.cpu().float(), ids.cpu(), weights.cpu(), exact["gate_up_proj"], exact["down_proj"])
    error = ((ours.cpu().float() - truth).norm() / truth.norm()).item()
    assert error < (W8A8_ERROR if mode == "w8a8" else 0.01), f"{mode}: {error:.3f}"
