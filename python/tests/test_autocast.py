"""torch.autocast around moe64: what is float32 is multiplied in the type of autocast, and comes back as it was."""

import pytest
import torch

import moe64
from moe64 import layer as layer_module

E, H, INTER = 4, 64, 32


def problem(device):
    ids, weights = torch.randint(0, E, (9, 2), device=device), torch.rand(9, 2, device=device)
    return torch.randn(9, H, device=device, requires_grad=True), ids, weights


def layers(device):
    gate_up, down = torch.randn(E, 2 * INTER, H, device=device) * 0.2, torch.randn(E, H, INTER, device=device) * 0.2
    lora = moe64.Lora(torch.randn(E, 4, H, device=device), torch.randn(E, 2 * INTER, 4, device=device), 0.5)
    pair = moe64.Projection(tuple(gate_up.chunk(2, 1)), tuple(torch.randn(2, E, INTER, device=device)))
    coded = moe64.ExpertWeights(moe64.quantize(gate_up, "row"), moe64.quantize(down, "row"))
    return {"plain": moe64.ExpertWeights(gate_up, down), "pair": moe64.ExpertWeights(pair, down), "codes": coded,
            "codes and lora": coded.with_lora(lora, None)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "pair", "codes", "codes and lora"])
def test_products_are_those_of_its_type(kind, dtype, device):
    weights, (x, ids, factors) = layers(device)[kind], problem(device)
    with torch.autocast(device.type, dtype):
        y = moe64.experts(x, ids, factors, weights)
        assert y.dtype == x.dtype == torch.float32
    expected = moe64.experts(x.to(dtype), ids, factors, layer_module.in_type(weights, dtype))
    assert torch.equal(y, expected.float())
    assert not torch.equal(y, moe64.experts(x, ids, factors, weights))
    assert torch.equal(*(torch.autograd.grad(out, x, torch.ones_like(out))[0] for out in (y, expected)))


def test_plain_weights_and_factors_have_gradients_of_their_own_type():
    x, ids, factors = problem("cpu")
    layer = moe64.Experts(E, H, INTER).add_lora(2)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x, ids, factors).square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


def test_it_is_left_out_where_it_is_off():
    x, ids, factors = problem("cpu")
    weights = layers("cpu")["codes"]
    expected = moe64.experts(x, ids, factors, weights)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert torch.equal(moe64.experts(x, ids, factors, weights), expected)


def test_compiled_graphs_have_it_too():
    x, ids, factors = problem("cpu")
    weights = layers("cpu")["codes and lora"]

    def call(x):
        return moe64.experts(x, ids, factors, weights) * 2
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss", "minimax_m2"])
def test_models_of_transformers(family, monkeypatch):
    """Their own experts are as far from float32 as moe64's, which get the type of autocast and answer in that of the states."""
    pytest.importorskip("transformers", minversion="5.7")
    import moe64.transformers
    from test_transformers import tiny
    model, tokens, types = tiny(family), torch.randint(0, 97, (2, 9)), set()
    original = moe64.transformers.experts

    def experts(x, ids, factors, weights):
        types.update((x.dtype, weights.down.weights.dtype))
        return original(x, ids, factors, weights)
    monkeypatch.setattr(moe64.transformers, "experts", experts)
    found = {}
    for implementation in ("eager", "moe64"):
        model.set_experts_implementation(implementation)
        model.zero_grad()
        exact = model(tokens).logits.detach()
        types.clear()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens).logits
        logits.float().square().mean().backward()
        found[implementation] = ((logits.float() - exact).norm() / exact.norm()).item()
        assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
    assert types == {torch.bfloat16}
    assert 0 < found["moe64"] < 2 * found["eager"] + 0.01


@pytest.mark.parametrize("function", [torch.tanh, torch.nn.functional.softplus], ids=["bfloat16", "float32"])
def test_a_gate_of_its_own_under_autocast(function):
    """Some functions answer in float32 there."""
    pytest.importorskip("transformers", minversion="5.7")
    import moe64.transformers
    from test_transformers import tiny
    model = tiny("mixtral")
    experts = next(module for name, module in model.named_modules() if name.endswith("experts"))
    experts._apply_gate = lambda rows: function(rows.chunk(2, -1)[0]) * rows.chunk(2, -1)[1]
    hidden = experts.down_proj.shape[1]
    x, ids = torch.randn(5, hidden), torch.randint(0, 4, (5, 2))
    assert moe64.transformers.activation_of(experts) is None
    exact = moe64.transformers.experts_forward(experts, x, ids, torch.ones(5, 2))
    with torch.autocast("cpu", torch.bfloat16):
        y = moe64.transformers.experts_forward(experts, x, ids, torch.ones(5, 2))
    assert y.dtype == torch.float32 and not torch.equal(y, exact)
    assert (y - exact).norm() < 0.02 * exact.norm()
