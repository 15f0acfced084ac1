"""moe64.merge: what is written opens in Transformers with the logits of base and adapter."""

import json

import pytest
import torch

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers", minversion="5.7")
import moe64  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_devices import SETTINGS, _fp8_anywhere, saved  # noqa: E402, F401 (fixtures: small models in bfloat16 and FP8)
from test_transformers import tiny  # noqa: E402
from transformers import AutoModelForCausalLM, FineGrainedFP8Config  # noqa: E402

TARGETS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
           "target_modules": ["q_proj", "v_proj", "o_proj"]}
TOKENS = torch.arange(24).reshape(2, 12) * 5 % 90


def logits(model):
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def loaded(folder):
    """In float32, by Transformers alone: FP8 is expanded by its own code."""
    quantised = "quantization_config" in json.loads((folder / "config.json").read_text())
    options = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if quantised else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager", **options).float()


def adapter_for(model, folder, size=0.05, **options):
    """A random adapter, saved by PEFT; the model with it."""
    made = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, **{**TARGETS, **options}))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, size)
    made.save_pretrained(folder)
    return made


def distance(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_merged_checkpoints_have_the_logits_of_base_and_adapter(saved, kind, tmp_path):  # noqa: F811
    base = saved[kind]
    bare = logits(loaded(base))
    expected = logits(adapter_for(loaded(base), tmp_path / "adapter"))
    change = distance(expected, bare)
    assert change > 0.1, "the adapter does nothing"
    # bf16 rounds each weight by at most 2^-9 of it, e4m3 by 2^-4: 0.16 was found, through two layers of random weights
    bounds = {"bf16": 0.01, "fp8-block": 0.25, "same": 0.25 if kind == "fp8" else 0.01}
    for to, bound in bounds.items():
        report = moe64.merge(base, tmp_path / "adapter", tmp_path / to, to=to)
        assert report["ok"] and report["modules"] > 0
        found = distance(logits(loaded(tmp_path / to)), expected)
        assert found <= bound, f"{to}: {found}, where the adapter changes {change}"


def test_the_weights_are_those_of_the_f64_sum_within_half_a_unit(saved, tmp_path):  # noqa: F811
    adapter_for(loaded(saved["bf16"]), tmp_path / "adapter", rank_pattern={"o_proj": 3}, use_rslora=True)
    report = moe64.merge(saved["bf16"], tmp_path / "adapter", tmp_path / "out", to="bf16")
    assert report["warnings"] == []
    model = PeftModel.from_pretrained(loaded(saved["bf16"]).double(), tmp_path / "adapter", autocast_adapter_dtype=False)
    exact = model.double().merge_and_unload().state_dict()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16).state_dict()
    changed = 0
    for name, numbers in merged.items():
        unit = torch.exp2(torch.floor(torch.log2(exact[name].abs().clamp_min(2.0 ** -126))) - 8)
        assert ((numbers.double() - exact[name]).abs() <= unit * (1 + 1e-6)).all(), name
        changed += int((numbers.double() - exact[name]).abs().max() > 0)
    assert changed > 4


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "glm4_moe", "deepseek_v3"])
def test_families_as_transformers_saves_them(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path / "base")
    adapted = adapter_for(model, tmp_path / "adapter", 0.1, target_modules=[])
    expected = logits(adapted)
    moe64.merge(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", to="same")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, experts_implementation="eager")
    assert distance(logits(merged), expected) < 1e-5


def test_an_adapter_of_another_model_is_refused_and_nothing_written(saved, tmp_path):  # noqa: F811
    adapter_for(tiny("mixtral"), tmp_path / "adapter")
    with pytest.raises(moe64.errors.Moe64Error, match="another model|experts"):
        moe64.merge(saved["fp8"], tmp_path / "adapter", tmp_path / "out", to="bf16")
    assert not (tmp_path / "out").exists()
    adapter_for(loaded(saved["bf16"]), tmp_path / "nan")
    file = tmp_path / "nan" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "q_proj.lora_B" in name)
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(moe64.InvalidArgumentError, match="q_proj.*not finite"):
        moe64.merge(saved["fp8"], tmp_path / "nan", tmp_path / "out", to="bf16")
    with pytest.raises(moe64.UnsupportedError, match="use_dora"):
        adapter_for(loaded(saved["bf16"]), tmp_path / "dora", target_parameters=None, use_dora=True)
        moe64.merge(saved["fp8"], tmp_path / "dora", tmp_path / "out", to="bf16")
    assert not (tmp_path / "out").exists()
