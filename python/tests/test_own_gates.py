"""Codes in place of experts compute what the class computes: its gate, its norm, its way to be called."""

import inspect
import json
import shutil
import types

import pytest
import torch
from torch import nn

import moe64

transformers = pytest.importorskip("transformers", minversion="5.7")
import moe64.transformers  # noqa: E402
from moe64 import codes, families  # noqa: E402
from test_checkpoint import distance, expanded, synth  # noqa: E402, F401
from test_families import class_of, settings  # noqa: E402
from test_transformers import near  # noqa: E402
from transformers.integrations.moe import use_experts_implementation  # noqa: E402

LIKE = "qwen3-30b"


def experts_of(model):
    return [(layer.mlp, layer.mlp.experts) for layer in model.model.layers]


def with_class(model, make):
    """The model with experts of another class around the same weights."""
    for block, old in experts_of(model):
        new = make(old)
        for name in ("gate_up_proj", "down_proj"):
            getattr(new, name).data = getattr(old, name).data
        if hasattr(new, "config"):
            new.config._experts_implementation = "eager"
        block.experts = new
    return model.float()


def of_family(place, **more):
    def make(old):
        count, hidden, inter = old.down_proj.shape
        given = settings(**more)
        for name in vars(given):
            if name.endswith("_experts"):
                setattr(given, name, count)
            elif name.endswith("intermediate_size"):
                setattr(given, name, inter)
            elif name.endswith("hidden_size"):
                setattr(given, name, hidden)
        made = class_of(place)(given)
        for child in made.children():
            for parameter in child.parameters():
                nn.init.normal_(parameter, 1, 0.5)
        return made
    return make


def logits(model, seed=3):
    torch.manual_seed(seed)
    with torch.no_grad():
        return model(torch.randint(0, 90, (1, 7))).logits


@pytest.mark.parametrize("place", ["muse_spark.MuseSparkExperts", "inkling2.Inkling2Experts", "beam.BeamExperts",
                                   "step3p7.Step3p7Experts"])
def test_keep_codes_keeps_the_gate_and_the_norm_of_the_class(synth, place):  # noqa: F811
    model = with_class(expanded(synth(LIKE), LIKE), of_family(place))
    for _, experts in experts_of(model):
        experts.limit = 0.01  # of Step-3.7, clamped behind its SiLU; the others do not read it
    before = logits(model)
    names = moe64.transformers.keep_codes(model, synth(LIKE))
    assert distance(logits(model), before) <= 0.01
    assert names and all(model.get_submodule(name).activation is None for name in names)
    moved = model.to(torch.float64).to(torch.float32)  # a norm of the class goes along, codes do not
    assert distance(logits(moved), before) <= 0.01


def test_keep_codes_follows_the_limit_of_the_class_and_says_so(synth):  # noqa: F811
    """Configs that leave swiglu_limit out, and a class that has a default for it."""
    model = with_class(expanded(synth(LIKE), LIKE), of_family("deepseek_v4.DeepseekV4Experts"))
    for _, experts in experts_of(model):
        experts.limit = 0.01
    before = logits(model)
    with pytest.warns(UserWarning, match=r"DeepseekV4Experts computes .*clamped_silu_glu.*silu_glu.*the class is followed"):
        names = moe64.transformers.keep_codes(model, synth(LIKE))
    assert distance(logits(model), before) <= 0.01
    assert {model.get_submodule(name).activation for name in names} == {moe64.Activation("clamped_silu_glu", limit=0.01)}


def interleaved(gate_up):
    gate, up = gate_up[..., ::2], gate_up[..., 1::2]
    return torch.tanh(gate) * up


def test_a_gate_of_interleaved_rows_gets_interleaved_rows(synth):  # noqa: F811
    """Codes have all gate rows before all up rows, whatever the class' own stack had."""
    @use_experts_implementation(is_concatenated=False)
    class Interleaved(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.gate_up_proj, self.down_proj = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))

        def _apply_gate(self, gate_up):
            return interleaved(gate_up)

        def forward(self, *args):
            raise AssertionError

    weights = moe64.load_experts(synth(LIKE), 0, fused=True)
    module = moe64.transformers.CodeExperts(weights, own=Interleaved(types.SimpleNamespace()))
    gate, up = torch.randn(2, 3, 5)
    assert torch.equal(module._apply_gate(torch.cat((gate, up), -1)), torch.tanh(gate) * up)


@pytest.mark.parametrize("like", ["gpt-oss", "qwen3-30b-nvfp4"])
def test_an_own_gate_of_every_format(synth, like):  # noqa: F811
    """4-bit codes, biases, and a grid of scales that restarts at the up half."""
    weights = moe64.load_experts(synth(like), 0, fused=True)

    class Odd(nn.Module):
        has_gate = is_concatenated = True
        is_transposed, has_bias = False, weights.down.bias is not None

        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return torch.tanh(gate) * up

    module = moe64.transformers.CodeExperts(weights, own=Odd())
    plain = [moe64.dequantize(half, dtype=torch.float32) for half in moe64.transformers._halves(weights.gate_up.weights)]
    down = moe64.dequantize(weights.down.weights, dtype=torch.float32)
    x, ids, factors = torch.randn(5, down.shape[1]), torch.randint(0, down.shape[0], (5, 2)), torch.rand(5, 2)
    truth = torch.zeros_like(x)
    for t in range(5):
        for e, factor in zip(ids[t].tolist(), factors[t]):
            gate, up = (half[e] @ x[t] for half in plain)
            if weights.gate_up.bias is not None:
                gate, up = (v + b for v, b in zip((gate, up), weights.gate_up.bias[e].float().chunk(2)))
            y = down[e] @ (torch.tanh(gate) * up)
            truth[t] += factor * (y if weights.down.bias is None else y + weights.down.bias[e])
    torch.testing.assert_close(module(x, ids, factors), truth, rtol=1e-3, atol=1e-3 * truth.abs().max().item())


@pytest.fixture
def with_norms(synth, tmp_path):  # noqa: F811
    """A checkpoint whose experts have a norm behind them, in a shard of its own."""
    from safetensors.torch import save_file
    folder = tmp_path / "m"
    shutil.copytree(synth(LIKE), folder)
    config = json.loads((folder / "config.json").read_text())
    norms = {f"model.layers.{i}.mlp.experts.post_expert_norm.weight": torch.rand(config["hidden_size"]) + 0.5
             for i in range(config["num_hidden_layers"])}
    save_file(norms, folder / "norms.safetensors")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        whole = json.loads(index.read_text())
    else:
        from safetensors import safe_open
        with safe_open(folder / "model.safetensors", "pt") as file:
            whole = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), "model.safetensors")}
    whole["weight_map"] |= dict.fromkeys(norms, "norms.safetensors")
    index.write_text(json.dumps(whole))
    return folder


@pytest.mark.skipif("has_post_expert_norm" not in inspect.signature(use_experts_implementation).parameters,
                    reason=f"Transformers {transformers.__version__} has no norms behind experts")
def test_from_pretrained_keeps_the_gate_and_the_norm_of_the_class(with_norms, monkeypatch):
    from transformers.models.qwen3_moe import modeling_qwen3_moe as family
    plain = family.Qwen3MoeExperts

    class Odd(nn.Module):
        def __init__(self, config):
            super().__init__()
            like = plain(config)
            self.num_experts, self.act_fn, self.factor = like.num_experts, like.act_fn, 3.0
            self.gate_up_proj, self.down_proj = like.gate_up_proj, like.down_proj
            self.post_expert_norm = nn.RMSNorm(config.hidden_size)

        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return torch.tanh(self.factor * gate) * up

        def forward(self, *args):
            raise AssertionError

    monkeypatch.setattr(family, "Qwen3MoeExperts", use_experts_implementation(Odd, has_post_expert_norm=True))
    options = {"dtype": torch.float32, "quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}
    truth = transformers.AutoModelForCausalLM.from_pretrained(with_norms, experts_implementation="grouped_mm", **options)
    model, info = moe64.transformers.from_pretrained(with_norms, output_loading_info=True, **options)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    assert distance(logits(model), logits(truth)) <= 0.01
    found = [experts for _, experts in experts_of(model)]
    assert all(isinstance(one, moe64.transformers.CodeExperts) and one.activation is None for one in found)
    assert {name for name in truth.state_dict() if "norm" in name} == {name for name in model.state_dict() if "norm" in name}


@pytest.mark.parametrize("make,why", [
    (lambda old: nn.ModuleList([nn.Linear(2, 2)]), "ModuleList lacks @use_experts_implementation"),
    (of_family("longcat_flash.LongcatFlashExperts", expert_ffn_hidden_size=8, zero_expert_num=1), "LongcatFlashExperts lacks"),
    (of_family("gpt_oss.GptOssExperts"), "GptOssExperts has has_bias True, and the checkpoint False"),
    (of_family("nemotron_h.NemotronHExperts"), "NemotronHExperts has has_gate False, and the checkpoint True")])
def test_classes_that_do_what_codes_cannot_are_refused(synth, make, why):  # noqa: F811
    weights = moe64.load_experts(synth(LIKE), 0, fused=True)
    old = types.SimpleNamespace(down_proj=weights.down.weights.values)
    with pytest.raises(moe64.UnsupportedError, match=why):
        moe64.transformers.CodeExperts(weights, own=make(old))


def test_a_forward_in_the_place_of_the_decorated_one_is_told_and_never_replaced(synth, monkeypatch):  # noqa: F811
    """A class derived from one of Transformers has its flags, and may do something else."""
    monkeypatch.setattr(families, "_told", set())

    class TwiceExperts(class_of("qwen3_moe.Qwen3MoeExperts")):
        def forward(self, *args):
            return 2 * super().forward(*args)

    model = expanded(synth(LIKE), LIKE)
    for _, old in experts_of(model):
        old.__class__ = TwiceExperts
    with pytest.warns(UserWarning, match="TwiceExperts of .* or has another forward"):
        model.set_experts_implementation("moe64")
    with pytest.raises(moe64.UnsupportedError, match="TwiceExperts lacks .* or has another forward"):
        moe64.transformers.keep_codes(model, synth(LIKE))


def test_keep_codes_refuses_a_class_that_is_not_understood(synth):  # noqa: F811
    model = expanded(synth(LIKE), LIKE)
    for block, old in experts_of(model):
        block.experts = nn.ModuleList([old])
    with pytest.raises(moe64.UnsupportedError, match="ModuleList lacks @use_experts_implementation"):
        moe64.transformers.keep_codes(model, synth(LIKE))


def test_weights_that_codes_do_not_have_are_refused(synth):  # noqa: F811
    class More(nn.Module):
        has_gate, is_transposed, has_bias = True, False, False

        def __init__(self):
            super().__init__()
            self.per_expert_scale = nn.Parameter(torch.ones(4))
    with pytest.raises(moe64.UnsupportedError, match="More has per_expert_scale in addition to its projections"):
        moe64.transformers.CodeExperts(moe64.load_experts(synth(LIKE), 0, fused=True), own=More())


def test_from_pretrained_refuses_a_class_that_is_not_understood(synth, monkeypatch):  # noqa: F811
    from transformers.models.qwen3_moe import modeling_qwen3_moe as family

    class Undecorated(nn.Module):
        def __init__(self, config):
            super().__init__()
    monkeypatch.setattr(family, "Qwen3MoeExperts", Undecorated)
    with pytest.raises(moe64.UnsupportedError, match="Undecorated lacks @use_experts_implementation"):
        moe64.transformers.from_pretrained(synth(LIKE), dtype=torch.float32,
                                           quantization_config=transformers.FineGrainedFP8Config(dequantize=True))
    assert not codes.is_loading()


def test_codes_are_in_training_when_their_class_was(synth):  # noqa: F811
    """A gate with dropout does nothing of it in a model that was set to eval, before or after."""
    class Odd(nn.Module):
        has_gate, is_transposed, has_bias = True, False, False

        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return nn.functional.dropout(torch.tanh(gate) * up, 0.5, self.training)

    weights = moe64.load_experts(synth(LIKE), 0, fused=True)
    x, ids = torch.randn(5, weights.down.weights.values.shape[1]), torch.zeros(5, 2, dtype=torch.int64)
    before, after = (moe64.transformers.CodeExperts(weights, own=own) for own in (Odd().eval(), Odd()))
    assert not before.training and after.training
    truth = before(x, ids, torch.ones(ids.shape))
    assert not torch.equal(after(x, ids, torch.ones(ids.shape)), truth)
    assert torch.equal(after.eval()(x, ids, torch.ones(ids.shape)), truth)
    model = expanded(synth(LIKE), LIKE)
    moe64.transformers.keep_codes(model, synth(LIKE))
    assert not any(module.training for module in model.modules())


def fp8_options():
    return {"dtype": torch.float32, "quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}


@pytest.mark.parametrize("key", ["moe_intermediate_size", "num_experts"])
def test_codes_of_other_extents_than_the_model_has_are_refused(key, synth):  # noqa: F811
    """Transformers refuses such weights; codes came past it."""
    config = transformers.AutoConfig.from_pretrained(synth(LIKE))
    setattr(config, key, 2 * getattr(config, key))
    with pytest.raises(moe64.ShapeMismatchError, match=r"rows per expert, the checkpoint|experts, layer 0 of .* has"):
        moe64.transformers.from_pretrained(synth(LIKE), config=config, **fp8_options())
    model = expanded(synth(LIKE), LIKE)
    for _, experts in experts_of(model):
        experts.gate_up_proj.data = experts.gate_up_proj.data.repeat(1, 2, 1)
    with pytest.raises(moe64.ShapeMismatchError, match="gate_up_proj of Qwen3MoeExperts has .* rows per expert"):
        moe64.transformers.keep_codes(model, synth(LIKE))


def test_two_stacks_of_experts_of_one_layer_are_refused_and_mtp_is_left_alone(synth):  # noqa: F811
    """A vision tower with experts, say: the number of the layer tells nothing of which are meant."""
    model = expanded(synth(LIKE), LIKE)
    first = model.model.layers[0].mlp
    model.mtp = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"experts": first.experts})])})
    model.model.layers[1].vision = nn.ModuleDict({"experts": model.model.layers[1].mlp.experts.__class__(model.config)})
    with pytest.raises(moe64.UnsupportedError, match=r"layers\.1\.mlp\.experts and .*vision\.experts are both experts of .* 1"):
        moe64.transformers.keep_codes(model, synth(LIKE))
    assert not any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())
    del model.model.layers[1].vision
    assert moe64.transformers.keep_codes(model, synth(LIKE)) == ["model.layers.0.mlp.experts", "model.layers.1.mlp.experts"]


# ---- Llama-4 ------------------------------------------------------------------------------------

def llama4(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.vision_config = type(config.vision_config)(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                                      num_attention_heads=1, projector_input_dim=16, vision_output_dim=16,
                                                      projector_output_dim=16)  # which the files do not have
    config.quantization_config["ignore"] += ["re:.*vision.*", "re:.*multi_modal.*"]
    model = moe64.transformers.from_pretrained(folder, dtype=torch.float32, config=config,
                                               auto_class=transformers.AutoModelForImageTextToText)
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, moe64.transformers.CodeExperts)]
    assert len(found) == sum(layer["sound"] for layer in moe64.inspect(folder)["layers"]) > 0
    return model, found


def test_llama4_experts_are_codes_that_run(synth):  # noqa: F811
    """Its class is called with a copy of all tokens for each expert, weighted by the router; forward and gradient."""
    pytest.importorskip("compressed_tensors")
    model, found = llama4(synth("llama-4"))
    assert all(module.weight_on == "input" for _, module in found)
    tokens = torch.randint(0, 90, (1, 7))
    results = []
    for expand in (False, True):
        if expand:  # Transformers itself reads stacks of Llama-4 only
            for name, module in found:
                loops = class_of("llama4.Llama4TextExperts")(model.config.get_text_config())
                gate_up, down = (moe64.dequantize(module.matrix(which), dtype=torch.float32)
                                 for which in ("gate_up_proj", "down_proj"))
                loops.gate_up_proj.data, loops.down_proj.data = gate_up.transpose(1, 2), down.transpose(1, 2)
                model.set_submodule(name, loops.requires_grad_(False))
        embedded = model.get_input_embeddings()(tokens).detach().requires_grad_()
        out = model(inputs_embeds=embedded).logits
        results.append((out, torch.autograd.grad(out.square().mean(), embedded)[0]))
    for ours, theirs in zip(*results, strict=True):
        near(ours, theirs, 1e-4, "llama4")
    assert model.get_submodule(found[0][0]) is not found[0][1]


def test_llama4_computes_chosen_rows_alone(synth, monkeypatch):  # noqa: F811
    pytest.importorskip("compressed_tensors")
    _, found = llama4(synth("llama-4"))
    module, seen = found[0][1], []
    monkeypatch.setattr(moe64.transformers, "experts", lambda x, ids, *rest: seen.append(ids) or x)
    rows = torch.zeros(module.num_experts, 3, module.down_proj.shape[1])
    rows[1, 2], rows[3, 0] = 1, float("nan")
    module(rows)
    assert seen[0].flatten().tolist() == [-1, -1, -1, -1, -1, 1, -1, -1, -1, 3, -1, -1]
    with pytest.raises(moe64.ShapeMismatchError, match="has 5 rows, no multiple of the 4 experts"):
        module(rows.flatten(0, 1)[:5])
