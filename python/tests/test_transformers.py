"""moe64 as experts_implementation: the same outputs and gradients as Transformers' own experts, family by family."""

import importlib
import inspect
import types

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", minversion="5.7")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
         "max_position_embeddings": 64, "head_dim": 16}
FAMILIES = {
    "mixtral": {"intermediate_size": 48, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_moe": {"intermediate_size": 48, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3},
    "glm4_moe": {"intermediate_size": 48, "moe_intermediate_size": 40, "n_routed_experts": 6, "num_experts_per_tok": 2,
                 "first_k_dense_replace": 1},
    "deepseek_v3": {"intermediate_size": 48, "moe_intermediate_size": 40, "n_routed_experts": 8,
                    "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
                    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
                    "v_head_dim": 16, "num_key_value_heads": 4},
    "gpt_oss": {"intermediate_size": 72, "num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": {"intermediate_size": 48, "num_local_experts": 6, "num_experts_per_tok": 2},
}


def tiny(family, dtype=torch.float32, **other):
    options = {**SMALL, **FAMILIES[family], **other}
    if family == "deepseek_v3":
        options.pop("head_dim")
    config = AutoConfig.for_model(family, **options)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts." in name:
                parameter.normal_(0, 0.3 if "bias" in name else 0.15)
    return model


def run(model, implementation, tokens):
    model.set_experts_implementation(implementation)
    model.zero_grad()
    out = model(tokens).logits
    out.float().square().mean().backward()
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def near(ours, theirs, bound, what):
    scale = theirs.float().abs().max().clamp(min=1e-6)
    error = ((ours.float() - theirs.float()).abs().max() / scale).item()
    assert error <= bound, f"{what}: {error:.2e} of the largest value, allowed {bound:.0e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_models_agree_with_eager_and_grouped_mm(family, device):
    model = tiny(family).to(device)
    tokens = torch.randint(0, 97, (2, 9), device=device)
    ours, grads = run(model, "moe64", tokens)
    for peer in ("eager", "grouped_mm"):
        theirs, expected = run(model, peer, tokens)
        near(ours, theirs, 1e-4, f"{family} logits against {peer}")
        assert grads.keys() == expected.keys()
        for name, gradient in expected.items():
            near(grads[name], gradient, 2e-4, f"{family} gradient of {name} against {peer}")


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_models_stay_within_their_rounding(family, device):
    """Against the float32 model: moe64 in bfloat16 is no further away than Transformers' own bfloat16, with a margin."""
    exact, half = tiny(family).to(device), tiny(family, torch.bfloat16).to(device)
    exact.load_state_dict(half.state_dict())
    tokens = torch.randint(0, 97, (2, 9), device=device)
    with torch.no_grad():
        exact.set_experts_implementation("eager")
        truth = exact(tokens).logits
        errors = {}
        for name in ("moe64", "eager"):
            half.set_experts_implementation(name)
            errors[name] = (half(tokens).logits.float() - truth).abs().max().item()
    assert errors["moe64"] <= 2 * errors["eager"] + 0.01 * truth.abs().max().item(), errors


def test_experts_forward_refuses_arguments_it_does_not_know():
    experts = tiny("mixtral").model.layers[0].mlp.experts
    with pytest.raises(moe64.InvalidArgumentError, match="more arguments"):
        moe64.transformers.experts_forward(experts, torch.zeros(1, 64), torch.zeros(1, 2, dtype=torch.int64),
                                           torch.zeros(1, 2), object())


def test_sentinels_add_nothing_even_behind_nan():
    experts = tiny("qwen3_moe").model.layers[0].mlp.experts
    x, ids = torch.randn(5, 64), torch.randint(0, 6, (5, 3))
    weights = torch.rand(5, 3)
    ids[1, 0] = ids[3, 2] = experts.num_experts
    ids[4] = experts.num_experts
    weights[1, 0] = float("nan")
    y = moe64.transformers.experts_forward(experts, x, ids, weights)
    assert torch.isfinite(y).all() and (y[4] == 0).all()
    ids2, weights2 = ids.clone(), weights.clone()
    ids2[1, 0], weights2[1, 0], ids2[3, 2], weights2[3, 2] = 0, 0.0, 0, 0.0
    same = moe64.transformers.experts_forward(experts, x, ids2, weights2)
    torch.testing.assert_close(y[:4], same[:4])


@pytest.mark.parametrize("shape", [(2, 3), (6,)])
def test_leading_extents_are_flattened(shape):
    experts = tiny("mixtral").model.layers[0].mlp.experts
    x, ids, weights = torch.randn(*shape, 64), torch.randint(0, 6, (*shape, 2)), torch.rand(*shape, 2)
    y = moe64.transformers.experts_forward(experts, x, ids, weights)
    flat = moe64.transformers.experts_forward(experts, x.view(-1, 64), ids.view(-1, 2), weights.view(-1, 2))
    assert torch.equal(y.view(-1, 64), flat) and y.shape == x.shape


def test_an_unknown_gate_is_called_not_assumed():
    experts = tiny("mixtral").model.layers[0].mlp.experts

    class Odd(type(experts)):
        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return torch.tanh(gate) * up + 1

    experts.__class__ = Odd
    assert moe64.transformers.activation_of(experts) is None
    x = torch.randn(7, 64, requires_grad=True)
    ids, weights = torch.randint(0, 6, (7, 2)), torch.rand(7, 2, requires_grad=True)
    ours = moe64.transformers.experts_forward(experts, x, ids, weights)
    from transformers.integrations.moe import grouped_mm_experts_forward
    theirs = grouped_mm_experts_forward(experts, x, ids, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    inputs = (x, weights, experts.gate_up_proj, experts.down_proj)
    dy = torch.randn_like(ours)
    for one, other in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


GATES = {"minimax_m3_vl.MiniMaxM3VLExperts": moe64.Activation("gptoss_glu", 1.702, 0.5),
         "deepseek_v4.DeepseekV4Experts": moe64.Activation("clamped_silu_glu", limit=0.5),
         "step3p7.Step3p7Experts": None, "beam.BeamExperts": None}  # None: the class itself is called


@pytest.mark.parametrize("name", GATES)
def test_gates_of_other_families(name, device):
    """Classes that have a gate of their own, against their own loops; those that are not known here are called."""
    family, kind = name.split(".")
    try:
        found = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), kind)
    except (ImportError, AttributeError):
        pytest.skip(f"Transformers {transformers.__version__} has no {kind}")
    from transformers.integrations.moe import use_experts_implementation
    decorated = found
    if not hasattr(found.__init__, "__wrapped__"):
        decorated = use_experts_implementation(type(kind, (found,), {}))  # of its own: the decorator changes its class
    settings = types.SimpleNamespace(hidden_size=64, intermediate_size=24, moe_intermediate_size=24, num_local_experts=4,
                                     num_experts=4, hidden_act="silu", swiglu_limit=0.5, swiglu_alpha=1.702)
    module = decorated(settings).to(device)
    if name.startswith("step3p7"):
        module.limit = 0.3
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.3)
    assert moe64.transformers.activation_of(module) == GATES[name]
    x = torch.randn(9, 64, device=device, requires_grad=True)
    ids, weights = torch.randint(0, 5, (9, 3), device=device), torch.rand(9, 3, device=device, requires_grad=True)
    inputs = (x, weights, *module.parameters())
    live = ids < 4  # the loops of older Transformers do not know the sentinel: there such slots weigh nothing
    results = []
    for implementation, used_ids, used_weights in (("moe64", ids, weights), ("eager", ids.where(live, 0), weights * live)):
        settings._experts_implementation = implementation
        y = module(x, used_ids, used_weights)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    for one, other in zip(*results):
        near(one, other, 1e-4, name)


def fp8_experts(hidden=128, inter=64, block=(32, 64), experts=4, **config):
    """An FP8Experts module as the quantizer makes it, with random weights, and the same as float32."""
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
    from transformers.integrations.moe import use_experts_implementation
    use_experts_implementation(FP8Experts, experts_interface=ALL_FP8_EXPERTS_FUNCTIONS)
    settings = types.SimpleNamespace(hidden_size=hidden, moe_intermediate_size=inter, num_experts=experts,
                                     hidden_act="silu", _experts_implementation="moe64", **config)
    module = FP8Experts(settings, block_size=block)
    exact = {}
    for name in ("gate_up_proj", "down_proj"):
        parameter = getattr(module, name)
        layout = "tensor" if block is None else f"block:{block[0]}x{block[1]}"
        full = torch.randn(parameter.shape) * 0.1
        if block is None and name == "gate_up_proj":
            halves = [moe64.quantize(half, layout) for half in full.chunk(2, dim=1)]
            codes, scales = (torch.cat([getattr(h, what) for h in halves], dim=1) for what in ("values", "scales"))
            exact[name] = torch.cat([moe64.dequantize(h, dtype=torch.float32) for h in halves], dim=1)
        else:
            q = moe64.quantize(full, layout)
            codes, scales, exact[name] = q.values, q.scales, moe64.dequantize(q, dtype=torch.float32)
        parameter.data = codes
        getattr(module, name + "_scale_inv").data = scales
    return module.requires_grad_(False), exact


@pytest.mark.parametrize("block", [(32, 64), (128, 128), None])
@pytest.mark.parametrize("gate", [{}, {"swiglu_limit": 0.5}, {"swiglu_limit": 0.5, "swiglu_alpha": 1.702}])
def test_fp8_experts_are_their_codes_times_their_scales(block, gate):
    inter = 128 if block == (128, 128) else 64
    module, exact = fp8_experts(inter=inter, block=block, **gate)
    if gate and not hasattr(module, "swiglu_alpha"):
        pytest.skip(f"FP8Experts of Transformers {transformers.__version__} has no clamped gates")
    x, ids, weights = torch.randn(9, 128), torch.randint(0, 5, (9, 3)), torch.rand(9, 3)  # 4 is the sentinel
    ours = module(x, ids, weights)
    import reference
    kind = "silu_glu" if not gate else "gptoss_glu" if "swiglu_alpha" in gate else "clamped_silu_glu"
    truth = reference.layer(x, ids, weights, exact["gate_up_proj"], exact["down_proj"], kind=kind, limit=0.5,
                            alpha=1.702) if gate else reference.layer(x, ids, weights, exact["gate_up_proj"],
                                                                      exact["down_proj"])
    torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", ["f32", "e8m0"])
def test_fp4_experts_are_packed_codes_in_groups_of_32(scale):
    from transformers.integrations.finegrained_fp8 import FP8Experts
    if scale == "e8m0" and not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip("this torch has no e8m0")
    fp8_experts()
    settings = types.SimpleNamespace(hidden_size=64, moe_intermediate_size=32, num_experts=3, hidden_act="silu",
                                     expert_dtype="fp4", _experts_implementation="moe64")
    known = inspect.signature(FP8Experts).parameters
    options = {"expert_dtype": "fp4", "scale_fmt": "ue8m0" if scale == "e8m0" else "float"}
    module = FP8Experts(settings, **{name: option for name, option in options.items() if name in known})
    if module.down_proj.dtype != torch.int8 or "scale_fmt" not in known:
        pytest.skip(f"FP8Experts of Transformers {transformers.__version__} has no packed FP4")
    exact = {}
    for name in ("gate_up_proj", "down_proj"):
        shape = getattr(module, name).shape
        q = moe64.quantize(torch.randn(*shape[:2], 2 * shape[2]), "group:32", "fp4", scale)
        assert getattr(module, name + "_scale_inv").shape == q.scales.shape
        getattr(module, name).data = q.values.view(torch.int8)
        getattr(module, name + "_scale_inv").data = (q.scales.view(torch.float8_e8m0fnu) if scale == "e8m0"
                                                     else q.scales)
        exact[name] = moe64.dequantize(q, dtype=torch.float32)
    module.requires_grad_(False)
    import reference
    x, ids, weights = torch.randn(5, 64), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    truth = reference.layer(x, ids, weights, exact["gate_up_proj"], exact["down_proj"])
    torch.testing.assert_close(module(x, ids, weights), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("block", [(32, 64), None])
def test_static_activation_scales_are_used(block):
    module, exact = fp8_experts(block=block)
    module.activation_scheme = "static"
    scales = {name: torch.rand(4) * 0.02 + 0.01 for name in ("gate_up_proj", "down_proj")}
    x, ids, weights = torch.randn(9, 128, requires_grad=True), torch.randint(0, 5, (9, 3)), torch.rand(9, 3)
    with pytest.raises(moe64.UnsupportedError, match="gate_up_proj_activation_scale"):
        module(x, ids, weights)
    for name, scale in scales.items():
        setattr(module, name + "_activation_scale", scale)

    def linear(name, rows, expert):
        scale = scales[name][expert]
        rows = (rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        return rows @ exact[name][expert].t()

    truth = torch.zeros(9, 128)
    for t in range(9):
        for expert, weight in zip(ids[t].tolist(), weights[t]):
            if expert < 4:
                gate, up = linear("gate_up_proj", x[t].detach(), expert).chunk(2)
                truth[t] += weight * linear("down_proj", nn.functional.silu(gate) * up, expert)
    ours = module(x, ids, weights)
    near(ours, truth, 0.01, "static")  # a number in the middle of two codes may go either way
    assert torch.isfinite(torch.autograd.grad(ours.sum(), x)[0]).all()
    module.activation_scheme = "dynamic"
    assert (module(x, ids, weights) - truth).abs().max() > 0.01 * truth.abs().max()


def test_fp8_experts_refuse_a_grid_across_gate_and_up():
    module, _ = fp8_experts(inter=64, block=(32, 64))
    module.block_size = (48, 64)
    with pytest.raises(moe64.ShapeMismatchError, match="across the middle"):
        module(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))


def test_fp8_experts_that_are_not_frozen_are_refused():
    module, _ = fp8_experts()
    module.gate_up_proj.requires_grad_(True)
    arguments = torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    with pytest.raises(moe64.GradientError, match="freeze"):
        module(*arguments)
    with torch.no_grad():
        module(*arguments)


def test_fp8_experts_whose_codes_became_numbers_are_refused():
    module, _ = fp8_experts()
    module.to(torch.bfloat16)  # PyTorch takes float8 for a floating type
    with pytest.raises(moe64.DtypeMismatchError, match="converted without their scale"):
        module(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))


def test_fp8_experts_without_scales_are_refused():
    module, _ = fp8_experts()
    del module.gate_up_proj_scale_inv
    with pytest.raises(moe64.UnsupportedError, match="never reads codes without their scale"):
        module(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))


def test_non_gated_experts_and_norms_behind_experts():
    from transformers.integrations.moe import grouped_mm_experts_forward, use_experts_implementation

    def make(**flags):
        class Plain(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.num_experts, self.act_fn = 3, transformers.activations.ACT2FN["relu2"]
                rows = 24 if flags.get("has_gate", True) else 12
                setattr(self, "gate_up_proj" if rows == 24 else "up_proj", nn.Parameter(torch.randn(3, rows, 20)))
                self.down_proj = nn.Parameter(torch.randn(3, 20, 12))
                self.post_expert_norm = nn.RMSNorm(20)

            def forward(self, hidden_states, top_k_index, top_k_weights):
                raise AssertionError
        return use_experts_implementation(Plain, **flags)(types.SimpleNamespace(_experts_implementation="moe64"))

    x, ids, weights = torch.randn(5, 20), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    modules = [make(has_gate=False), make()]
    if "has_post_expert_norm" in inspect.signature(use_experts_implementation).parameters:
        modules.append(make(has_post_expert_norm=True))
    for module in modules:
        torch.testing.assert_close(module(x, ids, weights), grouped_mm_experts_forward(module, x, ids, weights),
                                   rtol=1e-4, atol=1e-4)


def test_generate_uses_moe64_in_prefill_and_decode(monkeypatch):
    model = tiny("qwen3_moe").eval()
    prompt = torch.randint(0, 97, (1, 5))
    texts, calls = [], []
    original = moe64.transformers.experts
    monkeypatch.setattr(moe64.transformers, "experts", lambda *a: calls.append(a[0].shape[0]) or original(*a))
    for name in ("eager", "moe64"):
        model.set_experts_implementation(name)
        texts.append(model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0))
    assert torch.equal(*texts)
    assert calls == [5, 5] + [1, 1] * 5  # two layers: the prompt, then five tokens one by one


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_whole_model_compiles_without_a_break(family, device):
    model = tiny(family).to(device)
    model.set_experts_implementation("moe64")
    tokens = torch.randint(0, 97, (2, 6), device=device)

    def logits(tokens):
        return model(tokens, use_cache=False).logits

    compiled = torch.compile(logits, fullgraph=True, backend="aot_eager")
    try:
        compiled(tokens)
    except Exception:  # is it the rest of the model?
        torch._dynamo.reset()
        model.set_experts_implementation("grouped_mm")
        try:
            compiled(tokens)
        except Exception:
            pytest.skip(f"Transformers {transformers.__version__} does not compile {family} with experts of its own either")
        raise
    results = []
    for call in (compiled, logits):
        model.zero_grad()
        y = call(tokens)
        y.square().mean().backward()
        results.append([y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        near(one, other, 1e-5, family)


def test_experts_compile_to_the_same_bits():
    model = tiny("qwen3_moe").eval()
    model.set_experts_implementation("moe64")
    experts = model.model.layers[0].mlp.experts
    x, ids, weights = torch.randn(6, 64), torch.randint(0, 6, (6, 3)), torch.rand(6, 3)
    compiled = torch.compile(lambda *a: experts(*a), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x, ids, weights), experts(x, ids, weights))
