"""LoRA on expert weights through PEFT: as low-rank products, the same values as PEFT's sum, saved and loaded by PEFT."""

import threading
import types

import pytest
import torch

peft = pytest.importorskip("peft")
pytest.importorskip("transformers", minversion="5.7")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64.lora import factors_of  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from test_transformers import fp8_experts, near, tiny  # noqa: E402

TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def adapted(family, rank=4, **options):
    model = tiny(family)
    config = LoraConfig(r=rank, lora_alpha=8, target_parameters=TARGETS, target_modules=[], **options)
    model = get_peft_model(model, config)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.1)
    return model


def outcome(model, implementation, tokens):
    model.base_model.model.set_experts_implementation(implementation)
    model.zero_grad()
    logits = model(tokens).logits
    logits.square().mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe", "gpt_oss"])
def test_low_rank_products_equal_pefts_sum(family):
    model = adapted(family)
    tokens = torch.randint(0, 97, (2, 8))
    ours, gradients = outcome(model, "moe64", tokens)
    theirs, expected = outcome(model, "eager", tokens)
    assert gradients.keys() == expected.keys() and any("lora_B" in name for name in gradients)
    near(ours, theirs, 1e-4, family)
    for name, gradient in expected.items():
        near(gradients[name], gradient, 5e-4, name)
    with model.disable_adapter():
        bare, _ = model(tokens).logits.detach(), None
    assert (bare - ours).abs().max() > 1e-3, "the adapter does nothing"


def test_no_sum_of_the_whole_stack_is_made(monkeypatch):
    from peft.tuners.lora.layer import ParamWrapper
    model = adapted("qwen3_moe")
    model.base_model.model.set_experts_implementation("moe64")

    def refuse(*_args, **_kwargs):
        raise AssertionError("PEFT multiplied the factors out")
    monkeypatch.setattr(ParamWrapper, "get_delta_factors", refuse)
    monkeypatch.setattr(ParamWrapper, "get_delta_weight", refuse)
    model(torch.randint(0, 97, (1, 4)))


def test_two_adapters_add_up():
    model = adapted("mixtral")
    model.add_adapter("second", LoraConfig(r=2, lora_alpha=3, target_parameters=TARGETS, target_modules=[]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "second" in name:
                parameter.normal_(0, 0.1)
    model.base_model.set_adapter(["default", "second"])
    tokens = torch.randint(0, 97, (1, 6))
    with torch.no_grad():
        model.base_model.model.set_experts_implementation("moe64")
        ours = model(tokens).logits
        model.base_model.model.set_experts_implementation("eager")
        near(ours, model(tokens).logits, 1e-4, "two adapters")


def test_adapters_are_saved_and_loaded_by_peft(tmp_path):
    model = adapted("qwen3_moe")
    tokens = torch.randint(0, 97, (1, 6))
    model.base_model.model.set_experts_implementation("moe64")
    with torch.no_grad():
        before = model(tokens).logits
        model.save_pretrained(tmp_path)
        again = PeftModel.from_pretrained(tiny("qwen3_moe"), tmp_path)
        again.base_model.model.set_experts_implementation("moe64")
        assert torch.equal(again(tokens).logits, before)
        merged = again.merge_and_unload()
        merged.set_experts_implementation("moe64")
        near(merged(tokens).logits, before, 1e-4, "merged")


class Wrapped(torch.nn.Module):
    """A model with one FP8 experts module, for get_peft_model."""

    def __init__(self, experts):
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.experts = experts
        self.config = {"model_type": "none"}

    def forward(self, x, ids, weights):
        return self.mlp.experts(x, ids, weights)


def fp8_adapted(device="cpu"):
    experts, exact = fp8_experts()
    experts.to(device).activation_scheme = "none"  # products of unquantised activations, on a GPU too
    exact = {name: tensor.to(device) for name, tensor in exact.items()}
    model = get_peft_model(Wrapped(experts), LoraConfig(r=3, lora_alpha=6, target_parameters=TARGETS, target_modules=[]))
    factors = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                assert parameter.dtype == torch.float32
                parameter.normal_(0, 0.2)
    wrappers = [m for m in model.modules() if type(m).__name__ == "ParamWrapper"]
    for wrapper in wrappers:
        lora = factors_of(wrapper.lora_A["default"].weight, wrapper.lora_B["default"].weight, 4, 2.0)
        factors[wrapper.parameter_name.removesuffix("_proj")] = (lora.a, lora.b, lora.scaling)
    return model, exact, factors


def test_lora_on_fp8_codes_has_the_right_values_and_gradients(device):
    import reference
    model, exact, factors = fp8_adapted(device)
    x = torch.randn(6, 128, device=device, requires_grad=True)
    ids, weights = torch.randint(0, 5, (6, 2), device=device), torch.rand(6, 2, device=device, requires_grad=True)
    ours = model(x, ids, weights)
    truth = reference.layer(x, ids, weights, exact["gate_up_proj"], exact["down_proj"], lora=factors)
    torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)
    inputs = (x, weights, *(p for n, p in model.named_parameters() if "lora_" in n))
    assert len(inputs) == 6
    dy = torch.randn_like(ours)
    for one, other in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(truth, inputs, dy)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_bfloat16_states_with_float32_adapters(device):
    import reference
    model, exact, factors = fp8_adapted(device)
    x = torch.randn(6, 128, device=device).bfloat16().requires_grad_()
    ids, weights = torch.randint(0, 4, (6, 2), device=device), torch.rand(6, 2, device=device)
    ours = model(x, ids, weights)
    truth = reference.layer(x.float(), ids, weights, exact["gate_up_proj"], exact["down_proj"], lora=factors)
    assert ours.dtype == torch.bfloat16
    near(ours, truth, 0.03, "bfloat16")
    parameters = [p for n, p in model.named_parameters() if "lora_" in n]
    dy = torch.randn_like(truth)
    for one, other in zip(torch.autograd.grad(ours, parameters, dy.bfloat16()),
                          torch.autograd.grad(truth, parameters, dy)):
        assert one.dtype == torch.float32
        near(one, other, 0.04, "gradient")


def test_pefts_own_sum_on_codes_is_refused():
    model, _, _ = fp8_adapted()
    model.base_model.model.mlp.experts.get_base_layer().config._experts_implementation = "grouped_mm"
    with pytest.raises(moe64.UnsupportedError, match="without their scale"):
        model(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))
    with pytest.raises(moe64.UnsupportedError, match="without their scale"):
        model.merge_adapter()


def test_the_factors_are_gone_after_the_call_and_after_an_error():
    from moe64 import lora
    model, _, _ = fp8_adapted()
    base = model.base_model.model.mlp.experts.get_base_layer()
    model(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))
    assert lora.active_factors(base) == {}
    with pytest.raises(moe64.Moe64Error):
        model(torch.randn(2, 128), torch.full((2, 1), 77), torch.ones(2, 1))
    assert lora.active_factors(base) == {}


def test_threads_do_not_see_each_others_adapters():
    model, _, _ = fp8_adapted()
    x, ids, weights = torch.randn(4, 128), torch.randint(0, 4, (4, 2)), torch.rand(4, 2)
    with torch.no_grad():
        expected = model(x, ids, weights)
    wrong = []

    def work():
        for _ in range(30):
            with torch.no_grad():
                if not torch.equal(model(x, ids, weights), expected):
                    wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_layouts_of_b_are_by_name_and_checked():
    a, b = torch.arange(6.).view(6, 1), torch.arange(12.).view(2, 6)
    peft_layout, unsloth = factors_of(a, b, 3, 1.0), factors_of(a, b, 3, 1.0, "unsloth")
    assert peft_layout.b[1, 0].tolist() == [1.0, 4.0] and unsloth.b[1, 0].tolist() == [2.0, 3.0]
    with pytest.raises(moe64.ShapeMismatchError, match="no common rank"):
        factors_of(torch.zeros(7, 1), torch.zeros(2, 7), 3, 1.0)
    with pytest.raises(moe64.InvalidArgumentError):
        factors_of(a, b, 3, 1.0, "guess")


def test_an_adapter_of_unsloth_is_read_as_such_and_never_by_peft():
    model = adapted("mixtral")
    tokens = torch.randint(0, 97, (1, 6))
    with torch.no_grad():
        model.base_model.model.set_experts_implementation("moe64")
        expected = model(tokens).logits
        for module in model.modules():
            if type(module).__name__ == "ParamWrapper":  # the same adapter with the rank fastest
                b = module.lora_B["default"].weight
                b.copy_(b.reshape(b.shape[0], -1, module.num_experts).transpose(1, 2).reshape(b.shape).clone())
        assert not torch.equal(model(tokens).logits, expected)
        assert moe64.lora.set_layout(model, "unsloth") == 4
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-5)
        model.base_model.model.set_experts_implementation("eager")
        with pytest.raises(moe64.UnsupportedError, match="layout 'unsloth'"):
            model(tokens)
        with pytest.raises(moe64.UnsupportedError, match="layout 'unsloth'"):
            model.merge_adapter()
    with pytest.raises(moe64.InvalidArgumentError):
        moe64.lora.set_layout(model, "other")


def test_the_handle_of_a_layer_is_kept_and_its_factors_are_always_the_present_ones():
    from moe64 import _handles
    model, _, _ = fp8_adapted()
    x, ids, weights = torch.randn(4, 128).bfloat16(), torch.randint(0, 4, (4, 2)), torch.rand(4, 2)
    with torch.inference_mode():
        model(x, ids, weights)
    with torch.no_grad():
        first = model(x, ids, weights)
        handles = len(_handles._layers)
        assert torch.equal(model(x, ids, weights), first) and len(_handles._layers) == handles
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.mul_(2)  # leaves no trace in the tensor's version
        assert not torch.equal(model(x, ids, weights), first) and len(_handles._layers) == handles
    with torch.inference_mode():
        again = model(x, ids, weights)
    with torch.enable_grad():
        torch.testing.assert_close(model(x, ids, weights).detach(), again)


def test_each_experts_factors_are_contiguous():
    """Else the products of PEFT's B, with the expert fastest, would be the slowest there are."""
    from moe64 import lora
    model, _, _ = fp8_adapted()
    seen = []
    original = moe64.transformers.experts
    try:
        moe64.transformers.experts = lambda x, ids, w, weights: seen.append(weights) or original(x, ids, w, weights)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                model(torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))
    finally:
        moe64.transformers.experts = original
    for weights in seen:
        for factors in (weights.gate_up.lora, weights.down.lora):
            assert factors.a.is_contiguous() and factors.b.is_contiguous()
    assert len(seen) == 2 and lora.active_factors(model) == {}


def test_pefts_own_sum_on_packed_codes_is_refused():
    """Four-bit codes are bytes: PEFT takes them for a type that it may add to."""
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.down_proj = torch.nn.Parameter(torch.zeros(4, 16, 8, dtype=torch.int8), requires_grad=False)

        def forward(self, x, ids, weights):
            return self.down_proj

    model = get_peft_model(Wrapped(Packed()), LoraConfig(r=3, target_parameters=["mlp.experts.down_proj"], target_modules=[]))
    with pytest.raises(moe64.UnsupportedError, match="torch.int8 codes of down_proj without their scale"):
        model(None, None, None)
    with pytest.raises(moe64.UnsupportedError, match="without their scale"):
        model.merge_adapter()


def frozen_with_attention(implementation="moe64"):
    """Expert adapters that are frozen, and trainable adapters of attention."""
    model = adapted("qwen3_moe")
    model.base_model.model.set_experts_implementation(implementation)
    model.add_adapter("attention", LoraConfig(r=2, target_modules=["q_proj"]))
    model.base_model.set_adapter(["default", "attention"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("attention" in name)
            if "attention" in name:
                parameter.fill_(0.01)
    return model


@pytest.mark.parametrize("between", ["another forward", "a forward under no_grad", "a forward in inference_mode"])
def test_a_frozen_expert_adapter_with_trainable_parameters(between):
    """Its copies are remembered for backward: a later forward may not write them."""
    tokens, others = torch.randint(0, 97, (1, 6)), torch.randint(0, 97, (1, 6))
    gradients = []
    for implementation in ("moe64", "eager"):
        model = frozen_with_attention(implementation)
        loss = model(tokens).logits.square().mean()
        if between == "another forward":
            loss = loss + model(others).logits.square().mean()
        else:
            with torch.no_grad() if "no_grad" in between else torch.inference_mode():
                model(others)
        loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0] and gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        near(gradients[0][name], gradient, 5e-4, name)


def test_an_adapter_on_a_class_that_runs_itself_is_pefts():
    """A class without the decorator may have a config that says moe64: nobody would take factors that were handed over."""
    class Itself(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = types.SimpleNamespace(_experts_implementation="moe64")
            self.down_proj = torch.nn.Parameter(torch.randn(4, 16, 8))

        def forward(self, x, ids, weights):
            return torch.einsum("th,ehi->tei", x, self.down_proj)

    config = LoraConfig(r=3, target_parameters=["mlp.experts.down_proj"], target_modules=[], init_lora_weights=False)
    model = get_peft_model(Wrapped(Itself()), config)
    experts = model.base_model.model.mlp.experts
    x = torch.randn(5, 16)
    truth = torch.einsum("th,ehi->tei", x, experts.get_param() + experts.get_delta_weight("default"))
    torch.testing.assert_close(model(x, None, None), truth, rtol=1e-4, atol=1e-4)


def test_an_adapter_that_nobody_takes_is_refused():
    """Experts whose forward was replaced, as by kernels from elsewhere, do not ask for the factors."""
    model, _, _ = fp8_adapted()
    call = torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    model(*call)
    model.base_model.model.mlp.experts.get_base_layer().forward = lambda x, ids, weights: x * 0
    with pytest.raises(moe64.UnsupportedError, match="another forward of FP8Experts ran.*default of .*_proj would be left out"):
        model(*call)
    with model.disable_adapter():
        assert (model(*call) == 0).all()
