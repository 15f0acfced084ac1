"""Adapters with unsloth, which replaces PEFT's forward and loading, and what adapter files say about the layout of B."""

import copy
import functools
import json

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("peft")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from peft.tuners.lora.layer import ParamWrapper  # noqa: E402
from test_lora import TARGETS, adapted, fp8_adapted  # noqa: E402
from test_transformers import near, tiny  # noqa: E402

TOKENS = torch.arange(6)[None] * 7 % 97


def wrappers_of(model):
    return [module for module in model.modules() if isinstance(module, ParamWrapper)]


# ---- a forward that is not PEFT's ---------------------------------------------------------------

@pytest.fixture
def unsloth(monkeypatch):
    """What unsloth_zoo puts in the place of ParamWrapper.forward: PEFT's for weights that it can add to, and for codes the
    factors as an attribute of the experts, which an experts forward of its own would read."""
    peft_forward = ParamWrapper.forward

    def forward(self, x, *args, **kwargs):
        experts = self.get_base_layer()
        if self.disable_adapters or self.merged:
            return self.base_layer(x, *args, **kwargs)
        if getattr(experts, self.parameter_name).element_size() > 1:
            return peft_forward(self, x, *args, **kwargs)
        name = next(iter(self.lora_A))
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        setattr(experts, "_unsloth_lora_" + self.parameter_name, (a, b, self.scaling[name], self.num_experts))
        try:
            return self.base_layer(x, *args, **kwargs)
        finally:
            delattr(experts, "_unsloth_lora_" + self.parameter_name)
    monkeypatch.setattr(ParamWrapper, "forward", forward)
    return forward


CALL = torch.arange(4 * 128).view(4, 128).sin(), torch.tensor([[0, 1], [3, 2], [1, 4], [2, 0]]), torch.full((4, 2), 0.4)


def outputs(model):
    """y and the gradients of all factors."""
    y = model(*CALL)
    factors = {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(factors.values()), allow_unused=True)]


def test_adapters_on_codes_are_seen_in_unsloths_forward(request):
    model, _, _ = fp8_adapted()
    expected = outputs(model)
    request.getfixturevalue("unsloth")
    found = outputs(model)
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in found[1:])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    with model.disable_adapter():
        assert (model(*CALL) - found[0]).abs().max() > 1e-3, "the adapter does nothing"


def test_with_unsloth_the_active_adapters_count_not_the_first(unsloth):
    model, _, _ = fp8_adapted()
    model.add_adapter("second", LoraConfig(r=2, target_parameters=TARGETS, target_modules=[]))
    with torch.no_grad():
        first = model(*CALL)
        for name, parameter in model.named_parameters():
            if "second" in name:
                parameter.normal_(0, 0.2)
        model.set_adapter("second")
        second = model(*CALL)
        model.base_model.set_adapter([])
        none = model(*CALL)
        with model.disable_adapter():
            assert torch.equal(model(*CALL), none)
    assert (first - second).abs().max() > 1e-3 and (second - none).abs().max() > 1e-3


def test_adapters_on_bfloat16_and_float32_experts_with_unsloth(unsloth):
    model = adapted("qwen3_moe")
    results = []
    for implementation in ("moe64", "eager"):
        model.base_model.model.set_experts_implementation(implementation)
        results.append(model(TOKENS).logits)
    near(*results, 1e-4, "logits")


def test_factors_that_unsloth_hands_over_without_a_wrapper_are_refused():
    model, _, _ = fp8_adapted()
    experts = model.base_model.model.mlp.experts.get_base_layer()
    experts._unsloth_lora_gate_up_proj = (torch.zeros(1), torch.zeros(1), 1.0, 4)
    with pytest.raises(moe64.UnsupportedError, match="unsloth hands factors of gate_up_proj"):
        experts(*CALL)
    model(*CALL)  # called around it, PEFT's are used


def test_a_sum_that_a_foreign_forward_has_put_in_place_is_refused(monkeypatch):
    model = adapted("qwen3_moe")
    model.base_model.model.set_experts_implementation("moe64")

    def forward(self, x, *args, **kwargs):
        experts = self.get_base_layer()
        base = experts._parameters[self.parameter_name]
        experts._parameters[self.parameter_name] = base + self.get_delta_weight("default")
        try:
            return self.base_layer(x, *args, **kwargs)
        finally:
            experts._parameters[self.parameter_name] = base
    monkeypatch.setattr(ParamWrapper, "forward", forward)
    with pytest.raises(moe64.UnsupportedError, match="is not PEFT's and has replaced it"):
        model(TOKENS)


# ---- what files say -----------------------------------------------------------------------------

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An adapter of a small Qwen3-MoE as PEFT saves it, and the logits with it."""
    folder = tmp_path_factory.mktemp("adapter")
    model = adapted("qwen3_moe")
    model.base_model.model.set_experts_implementation("moe64")
    model.save_pretrained(folder)
    with torch.no_grad():
        return folder, model(TOKENS).logits


def regroup(tensors, experts=6):
    """B as [out, experts, rank] in place of [out, rank, experts]."""
    return {name: b.reshape(b.shape[0], -1, experts).transpose(1, 2).reshape(b.shape).contiguous() if "lora_B" in name else b
            for name, b in tensors.items()}


def detail(**words):
    return {"lora_A_layout": "grouped_by_expert",
            "parameters": {name: {"lora_B_layout": word, "num_experts": 6} for name, word in words.items()}}


BOTH = {"gate_up_proj": "grouped_by_expert", "down_proj": "grouped_by_expert"}
GROUPED = {
    "stamp": {"lora_B_layout": "grouped_by_expert"},
    "stamp and detail": {"lora_B_layout": "grouped_by_expert", "unsloth_fused_expert_lora": detail(**BOTH)},
    "detail": {"unsloth_fused_expert_lora": detail(**BOTH)},
    "auto_mapping": {"auto_mapping": {"unsloth_fixed": True, "unsloth_fused_expert_lora": detail(**BOTH)}},
    "unstamped": {"auto_mapping": {"unsloth_fixed": True}},
}


@pytest.fixture
def written(trained, tmp_path):
    """written(keys, grouped) is a folder with the adapter and more keys in its config."""
    from safetensors.torch import load_file, save_file

    def write(keys, grouped=True, name="copy"):
        folder = tmp_path / name
        folder.mkdir()
        tensors = load_file(trained[0] / "adapter_model.safetensors")
        save_file(regroup(tensors) if grouped else tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = json.loads((trained[0] / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, **keys}))
        return folder
    return write


def load(folder, **options):
    model = PeftModel.from_pretrained(tiny("qwen3_moe"), folder, **options)
    model.base_model.model.set_experts_implementation("moe64")
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def assert_same(model, trained):
    torch.testing.assert_close(logits(model), trained[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", GROUPED)
def test_an_adapter_that_is_grouped_by_expert_is_read_so(form, written, trained):
    model = load(written(GROUPED[form]))
    assert_same(model, trained)
    model.base_model.model.set_experts_implementation("eager")
    with pytest.raises(moe64.UnsupportedError, match="layout 'unsloth'"):
        logits(model)


@pytest.mark.parametrize("form", [form for form in GROUPED if form != "unstamped"])
def test_a_layout_cannot_be_stated_against_the_file(form, written, trained):
    model = load(written(GROUPED[form]))
    with pytest.raises(moe64.InvalidArgumentError, match="its file states lora_B_layout = grouped_by_expert"):
        moe64.lora.set_layout(model, "peft")
    assert moe64.lora.set_layout(model, "unsloth") == 4
    assert_same(model, trained)


def test_rank_major_is_pefts_and_cannot_be_stated_otherwise(written, trained):
    model = load(written({"lora_B_layout": "rank_major", "auto_mapping": {"unsloth_fixed": True}}, grouped=False))
    assert_same(model, trained)
    with pytest.raises(moe64.InvalidArgumentError, match="set_layout.*states lora_B_layout = rank_major"):
        moe64.lora.set_layout(model, "unsloth")
    assert_same(model, trained)
    model.base_model.model.set_experts_implementation("eager")
    near(logits(model), trained[1], 1e-4, "PEFT's own")


def test_an_unstamped_file_may_be_overruled(written, trained):
    """unsloth could be told to train on PEFT's own forward, and does not say so in the file."""
    model = load(written(GROUPED["unstamped"], grouped=False))
    assert (logits(model) - trained[1]).abs().max() > 1e-3
    moe64.lora.set_layout(model, "peft")
    assert_same(model, trained)


def test_an_unstamped_file_for_a_family_that_is_not_known_is_refused_until_stated(written, trained, monkeypatch):
    from moe64 import _adapter_layout
    monkeypatch.setattr(_adapter_layout, "_GROUPED_BEFORE_STAMPS", frozenset())
    model = load(written(GROUPED["unstamped"]))
    for implementation in ("moe64", "eager"):
        model.base_model.model.set_experts_implementation(implementation)
        with pytest.raises(moe64.UnsupportedError, match="'qwen3_moe' is not known.*set_layout"):
            logits(model)
    model.base_model.model.set_experts_implementation("moe64")
    moe64.lora.set_layout(model, "unsloth")
    assert_same(model, trained)


@pytest.mark.parametrize("keys, message", [
    ({"lora_B_layout": "diagonal"}, "'diagonal' for all parameters"),
    ({"unsloth_fused_expert_lora": detail(down_proj="mixed")}, "'mixed' for down_proj"),
    ({"lora_B_layout": "rank_major", "unsloth_fused_expert_lora": detail(**BOTH)}, "contradicts itself"),
    ({"lora_B_layout": "rank_major", "auto_mapping": {"lora_B_layout": "grouped_by_expert"}}, "contradicts itself"),
    ({"unsloth_fused_expert_lora": {"lora_A_layout": "other"}}, "lora_A_layout = 'other'"),
    ({"unsloth_fused_expert_lora": 7}, "is 7, not an object")])
def test_files_that_say_something_else_are_refused(keys, message, written):
    with pytest.raises(moe64.Moe64Error, match=message):
        load(written(keys))


def test_a_file_that_states_one_parameter_leaves_the_other_unknown(written):
    model = load(written({"unsloth_fused_expert_lora": detail(down_proj="rank_major")}, grouped=False))
    with pytest.raises(moe64.UnsupportedError, match="gate_up_proj is not known: its file states .* down_proj alone"):
        logits(model)


@pytest.mark.parametrize("form", [*GROUPED, "set_layout"])
def test_a_saved_adapter_states_its_layout(form, written, trained, tmp_path):
    """PEFT drops keys that it does not know, and writes auto_mapping anew."""
    model = load(written(GROUPED.get(form, {})))
    if form == "set_layout":
        moe64.lora.set_layout(model, "unsloth")
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "adapter_config.json").read_text())["lora_B_layout"] == "grouped_by_expert"
    again = load(tmp_path / "again")
    assert_same(again, trained)
    assert_same(copy.deepcopy(again), trained)


def test_adapters_without_a_stamp_are_saved_without_one(trained):
    config = json.loads((trained[0] / "adapter_config.json").read_text())
    assert not {"lora_B_layout", "unsloth_fused_expert_lora"} & config.keys()


def test_two_adapters_have_a_layout_each(written, trained):
    model = load(written({}, grouped=False))
    model.load_adapter(written(GROUPED["stamp"], name="other"), "other")
    for name in ("default", "other"):
        model.set_adapter(name)
        assert_same(model, trained)
    with pytest.raises(moe64.InvalidArgumentError, match="adapter 'other'"):
        moe64.lora.set_layout(model, "peft")
    with pytest.raises(moe64.InvalidArgumentError, match="adapter is 'third', which no expert parameter"):
        moe64.lora.set_layout(model, "peft", adapter="third")
    assert moe64.lora.set_layout(model, "unsloth", adapter="default") == 4
    assert (logits(model) - trained[1]).abs().max() < 1e-4
    model.set_adapter("default")
    assert (logits(model) - trained[1]).abs().max() > 1e-3


def test_weights_that_are_read_into_an_adapter_that_is_there(written, trained):
    """PEFT does not look at the config of the file then."""
    model = load(written({}, grouped=False))
    model.load_adapter(written(GROUPED["stamp"], name="other"), "default")
    assert_same(model, trained)
    model.load_adapter(written({}, grouped=False, name="back"), "default")
    assert_same(model, trained)


def test_adapters_that_transformers_loads_itself(written, trained):
    model = tiny("qwen3_moe")
    model.set_experts_implementation("moe64")
    model.load_adapter(str(written(GROUPED["stamp"])))
    assert_same(model, trained)


def test_an_adapter_from_before_the_import_is_refused_until_stated(written, trained):
    model = load(written({}, grouped=False))
    for wrapper in wrappers_of(model):
        del wrapper._moe64_layouts
    with pytest.raises(moe64.UnsupportedError, match="was there before moe64.transformers was imported"):
        logits(model)
    assert moe64.lora.set_layout(model, "peft") == 4
    assert_same(model, trained)


def test_an_adapter_is_not_swapped_for_one_of_another_layout(written):
    from peft.utils.hotswap import hotswap_adapter
    model = load(written({}, grouped=False))
    hotswap_adapter(model, str(written({}, grouped=False, name="same")), adapter_name="default")
    with pytest.raises(moe64.UnsupportedError, match="cannot be swapped"):
        hotswap_adapter(model, str(written(GROUPED["stamp"], name="other")), adapter_name="default")


# ---- unsloth's loading --------------------------------------------------------------------------

def replaced_loading(original, marks=True):
    """unsloth's PeftModel.load_adapter: lays B out as PEFT does, by what the file says, after the weights were read."""
    @functools.wraps(original)
    def load_adapter(self, model_id, adapter_name, *args, **options):
        answer = original(self, model_id, adapter_name, *args, **options)
        for wrapper in wrappers_of(self):
            b = wrapper.lora_B[adapter_name].weight
            with torch.no_grad():
                b.copy_(b.reshape(b.shape[0], wrapper.num_experts, -1).transpose(1, 2).reshape(b.shape).clone())
            if marks:  # until a Trainer has resumed its optimizer
                b._unsloth_lora_b_repacked = (wrapper.num_experts, b.shape[1] // wrapper.num_experts)
        return answer
    load_adapter._unsloth_moe_layout_patched = True
    return load_adapter


@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("marks", [True, False], ids=["marked", "mark gone"])
def test_what_unsloth_has_laid_out_anew_is_not_turned_again(form, marks, written, trained, monkeypatch, tmp_path):
    monkeypatch.setattr(PeftModel, "load_adapter", replaced_loading(PeftModel.load_adapter, marks))
    model = load(written(GROUPED[form]))
    assert_same(model, trained)
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "adapter_config.json").read_text())["lora_B_layout"] == "rank_major"


def test_what_unsloth_has_not_laid_out_anew_is_refused(written, monkeypatch):
    """It reads such an adapter in its own way, and would write that it is PEFT's."""
    load_adapter = PeftModel.load_adapter
    monkeypatch.setattr(PeftModel, "load_adapter",
                        functools.wraps(load_adapter)(lambda self, *args, **options: load_adapter(self, *args, **options)))
    PeftModel.load_adapter._unsloth_moe_layout_patched = True
    model = load(written(GROUPED["stamp"]))
    with pytest.raises(moe64.UnsupportedError, match="unset UNSLOTH_MOE_LORA_B_LAYOUT"):
        logits(model)


def test_a_fresh_adapter_of_a_config_that_unsloth_has_marked_is_refused_until_stated():
    config = LoraConfig(r=3, target_parameters=TARGETS, target_modules=[])
    config.auto_mapping = {"unsloth_fixed": True}
    model = get_peft_model(tiny("qwen3_moe"), config)
    model.base_model.model.set_experts_implementation("moe64")
    with pytest.raises(moe64.UnsupportedError, match="unsloth has marked its config"):
        logits(model)
    moe64.lora.set_layout(model, "peft")
    logits(model)
