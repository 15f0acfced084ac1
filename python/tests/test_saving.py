"""save_pretrained of models that moe64 runs: what is saved is whole and loads to the same logits, else nothing is written."""

import json
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate", reason="fine-grained FP8 needs accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from test_devices import saved  # noqa: E402, F401 (a fixture: small models in bfloat16 and FP8)
from test_devices import TOKENS, experts_of  # noqa: E402
from test_lora import TARGETS  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

LIKES = ["deepseek-v3", "deepseek-v4-flash-base", "dots1", "glm-4.5", "glm-4.7-flash", "gpt-oss", "granite-moe",
         "kimi-k2-thinking", "minimax-m2", "mixtral", "qwen3-30b", "qwen3-30b-nvfp4"]
REFUSED = r"\[save_pretrained\] .*experts.* are codes .*nothing was written"


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    made = {}

    def get(like):
        if like not in made:
            made[like] = tmp_path_factory.mktemp("checkpoint") / like
            subprocess.run([moe64.tool(), "synth", made[like], "--like", like, "--scale-down", "32", "--layers", "2"],
                           check=True, capture_output=True)
        return made[like]
    return get


def options_of(folder):
    """Fine-grained FP8 is expanded outside of the experts, so that no kernels from elsewhere are needed."""
    method = json.loads((folder / "config.json").read_text()).get("quantization_config", {}).get("quant_method")
    if method == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
    return {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)} if method == "fp8" else {}


def logits(model):
    with torch.no_grad():
        return model.eval()(TOKENS % 90).logits


@pytest.mark.parametrize("like", LIKES)
def test_models_of_codes_are_refused_before_anything_is_written(like, synth, tmp_path):
    folder = synth(like)
    try:
        model = moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(folder))
    except (ValueError, ImportError) as error:
        if isinstance(error, moe64.Moe64Error):
            raise
        pytest.skip(f"Transformers {transformers.__version__} does not load {like}: {error}")
    assert any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())
    for part in (model, model.base_model):
        with pytest.raises(moe64.UnsupportedError, match=REFUSED):
            part.save_pretrained(tmp_path / "out")
    with pytest.raises(moe64.UnsupportedError, match="push_to_hub"):
        model.push_to_hub("nobody/nothing")
    assert not (tmp_path / "out").exists()


def test_models_whose_codes_were_put_back_are_refused(synth, tmp_path):
    folder = synth("qwen3-30b")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options_of(folder))
    moe64.transformers.keep_codes(model, folder)
    with pytest.raises(moe64.UnsupportedError, match=REFUSED):
        model.save_pretrained(tmp_path / "out", max_shard_size="1MB")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_keeps_what_it_has(synth, tmp_path):
    folder = synth("qwen3-30b")
    model = moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(folder))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(moe64.UnsupportedError, match=REFUSED):
        model.save_pretrained(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("config.json", "{}")]


@pytest.mark.parametrize("like", ["qwen3-30b", "gpt-oss"])
def test_adapters_on_codes_are_saved_and_the_base_below_them_is_refused(like, synth, tmp_path):
    peft = pytest.importorskip("peft")
    folder = synth(like)

    def load():
        return moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(folder))

    config = peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[], init_lora_weights=False)
    if like == "gpt-oss":  # A is sized from packed codes there: attention alone
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(load(), config)
    with pytest.raises(moe64.UnsupportedError, match=REFUSED):
        model.get_base_model().save_pretrained(tmp_path / "base")
    with pytest.raises(moe64.UnsupportedError, match=REFUSED):
        model.base_model.model.save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base").exists()
    model.save_pretrained(tmp_path / "adapter")
    expected = logits(model)
    again = peft.PeftModel.from_pretrained(load(), tmp_path / "adapter")
    assert torch.equal(logits(again), expected)
    assert (logits(load()) - expected).abs().max() > 0


def test_adapters_that_transformers_holds_itself_are_saved_alone(synth, tmp_path):
    peft = pytest.importorskip("peft")
    folder = synth("qwen3-30b")

    def load():
        return moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(folder))

    model = load()
    model.add_adapter(peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[], init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*"))
    again = load()
    again.load_adapter(str(tmp_path / "adapter"))
    assert torch.equal(logits(again), logits(model))


def test_accelerate_saves_codes_with_all_of_their_scales(synth, tmp_path):
    """Its save_model knows nothing of Transformers, and left out what it took for shared."""
    import accelerate
    from safetensors.torch import load_file
    folder = synth("qwen3-30b")
    model = moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(folder))
    accelerate.Accelerator(cpu=True).save_model(model, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_stacks_that_transformers_loaded_are_saved_whole(kind, saved, tmp_path, monkeypatch):  # noqa: F811
    """FP8 experts of Transformers' own class; without a GPU it would expand them."""
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_args, **_options: None)

    def load(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation="moe64")

    model = load(saved[kind])
    assert experts_of(model)[0].down_proj.element_size() == (1 if kind == "fp8" else 2)
    expected = logits(model)
    model.save_pretrained(tmp_path / "out")
    assert [finding for finding in moe64.check(tmp_path / "out")["findings"] if finding["level"] == "error"] == []
    assert torch.equal(logits(load(tmp_path / "out")), expected)
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(model.requires_grad_(False), peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[]))
    with pytest.raises(moe64.UnsupportedError, match=r"have adapters of PEFT around them.*nothing was written"):
        model.get_base_model().save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base").exists()
    model.unload().save_pretrained(tmp_path / "base")
    assert torch.equal(logits(load(tmp_path / "base")), expected)
