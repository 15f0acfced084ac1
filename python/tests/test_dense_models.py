"""Whole FP8 models whose dense layers are codes: the logits and the training of their dequantised copies."""

import copy
import itertools
import json
import re
import shutil

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate", reason="fine-grained FP8 needs accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64.dense.compressed import CompressedLinear  # noqa: E402
from moe64.transformers import CodeLinear  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_transformers import near, tiny  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.integrations.finegrained_fp8 import FP8Linear  # noqa: E402

TOKENS = torch.arange(2 * 7).view(2, 7) * 5 % 97
FAMILIES = ["glm4_moe", "deepseek_v3", "qwen3_moe"]
COMPRESSED = ["channel", "tensor", "block"]  # by the strategy of compressed-tensors; of Qwen3-MoE


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders with a small model whose matrices, but for router and head, are fine-grained FP8, and with it dequantised."""
    made = {}

    def get(family, block=16):  # which the experts' 40 rows do not fill
        if (family, block) not in made:
            strategy = family if family in COMPRESSED else ""
            made[family, block] = write("qwen3_moe" if strategy else family, block, tmp_path_factory.mktemp(family), strategy)
        return made[family, block]
    return get


def write(family, block, folder, strategy=""):
    """With a strategy as compressed-tensors has it, else fine-grained."""
    layout = {"channel": "row", "tensor": "tensor"}.get(strategy, f"block:{block}x{block}")
    coded, plain = folder / "fp8", folder / "plain"
    model = tiny(family)
    for path in (coded, plain):
        model.save_pretrained(path)
    tensors = load_file(coded / "model.safetensors")
    values = dict(tensors)
    for name in [name for name in tensors if re.search(r"(proj|proj_with_mqa|[qkv]_[ab]_proj)\.weight$", name)]:
        q = moe64.quantize(tensors[name], layout)
        tensors[name] = q.values
        tensors[name + ("_scale" if strategy else "_scale_inv")] = q.scales.reshape(1) if strategy == "tensor" else q.scales
        values[name] = moe64.dequantize(q, dtype=torch.float32)
    save_file(tensors, coded / "model.safetensors", metadata={"format": "pt"})
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [block, block], "activation_scheme": "dynamic",
                                     "modules_to_not_convert": ["gate", "lm_head"]}
    if strategy:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False,
                   "block_structure": [block, block] if strategy == "block" else None}
        inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
            "ignore": ["lm_head", "re:.*mlp.gate$"]}
    (coded / "config.json").write_text(json.dumps(config))
    return coded, plain


def trained_pair(family, saved, **options):
    """The model of codes and the dequantised one, with the same adapters on every dense layer."""
    peft = pytest.importorskip("peft")
    coded, plain = prepared(family, saved)
    pair = []
    for model in (moe64.transformers.from_pretrained(coded, dtype=torch.float32),
                  AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, experts_implementation="moe64")):
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", **options)
        model = peft.get_peft_model(model, config)
        torch.manual_seed(3)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.1)
        pair.append(model)
    with torch.no_grad():
        others = dict(pair[1].named_parameters())
        for name, parameter in pair[0].named_parameters():
            if "lora_" in name:
                others[name].copy_(parameter)
    return pair


@pytest.mark.parametrize("family", [*FAMILIES, *COMPRESSED])
def test_a_whole_fp8_model_runs_as_its_dequantised_copy(family, saved):
    coded, plain = prepared(family, saved)
    ours = moe64.transformers.from_pretrained(coded, dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, experts_implementation="eager")
    kinds = [type(module) for module in ours.modules()]
    assert kinds.count(CompressedLinear if family in COMPRESSED else CodeLinear) >= 8 and FP8Linear not in kinds

    def expanded():
        return [name for name, p in ours.named_parameters() if "proj" in name and p.dim() > 1 and p.element_size() > 1
                and "scale" not in name]
    assert expanded() == []
    near(ours(TOKENS).logits, theirs(TOKENS).logits, 1e-4, family)
    assert expanded() == []


def prepared(family, saved):
    if family in COMPRESSED:
        pytest.importorskip("compressed_tensors")
    return saved(family)


@pytest.mark.parametrize("family, checkpointing", [
    *itertools.product(FAMILIES, [None, False, True]), ("channel", None), ("tensor", True), ("block", False)])
def test_a_whole_fp8_model_trains_as_its_dequantised_copy(family, checkpointing, saved):
    ours, theirs = trained_pair(family, saved)
    for model in (ours, theirs):
        if checkpointing is not None:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": checkpointing})
    losses = []
    for model in (ours, theirs):
        model.train()
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.01)
        steps = []
        for _ in range(2):
            loss = model(TOKENS, labels=TOKENS).loss
            loss.backward()
            steps.append(loss.item())
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            optimizer.zero_grad()
        losses.append((steps, gradients))
    (ours_steps, ours_grads), (their_steps, their_grads) = losses
    assert ours_steps == pytest.approx(their_steps, rel=1e-4) and ours_steps[1] < ours_steps[0]
    assert ours_grads.keys() == their_grads.keys() and len(ours_grads) > 10
    for name, gradient in their_grads.items():
        near(ours_grads[name], gradient, 2e-3, name)


def test_adapters_of_codes_begin_in_float32(saved):
    """They were rounded to the type of the codes, and then put into float32."""
    peft = pytest.importorskip("peft")
    model = moe64.transformers.from_pretrained(saved("qwen3_moe")[0], dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"]))
    factor = model.base_model.model.model.layers[0].self_attn.q_proj.lora_A["default"].weight
    assert factor.dtype == torch.float32
    assert not torch.equal(factor, factor.to(torch.float8_e4m3fn).float())


def test_what_reads_codes_as_values_is_refused(saved):
    peft = pytest.importorskip("peft")
    model = moe64.transformers.from_pretrained(saved("qwen3_moe")[0], dtype=torch.float32)
    with pytest.raises(moe64.UnsupportedError, match="DoRA reads the torch.float8_e4m3fn codes"):
        peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"]))
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(moe64.UnsupportedError, match="merging an adapter reads the torch.float8_e4m3fn codes"):
            merge()


def test_a_missing_scale_of_a_dense_layer_is_an_error(saved, tmp_path):
    shutil.copytree(saved("qwen3_moe")[0], tmp_path / "broken")
    tensors = load_file(tmp_path / "broken" / "model.safetensors")
    del tensors["model.layers.1.self_attn.o_proj.weight_scale_inv"]
    save_file(tensors, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(moe64.MissingScaleError, match=r"layers.1.self_attn.o_proj.weight is .* has no .*weight_scale_inv"):
        moe64.transformers.from_pretrained(tmp_path / "broken", dtype=torch.float32)


def test_dequantize_still_expands_dense_layers(saved):
    from transformers import FineGrainedFP8Config
    model = moe64.transformers.from_pretrained(saved("qwen3_moe")[0], dtype=torch.float32,
                                               quantization_config=FineGrainedFP8Config(dequantize=True))
    assert not any(isinstance(module, FP8Linear) for module in model.modules())
    assert any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())


def test_the_implementation_of_experts_chooses_that_of_dense_layers(saved, monkeypatch):
    """Where Transformers keeps FP8Linear, as on a newer GPU."""
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_args, **_options: None)

    folder, _ = saved("qwen3_moe", 8)

    def kinds(model):
        return {type(module) for module in model.modules() if isinstance(module, FP8Linear)}

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert kinds(model) == {FP8Linear}
    model.set_experts_implementation("moe64")
    assert kinds(model) == {CodeLinear}
    model.requires_grad_(False)
    near(model(TOKENS).logits, moe64.transformers.from_pretrained(folder, dtype=torch.float32)(TOKENS).logits,
         1e-4, "logits")
    model.set_experts_implementation("eager")
    assert kinds(model) == {FP8Linear}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="moe64")
    assert kinds(model) == {CodeLinear}


def test_a_whole_model_compiles_with_dense_codes(saved):
    model = moe64.transformers.from_pretrained(saved("qwen3_moe")[0], dtype=torch.float32).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        near(compiled(TOKENS, use_cache=False).logits, model(TOKENS, use_cache=False).logits, 1e-5, "logits")
