"""save_pretrained of models that moe64 runs: what is saved is whole and loads to the same logits, else nothing is written."""

import copy
import json
import shutil
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate", reason="fine-grained FP8 needs accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64.saving.shards import size_of, tensors_in  # noqa: E402
from test_dense_models import write  # noqa: E402
from test_devices import saved  # noqa: E402, F401 (a fixture: small models in bfloat16 and FP8)
from test_devices import TOKENS, experts_of  # noqa: E402
from test_lora import TARGETS  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

LIKES = ["deepseek-v3", "deepseek-v3 --mtp", "dots1", "glm-4.5", "glm-4.7-flash", "gpt-oss", "granite-moe",
         "kimi-k2-thinking", "minimax-m2", "mixtral", "qwen3-30b", "qwen3-30b-nvfp4"]
ADAPTED = r"\[save_pretrained\] .*have adapters of PEFT around them.*nothing was written"


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    made = {}

    def get(like):
        if like not in made:
            made[like] = tmp_path_factory.mktemp("checkpoint") / like
            subprocess.run([moe64.tool(), "synth", made[like], "--like", *like.split(), "--scale-down", "32", "--layers", "2"],
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


def load(folder, **options):
    try:
        return moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options)
    except (ValueError, ImportError) as error:
        if isinstance(error, moe64.Moe64Error):
            raise
        pytest.skip(f"Transformers {transformers.__version__} does not load {folder.name}: {error}")


def stated(folder):
    return json.loads((folder / "config.json").read_text()).get("quantization_config")


def findings(folder):
    found = moe64.check(folder)["findings"]
    assert [finding for finding in found if finding["level"] == "error"] == []
    return [(finding["rule"], finding["tensor"]) for finding in found]


def require_whole(source, out):
    """Codes and scales are those of the source, byte by byte; nothing is missing, and nothing left of the work."""
    theirs, ours = tensors_in(source), tensors_in(out)
    assert ours.keys() == theirs.keys()
    copied = 0
    for name, tensor in theirs.items():
        if tensor.is_codes or "experts." in name and "shared" not in name or name.endswith(("_scale_inv", "weight_scale")):
            assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(ours[name].raw(), tensor.raw())
            copied += 1
    assert copied > 3 and stated(out) == stated(source) and findings(out) == findings(source)
    assert [path.name for path in out.iterdir() if path.name.startswith(".") or path.suffix == ".new"] == []


@pytest.mark.parametrize("expanded", [False, True], ids=["codes", "expanded"])
@pytest.mark.parametrize("like", LIKES)
def test_models_of_codes_are_saved_whole(like, expanded, synth, tmp_path):
    source = synth(like)
    options = options_of(source) if expanded else {}
    if expanded and not options:
        pytest.skip("Transformers expands it anyway")
    model = load(source, **options)
    assert any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())
    expected = logits(model)
    model.save_pretrained(tmp_path / "out", max_shard_size="300KB")
    require_whole(source, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(load(tmp_path / "out", **options)), expected)
    assert torch.equal(logits(model), expected)  # and goes on working


def test_names_that_are_not_those_of_the_source_are_refused(synth, tmp_path):
    model = load(synth("qwen3-30b"))
    with pytest.raises(moe64.UnsupportedError, match=r"calls a tensor of Qwen3MoeModel .*nothing was written"):
        model.base_model.save_pretrained(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_models_whose_codes_were_put_back_are_saved(synth, tmp_path):
    source = synth("qwen3-30b")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options_of(source))
    moe64.transformers.keep_codes(model, source)
    model.save_pretrained(tmp_path / "out", max_shard_size="1MB")
    require_whole(source, tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out", **options_of(source))), logits(model))


def test_what_was_trained_outside_of_the_codes_is_saved(synth, tmp_path):
    peft = pytest.importorskip("peft")
    model = load(synth("glm-4.5"))
    before = logits(model)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False))
    with pytest.raises(moe64.UnsupportedError, match=ADAPTED):
        model.get_base_model().save_pretrained(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    model = model.merge_and_unload()
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
    expected = logits(model)
    assert (expected - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "out", state_dict=model.state_dict())
    require_whole(synth("glm-4.5"), tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out")), expected)


def test_a_whole_fp8_model_is_saved_whole(tmp_path):
    source, _ = write("glm4_moe", 8, tmp_path)  # Transformers expands whole blocks alone
    model = load(source)
    expected = logits(model)
    model.save_pretrained(tmp_path / "out")
    require_whole(source, tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out")), expected)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.view(torch.uint8)[0, 0] ^= 1
    with pytest.raises(moe64.UnsupportedError, match=r"q_proj.weight is not what .* has.*nothing was written"):
        model.save_pretrained(tmp_path / "changed")
    from transformers import FineGrainedFP8Config
    model = load(source, quantization_config=FineGrainedFP8Config(dequantize=True))
    model.save_pretrained(tmp_path / "expanded")
    require_whole(source, tmp_path / "expanded")
    assert torch.equal(logits(load(tmp_path / "expanded")), expected)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] += 1
    with pytest.raises(moe64.UnsupportedError, match=r"q_proj.weight is not what .* has.*nothing was written"):
        model.save_pretrained(tmp_path / "changed")
    assert not (tmp_path / "changed").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("strategy", ["channel", "tensor", "block"])
def test_dense_codes_of_compressed_tensors_are_saved_whole(strategy, tmp_path):
    pytest.importorskip("compressed_tensors")
    source, _ = write("qwen3_moe", 16, tmp_path, strategy)
    model = load(source)
    expected = logits(model)
    model.save_pretrained(tmp_path / "out", max_shard_size="100KB")
    require_whole(source, tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out")), expected)


@pytest.mark.parametrize("fault", ["model", "bias", "file", "gone", "made", "itself", "two"])
def test_what_cannot_be_saved_is_refused_before_anything_is_written(fault, synth, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(synth("gpt-oss" if fault == "bias" else "qwen3-30b"), source)
    model = load(source)
    experts = next(module for module in model.modules() if isinstance(module, moe64.transformers.CodeExperts))
    if fault == "model":
        experts.down_proj.data.view(torch.uint8)[0, 0, 0] ^= 1
        why = r"experts.down_proj is not what .* has: the model or the files have changed"
    elif fault == "bias":
        experts.down_proj_bias.data[0, 0] += 1
        why = r"experts.down_proj_bias is not what .* has"
    elif fault == "file":
        tensor = next(tensor for name, tensor in tensors_in(source).items() if "experts.0.up_proj" in name and tensor.is_codes)
        with open(tensor.file, "r+b") as file:
            file.seek(tensor.begin)
            file.write(bytes([tensor.raw()[0].item() ^ 1]))
        why = r"experts.gate_up_proj is not what .* has: the model or the files have changed"
    elif fault == "gone":
        source.rename(tmp_path / "elsewhere")
        why = r"the other experts are codes of .*source, which is not there any more"
    elif fault == "made":
        experts.source = None
        why = r"was made of tensors"
    elif fault == "itself":
        out = source
        why = r"is the checkpoint that the model was loaded from"
    elif fault == "two":
        experts.source = (str(tmp_path / "other"), 0)
        why = r"are codes of different checkpoints"
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(moe64.UnsupportedError, match=rf"\[save_pretrained\] .*{why}.*nothing was written"):
        model.save_pretrained(out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", [{"variant": "fp8"}, {"save_original_format": False}, {"push_to_hub": True}], ids=str)
def test_other_forms_than_that_of_the_source_are_refused(option, synth, tmp_path):
    with pytest.raises(moe64.UnsupportedError, match=f"{next(iter(option))} is .*nothing was written"):
        load(synth("qwen3-30b")).save_pretrained(tmp_path / "out", **option)
    assert list(tmp_path.iterdir()) == []
    load(synth("qwen3-30b")).save_pretrained(tmp_path / "out", is_main_process=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_keeps_what_is_not_the_models(synth, tmp_path):
    source, out = synth("qwen3-30b"), tmp_path / "out"
    model = load(source)
    out.mkdir()
    (out / "training_args.txt").write_text("kept")
    model.save_pretrained(out, max_shard_size="200KB")
    many = len(list(out.glob("model-*")))
    model.save_pretrained(out)
    assert 1 <= len(list(out.glob("model-*"))) < many and (out / "training_args.txt").read_text() == "kept"
    require_whole(source, out)
    assert torch.equal(logits(load(out)), logits(model))


def test_a_save_that_fails_leaves_the_folder_as_it_was(synth, tmp_path, monkeypatch):
    out = tmp_path / "out"
    model = load(synth("qwen3-30b"))
    model.save_pretrained(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*_args):
        raise OSError("No space left on device")
    monkeypatch.setattr("moe64.saving.shards.write", full)
    for folder in (out, tmp_path / "new"):
        with pytest.raises(OSError, match="No space left"):
            model.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_push_to_hub_uploads_a_whole_checkpoint(synth, tmp_path, monkeypatch):
    """What is uploaded, without a hub."""
    from transformers.utils import hub
    source, out = synth("qwen3-30b"), tmp_path / "uploaded"
    model = load(source)

    def upload(self, folder, *_args, **_options):
        shutil.copytree(folder, out)
    if not hasattr(hub.PushToHubMixin, "_upload_modified_files"):
        pytest.skip("another way to upload")
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    monkeypatch.setattr(hub.PushToHubMixin, "_create_repo", lambda *_args, **_options: "nobody/nothing", raising=False)
    monkeypatch.setattr(hub, "hf_api", lambda *_args, **_options: FakeHub(), raising=False)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *_args, **_options: FakeHub(), raising=False)
    model.push_to_hub("nobody/nothing")
    require_whole(source, out)
    monkeypatch.setattr(hub, "hf_api", None, raising=False)  # nobody is asked where it is known to be refused
    next(module for module in model.modules() if isinstance(module, moe64.transformers.CodeExperts)).source = None
    with pytest.raises(moe64.UnsupportedError, match="was made of tensors"):
        model.push_to_hub("nobody/nothing")


class FakeHub:
    repo_id = "nobody/nothing"

    def create_repo(self, *_args, **_options):
        return self

    def save(self, path):
        pass


@pytest.mark.parametrize("like", ["qwen3-30b", "gpt-oss"])
def test_adapters_on_codes_are_saved_and_the_base_below_them_is_refused(like, synth, tmp_path):
    peft = pytest.importorskip("peft")
    folder = synth(like)
    config = peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[], init_lora_weights=False)
    model = peft.get_peft_model(load(folder), config)
    with pytest.raises(moe64.UnsupportedError, match=ADAPTED):
        model.get_base_model().save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base").exists()
    model.save_pretrained(tmp_path / "adapter")
    expected = logits(model)
    again = peft.PeftModel.from_pretrained(load(folder), tmp_path / "adapter")
    assert torch.equal(logits(again), expected)
    assert (logits(load(folder)) - expected).abs().max() > 0
    model.unload().save_pretrained(tmp_path / "base")
    require_whole(folder, tmp_path / "base")


def test_copies_of_a_model_are_saved_too(synth, tmp_path):
    model = copy.deepcopy(load(synth("qwen3-30b")))
    model.save_pretrained(tmp_path / "out")
    require_whole(synth("qwen3-30b"), tmp_path / "out")


@pytest.mark.parametrize("given, bytes_", [(7, 7), ("5GB", 5 * 10**9), ("1.5 MiB", 3 << 19), ("10kb", 10**4), ("x", None),
                                           ("0GB", None)])
def test_sizes_of_shards(given, bytes_):
    if bytes_ is None:
        with pytest.raises(moe64.InvalidArgumentError, match="max_shard_size is"):
            size_of(given)
    else:
        assert size_of(given) == bytes_


def test_adapters_that_transformers_holds_itself_are_saved_alone(synth, tmp_path):
    peft = pytest.importorskip("peft")
    folder = synth("qwen3-30b")

    model = load(folder)
    model.add_adapter(peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[], init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*"))
    again = load(folder)
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

    def load_stacks(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, experts_implementation="moe64")

    model = load_stacks(saved[kind])
    assert experts_of(model)[0].down_proj.element_size() == (1 if kind == "fp8" else 2)
    expected = logits(model)
    model.save_pretrained(tmp_path / "out")
    assert [finding for finding in moe64.check(tmp_path / "out")["findings"] if finding["level"] == "error"] == []
    assert torch.equal(logits(load_stacks(tmp_path / "out")), expected)
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(model.requires_grad_(False), peft.LoraConfig(r=2, target_parameters=TARGETS, target_modules=[]))
    with pytest.raises(moe64.UnsupportedError, match=r"have adapters of PEFT around them.*nothing was written"):
        model.get_base_model().save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base").exists()
    model.unload().save_pretrained(tmp_path / "base")
    assert torch.equal(logits(load_stacks(tmp_path / "base")), expected)
