"""Checkpoints from Python: inspect, check, load_experts, and models whose experts stay as they are stored."""

import subprocess

import pytest
import torch

import moe64
from moe64 import checkpoint

transformers = pytest.importorskip("transformers", minversion="5.7")


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    """synth(like, ...) is the folder of a small checkpoint, made once."""
    made = {}

    def get(like, *options):
        key = (like, *options)
        if key not in made:
            folder = tmp_path_factory.mktemp("checkpoint") / like
            subprocess.run([moe64.tool(), "synth", folder, "--like", like, "--scale-down", "32", "--layers", "2",
                            *options], check=True, capture_output=True)
            made[key] = folder
        return made[key]
    return get


def test_inspect_and_check(synth):
    found = moe64.inspect(synth("glm-4.7-flash"))
    assert found["model_type"] == "glm4_moe_lite" and found["layers"][0]["gate"]["type"] == "e4m3"
    assert moe64.check(synth("glm-4.7-flash"))["findings"] == []
    broken = moe64.check(synth("glm-4.7-flash", "--break", "reciprocal-scale"))
    assert any(finding["level"] == "error" for finding in broken["findings"])
    with pytest.raises(moe64.Moe64Error):
        moe64.inspect("/nonexistent/folder")


def moe_layer(folder):
    return next(layer["layer"] for layer in moe64.inspect(folder)["layers"] if layer["sound"])


@pytest.mark.parametrize("like", ["deepseek-v3", "glm-4.7-flash", "qwen3-30b", "minimax-m2", "kimi-k2-thinking",
                                  "gpt-oss", "qwen3-30b-nvfp4", "deepseek-v3-nvfp4", "mixtral", "llama-4"])
def test_loaded_experts_run_and_fusing_changes_nothing(synth, like):
    folder = synth(like)
    number = moe_layer(folder)
    pair, fused = moe64.load_experts(folder, number), moe64.load_experts(folder, number, fused=True)
    hidden, count = pair.down.weights.values.shape[1], pair.down.weights.values.shape[0]
    x, ids, weights = torch.randn(5, hidden), torch.randint(0, count, (5, 2)), torch.rand(5, 2)
    y = moe64.experts(x, ids, weights, pair)
    assert torch.isfinite(y).all() and y.abs().max() > 0
    assert torch.equal(y, moe64.experts(x, ids, weights, fused))


def test_loaded_experts_are_what_safetensors_reads(synth):
    from safetensors.torch import load_file
    folder = synth("qwen3-30b")
    number = moe_layer(folder)
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    weights = moe64.load_experts(folder, number)
    gate, up = weights.gate_up.weights
    for part, name in ((gate, "gate_proj"), (up, "up_proj"), (weights.down.weights, "down_proj")):
        for e in range(part.values.shape[0]):
            base = f"model.layers.{number}.mlp.experts.{e}.{name}.weight"
            assert torch.equal(part.values[e].view(torch.uint8), tensors[base].view(torch.uint8))
            assert torch.equal(part.scales[e], tensors[base + "_scale_inv"])


def test_a_part_of_the_experts_and_progress(synth):
    folder = synth("qwen3-30b")
    number = moe_layer(folder)
    seen = []
    part = moe64.load_experts(folder, number, first_expert=1, experts=2,
                              progress=lambda done, total: seen.append((done, total)))
    whole = moe64.load_experts(folder, number)
    assert part.down.weights.values.shape[0] == 2 and part.first_expert == 1
    assert torch.equal(part.down.weights.scales, whole.down.weights.scales[1:3])
    assert seen and seen[-1][0] <= seen[-1][1]
    with pytest.raises(moe64.InterruptedCallError):
        moe64.load_experts(folder, number, progress=lambda done, total: True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("like", ["qwen3-30b", "gpt-oss", "qwen3-30b-nvfp4"])
def test_loaded_experts_are_saved_whole(synth, like, fused, tmp_path):
    """Of one storage torch.save refuses several types, and whoever looks for shared weights leaves scales out."""
    module = moe64.Experts.from_weights(moe64.load_experts(synth(like), moe_layer(synth(like)), fused=fused))
    kept = module.state_dict()
    torch.save(kept, tmp_path / "layer.pt")
    again = torch.load(tmp_path / "layer.pt")
    assert kept.keys() == again.keys()
    for name, tensor in kept.items():
        assert torch.equal(tensor.contiguous().view(torch.uint8), again[name].contiguous().view(torch.uint8)), name
    assert len({tensor.untyped_storage().data_ptr() for tensor in kept.values()}) == len(kept)
    if fused:  # nothing of what was fused stays behind
        held = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
        assert held == sum(tensor.numel() * tensor.element_size() for tensor in kept.values())


FORMATS = ["qwen3-30b", "glm-4.5", "kimi-k2-thinking", "gpt-oss", "qwen3-30b-nvfp4", "llama-4"]


def tensors_of(weights):
    return [tensor for projection in (weights.gate_up, weights.down) for tensor in checkpoint._tensors(
        projection.weights, projection.bias)]


def storage_bytes(tensors):
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("like", FORMATS)
def test_a_view_of_down_does_not_keep_all_that_was_read(synth, like):
    """It held 1.67 times the memory of the codes, with gate and up as one tensor."""
    folder = synth(like)
    tensors = tensors_of(moe64.load_experts(folder, moe_layer(folder), fused=True))
    assert all(tensor.is_contiguous() for tensor in tensors)
    assert storage_bytes(tensors) == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("like", FORMATS)
def test_what_was_loaded_can_be_saved_by_torch(synth, like, fused, tmp_path):
    """torch.save said "view the same data as different types"."""
    folder = synth(like)
    weights = moe64.load_experts(folder, moe_layer(folder), fused=fused)
    layer = moe64.Experts.from_weights(weights).add_lora(2)
    torch.save(layer, tmp_path / "module")
    torch.save(layer.state_dict(), tmp_path / "state")
    assert (tmp_path / "state").stat().st_size < 1.2 * storage_bytes(layer.state_dict().values()) + 8192
    hidden, count = layer.down.shape[1], layer.down.shape[0]
    call = torch.randn(5, hidden), torch.randint(0, count, (5, 2)), torch.rand(5, 2)
    again = torch.load(tmp_path / "module", weights_only=False)
    assert torch.equal(again(*call), layer(*call))
    again = moe64.Experts.from_weights(moe64.load_experts(folder, moe_layer(folder), fused=fused)).add_lora(2)
    for tensor in again.state_dict().values():
        tensor.view(torch.uint8).zero_() if tensor.is_contiguous() else None
    again.load_state_dict(torch.load(tmp_path / "state"))
    assert torch.equal(again(*call), layer(*call))


@pytest.mark.parametrize("like", FORMATS)
def test_experts_that_are_read_piece_by_piece_are_the_same(synth, like, monkeypatch):
    folder = synth(like)
    number, seen = moe_layer(folder), []
    for part in ({}, {"first_expert": 1}, {"first_expert": 1, "experts": 2}):
        monkeypatch.setattr(checkpoint, "_PIECE", 128 << 20)
        whole = moe64.load_experts(folder, number, fused=True, **part)
        monkeypatch.setattr(checkpoint, "_PIECE", 1)
        pieces = moe64.load_experts(folder, number, fused=True, progress=lambda *at: seen.append(at), **part)
        assert (pieces.experts_total, pieces.first_expert) == (whole.experts_total, whole.first_expert)
        for one, other in zip(tensors_of(pieces), tensors_of(whole), strict=True):
            assert one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] and len({total for _, total in seen}) == 1
        seen.clear()
    with pytest.raises(moe64.InterruptedCallError):
        moe64.load_experts(folder, number, fused=True, progress=lambda done, total: done > total // 2)


def test_an_unsound_layer_is_refused(synth):
    folder = synth("qwen3-30b", "--break", "dropped-scale")
    refused = 0
    for layer in moe64.inspect(folder)["layers"]:
        if not layer["sound"]:
            refused += 1
            with pytest.raises(moe64.Moe64Error, match="scale"):
                moe64.load_experts(folder, layer["layer"])
    assert refused


def test_nvfp4_experts_have_their_global_scale(synth):
    """Transformers 5.22 expands these without it, tens of thousands of times too large."""
    from safetensors.torch import load_file
    folder = synth("qwen3-30b-nvfp4")
    number = moe_layer(folder)
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    numbers = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))
    down = moe64.dequantize(moe64.load_experts(folder, number).down.weights, dtype=torch.float32)
    for e in range(down.shape[0]):
        base = f"model.layers.{number}.mlp.experts.{e}.down_proj.weight_"
        packed = tensors[base + "packed"].long()
        codes = torch.stack((numbers[packed & 15], numbers[packed >> 4]), -1).flatten(1)
        scales = tensors[base + "scale"].float() / tensors[base + "global_scale"]
        assert torch.equal(down[e], codes * scales.repeat_interleave(16, 1))


def distance(ours, theirs):
    """Of the token in the middle: roundings let a router choose another expert now and then."""
    return ((ours - theirs).abs().amax(-1).median() / theirs.abs().max()).item()


CODES = ["glm-4.7-flash", "glm-4.5", "qwen3-30b", "deepseek-v3", "minimax-m2", "gpt-oss"]


def expanded(folder, like):
    """The model as Transformers expands it to float32, on the CPU whatever GPUs are there; skips where it cannot."""
    options = {}
    if like.startswith("glm"):
        pytest.importorskip("compressed_tensors")
    elif like != "gpt-oss":  # with a GPU in sight it would keep FP8, and ask for kernels from the Hub to run it
        options["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                                                    **options)
    wrong = [key for kind in ("missing_keys", "unexpected_keys") for key in info[kind] if "experts" in key]
    if wrong:
        pytest.skip(f"Transformers {transformers.__version__} does not expand the experts of this checkpoint: {wrong[0]}")
    return model.eval()


@pytest.mark.parametrize("like", CODES)
def test_keep_codes_gives_the_logits_of_the_expanded_model(synth, like, device):
    import moe64.transformers
    folder = synth(like)
    model = expanded(folder, like)
    tokens = torch.randint(0, 90, (1, 7))
    with torch.no_grad():
        before = model(tokens).logits
        names = moe64.transformers.keep_codes(model, folder)
        assert names and all(model.get_submodule(name).down_proj.element_size() == 1 for name in names)
        kept = model.to(device)(tokens.to(device)).logits.cpu()
        assert distance(kept, before) <= 0.01
        codes = [model.get_submodule(name) for name in names]
        scheme = "unstated" if like == "gpt-oss" else "dynamic"
        assert all(moe64.transformers.weights_of(module).scheme == scheme for module in codes)
        model.to(torch.bfloat16)  # takes everything along but codes and scales
        assert all(module.down_proj.element_size() == 1 for module in codes)
        for module in codes:
            module.activation_scheme = "none"  # products of unquantised activations, on a Hopper too
        assert distance(model(tokens.to(device)).logits.cpu().float(), kept) <= 0.05


@pytest.mark.parametrize("like", CODES)
def test_experts_that_are_codes_from_the_file_on(synth, like, device, monkeypatch):
    """from_pretrained gives the model of keep_codes, and Transformers never collects an expert's weights for it."""
    import moe64.transformers
    from transformers import core_model_loading
    if like.startswith("glm"):
        pytest.importorskip("compressed_tensors")
    folder = synth(like)
    options = {} if like.startswith("glm") or like == "gpt-oss" else {
        "quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}
    collected = []
    add_tensor = core_model_loading.WeightTransform.add_tensor
    monkeypatch.setattr(core_model_loading.WeightTransform, "add_tensor",
                        lambda self, target, *rest: collected.append(target) or add_tensor(self, target, *rest))
    model, info = moe64.transformers.from_pretrained(folder, dtype=torch.float32, device_map=str(device),
                                                     output_loading_info=True, **options)
    assert collected and not any(".experts." in key for key in collected)
    assert not info["missing_keys"] and not any("experts" in key for key in info["unexpected_keys"])
    codes = [module for module in model.modules() if isinstance(module, moe64.transformers.CodeExperts)]
    assert len(codes) == sum(layer["sound"] for layer in moe64.inspect(folder)["layers"])
    assert all(module.down_proj.element_size() == 1 and module.down_proj.device.type == device.type for module in codes)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    assert not any(isinstance(module, moe64.transformers.CodeExperts) for module in again.modules())
    moe64.transformers.keep_codes(again, folder)
    tokens = torch.randint(0, 90, (1, 7), device=device)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again.to(device)(tokens).logits)


def test_layers_in_bf16_stay_with_transformers(tmp_path):
    """GLM-4.7-Flash has whole layers that are not quantised, and others that are."""
    import moe64.transformers
    pytest.importorskip("compressed_tensors")
    folder = tmp_path / "m"
    subprocess.run([moe64.tool(), "synth", folder, "--like", "glm-4.7-flash", "--scale-down", "32", "--layers", "4"],
                   check=True, capture_output=True)
    kinds = {layer["layer"]: layer["down"]["type"] for layer in moe64.inspect(folder)["layers"]}
    model = moe64.transformers.from_pretrained(folder, dtype=torch.float32)
    codes = {i for i, layer in enumerate(model.model.layers)
             if isinstance(getattr(layer.mlp, "experts", None), moe64.transformers.CodeExperts)}
    assert codes == {layer for layer, kind in kinds.items() if kind == "e4m3"} and 0 < len(codes) < len(kinds)
    assert torch.isfinite(model(torch.arange(5)[None]).logits).all()


def test_a_model_without_places_for_the_codes_is_refused(synth):
    import moe64.transformers
    with pytest.raises(moe64.InvalidArgumentError, match="has no module"):
        moe64.transformers.keep_codes(torch.nn.Linear(2, 2), synth("qwen3-30b"))


def test_experts_that_are_offloaded_are_refused(synth):
    import moe64.transformers
    pytest.importorskip("compressed_tensors")
    folder = synth("glm-4.5")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to("meta")
    with pytest.raises(moe64.UnsupportedError, match="offloaded"):
        moe64.transformers.keep_codes(model, folder)


def test_experts_without_codes_are_loaded_by_transformers(synth, tmp_path):
    import moe64.transformers
    subprocess.run([moe64.tool(), "convert", synth("qwen3-30b"), tmp_path / "plain", "--to", "bf16"], check=True,
                   capture_output=True)
    model = moe64.transformers.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    assert model.config._experts_implementation == "moe64"
    assert not any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())
    assert torch.isfinite(model(torch.arange(5)[None]).logits).all()


def test_codes_that_transformers_would_take_for_numbers_are_refused(synth, tmp_path):
    """ModelOpt states quantisation in a file of its own, which Transformers does not read: every expert thousands of times too
    large, and a report of unexpected keys."""
    import moe64.transformers
    with pytest.raises(moe64.UnsupportedError, match="states no quantisation, but model.layers.0.mlp.experts"):
        moe64.transformers.from_pretrained(synth("qwen3-30b-modelopt-fp8"), dtype=torch.float32)
    subprocess.run([moe64.tool(), "convert", synth("qwen3-30b-modelopt-fp8"), tmp_path / "plain", "--to", "bf16"], check=True,
                   capture_output=True)
    model = moe64.transformers.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    assert model.model.layers[0].mlp.experts.down_proj.abs().max() < 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("like", ["qwen3-30b", "glm-4.5"])
def test_loading_onto_a_gpu_takes_the_memory_of_the_codes(like, tmp_path):
    """At its peak: the model, and one layer of experts on its way; for compressed-tensors as for fine-grained FP8."""
    import moe64.transformers
    options = {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)}
    if like.startswith("glm"):
        pytest.importorskip("compressed_tensors")
        options = {}
    subprocess.run([moe64.tool(), "synth", tmp_path / "m", "--like", like, "--scale-down", "4", "--layers", "3"],
                   check=True, capture_output=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = moe64.transformers.from_pretrained(tmp_path / "m", dtype=torch.bfloat16, device_map="cuda", **options)
    peak = torch.cuda.max_memory_allocated() - before
    sizes = [[t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())]
             for module in (model, *(m for m in model.modules() if isinstance(m, moe64.transformers.CodeExperts)))]
    whole, *layers = map(sum, sizes)
    assert len(layers) == sum(layer["sound"] for layer in moe64.inspect(tmp_path / "m")["layers"]) > 0
    assert sum(layers) > 0.5 * whole, "experts are the most of it"
    assert peak <= whole + max(layers) + (4 << 20), (peak, whole, layers)


def test_layers_that_are_not_sound_are_named(monkeypatch):
    from moe64 import codes
    monkeypatch.setattr(codes, "inspect", lambda path: {"layers": [{"layer": 3, "sound": False, "mtp": False}]})
    with pytest.warns(UserWarning, match=r"layers \[3\] are left to Transformers"):
        assert not list(codes._layers_of(torch.nn.Module(), "folder"))
