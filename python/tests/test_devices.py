"""Models spread over devices by a device_map: each layer works where its weights are, and the numbers stay the same."""

import gc
import json
import re
import weakref

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
accelerate = pytest.importorskip("accelerate", reason="device_map needs accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64 import codes  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from test_transformers import near  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

GPUS = torch.cuda.device_count()
PARTS = ["model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]
SETTINGS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "vocab_size": 97, "max_position_embeddings": 64, "intermediate_size": 48, "moe_intermediate_size": 256,
            "num_experts": 6, "num_experts_per_tok": 3}
# Where the first layer lies, and where all the rest. accelerate executes a layer on "disk", or on "cpu" next to a GPU, on
# the device of the rest, and brings its weights there for each call.
SPREADS = {"disk and cpu": ("disk", "cpu"),
           "cpu and cuda": pytest.param(("cpu", 0), marks=pytest.mark.skipif(GPUS < 1, reason="no GPU")),
           "two GPUs": pytest.param((1, 0), marks=pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs"))}


def spreads(*names):
    return pytest.mark.parametrize("spread", [SPREADS[name] for name in names], ids=names)


TOKENS = torch.arange(2 * 7).view(2, 7) * 5 % 97


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders with a small Qwen3-MoE model in bfloat16, and the same with experts in fine-grained FP8."""
    plain, fp8 = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("fp8")
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **SETTINGS), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts." in name:
                parameter.normal_(0, 0.15)
    for folder in (plain, fp8):
        model.save_pretrained(folder)
    tensors = load_file(fp8 / "model.safetensors")
    for name in [name for name in tensors if re.search(r"\.experts\.\d+\.", name)]:
        q = moe64.quantize(tensors[name], "block:32x32")
        tensors[name], tensors[name + "_scale_inv"] = q.values, q.scales
    save_file(tensors, fp8 / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((fp8 / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic",
                                     "modules_to_not_convert": ["q_proj", "k_proj", "v_proj", "o_proj", "gate", "lm_head"]}
    (fp8 / "config.json").write_text(json.dumps(config))
    return {"bf16": plain, "fp8": fp8}


@pytest.fixture(autouse=True)
def _fp8_anywhere(request, monkeypatch):
    """Without a GPU Transformers would expand FP8 experts, and some versions refuse "disk"; moe64 runs them anywhere."""
    if not GPUS or not re.search("cuda|gpu", request.node.name.lower()):
        from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
        monkeypatch.setattr(FineGrainedFP8HfQuantizer, "validate_environment", lambda *_args, **_options: None)


def mapped(first, rest):
    return {part: first if part == "model.layers.0" else rest for part in PARTS}


def load(folder, device_map, tmp_path, loader=AutoModelForCausalLM.from_pretrained, dtype=torch.float32):
    model = loader(folder, dtype=dtype, device_map=device_map, experts_implementation="moe64",
                   offload_folder=str(tmp_path / "offload"))
    for experts in experts_of(model):
        if "scale_inv" in str(list(experts._parameters)):
            experts.requires_grad_(False)
    return model.eval()


def experts_of(model):
    return [layer.mlp.experts for layer in model.model.layers]


def outcome(model):
    """Logits, and the gradients of every parameter that keeps one."""
    logits = model(TOKENS.to(model.model.embed_tokens.weight.device)).logits
    logits.float().square().mean().backward()
    return logits.detach().cpu(), {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def calls(monkeypatch):
    """The devices of x and of the weights of every call of moe64.experts."""
    seen = []
    original = moe64.transformers.experts

    def experts(x, ids, factors, weights):
        matrix = weights.down.weights
        seen.append((x.device, (matrix.values if isinstance(matrix, moe64.Quantized) else matrix).device))
        return original(x, ids, factors, weights)
    monkeypatch.setattr(moe64.transformers, "experts", experts)
    return seen


@pytest.mark.parametrize("form", ["bf16", "fp8"])
@spreads(*SPREADS)
def test_a_spread_model_is_the_model_on_one_device(saved, form, spread, tmp_path, calls):
    first, rest = spread
    whole = load(saved[form], {"": rest}, tmp_path)
    expected, gradients = outcome(whole)
    calls.clear()
    model = load(saved[form], mapped(first, rest), tmp_path)
    codes_stay = {experts.down_proj.dtype for experts in experts_of(model)}
    assert codes_stay == {torch.float8_e4m3fn if form == "fp8" else torch.float32}
    logits, ours = outcome(model)
    executing = [torch.device("cuda", where) if isinstance(where, int) else torch.device("cpu") for where in (first, rest)]
    if first in ("cpu", "disk"):
        executing[0] = executing[1]
        assert experts_of(model)[0].down_proj.is_meta
    assert calls == [(device, device) for device in executing]
    near(logits, expected, 1e-6, "logits")
    kept = {name for name in gradients if isinstance(first, int) or not name.startswith("model.layers.0")}
    assert kept == ours.keys() and "model.embed_tokens.weight" in kept  # its gradient came through every layer
    for name in kept:
        near(ours[name], gradients[name], 1e-5, f"gradient of {name}")
    with torch.no_grad():  # without gradients, twice: what is remembered of the first call must not mislead the second
        assert torch.equal(model(TOKENS.to(executing[1])).logits, model(TOKENS.to(executing[1])).logits)


@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_bfloat16_models_are_spread_alike(saved, form, device, tmp_path):
    rest = 0 if device.type == "cuda" else "cpu"
    first = "cpu" if device.type == "cuda" else "disk"
    with torch.no_grad():
        expected = load(saved[form], {"": rest}, tmp_path, dtype=torch.bfloat16)(TOKENS.to(device)).logits
        ours = load(saved[form], mapped(first, rest), tmp_path, dtype=torch.bfloat16)(TOKENS.to(device)).logits
    near(ours, expected, 1e-3, "logits")


@pytest.mark.skipif(GPUS < 1, reason="no GPU")
@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_a_layer_on_the_cpu_and_one_on_the_gpu_both_compute_there(saved, form, tmp_path, calls):
    """accelerate with the CPU as its main device: nothing is offloaded, states travel between the devices."""
    def loaded():
        model = load(saved[form], {"": "cpu"}, tmp_path)
        for experts in experts_of(model):
            experts.activation_scheme = "none"  # products of unquantised activations on both
        return model
    expected, gradients = outcome(loaded())
    calls.clear()
    model = accelerate.dispatch_model(loaded(), mapped("cpu", 0) | {"model.embed_tokens": "cpu"}, main_device="cpu")
    logits, ours = outcome(model)
    assert [(x.type, weights.type) for x, weights in calls] == [("cpu", "cpu"), ("cuda", "cuda")]
    near(logits, expected, 1e-4, "logits")
    assert ours.keys() == gradients.keys()
    for name, gradient in gradients.items():
        near(ours[name], gradient, 2e-4, f"gradient of {name}")


@pytest.mark.parametrize("form", ["bf16", "fp8"])
@spreads("disk and cpu", "cpu and cuda")
def test_weights_that_were_brought_for_a_call_are_let_go(saved, form, spread, tmp_path, monkeypatch):
    """Else a model whose layers are offloaded would lie on the device as a whole after one call."""
    model = load(saved[form], mapped(*spread), tmp_path)
    original, brought = moe64.transformers.experts, []

    def experts(x, ids, factors, weights):
        matrix = weights.down.weights
        brought.append(weakref.ref(matrix.values if isinstance(matrix, moe64.Quantized) else matrix))
        return original(x, ids, factors, weights)
    monkeypatch.setattr(moe64.transformers, "experts", experts)
    with torch.no_grad():
        model(TOKENS.to(model.model.embed_tokens.weight.device))
    gc.collect()
    assert brought[0]() is None and brought[1]() is not None
    first, second = experts_of(model)
    assert "_moe64_seen" not in first.__dict__ and "_moe64_seen" in second.__dict__


def lora(model):
    peft = pytest.importorskip("peft")
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=6, target_parameters=targets, target_modules=[]))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                assert not parameter.is_meta and parameter.dtype == torch.float32
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


@pytest.mark.parametrize("form", ["bf16", "fp8"])
@spreads("cpu and cuda", "two GPUs")
def test_adapters_of_a_spread_model_train_as_on_one_device(saved, form, spread, tmp_path):
    """On two GPUs, or on the CPU and a GPU with both computing: PEFT has no adapters for layers that are offloaded."""
    results = []
    for device_map in ({"": spread[0]}, mapped(*spread)):
        model = load(saved[form], {"": spread[0]}, tmp_path)
        for experts in experts_of(model):
            experts.activation_scheme = "none"
        if len(device_map) > 1:
            accelerate.dispatch_model(model, device_map, main_device=spread[0])
        model = lora(model)
        results.append(outcome(model.base_model.model))
        with torch.no_grad():
            again = model(TOKENS.to(model.base_model.model.model.embed_tokens.weight.device)).logits
        near(again.cpu(), results[-1][0], 1e-5, "without gradients")
    (expected, gradients), (logits, ours) = results
    near(logits, expected, 1e-4, "logits")
    assert ours.keys() == gradients.keys() and len(ours) == 8  # A and B of two projections in two layers
    for name, gradient in gradients.items():
        near(ours[name], gradient, 2e-4, f"gradient of {name}")


def test_an_adapter_that_has_no_memory_is_named(saved, tmp_path):
    """What PEFT makes of adapters of layers that are offloaded."""
    peft = pytest.importorskip("peft")
    model = load(saved["bf16"], mapped("disk", "cpu"), tmp_path)
    config = peft.LoraConfig(r=3, target_parameters=["mlp.experts.gate_up_proj"], target_modules=[])
    with pytest.raises(moe64.DeviceMismatchError, match="is on meta, neither cpu nor cuda"):
        peft.get_peft_model(model, config)(TOKENS)


def test_codes_from_the_file_on_lie_where_the_device_map_says(saved, device, tmp_path):
    """moe64.transformers.from_pretrained: on the CPU of a machine with a GPU codes stay in host memory between calls."""
    own = moe64.transformers.from_pretrained
    if device.type == "cpu":
        model = load(saved["fp8"], {"": "cpu"}, tmp_path, own)
        codes._offload(experts_of(model)[0], "cpu")
    else:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model = load(saved["fp8"], mapped("cpu", 0), tmp_path, own)
        offloaded = sum(t.numel() for t in experts_of(model)[0]._hf_hook.weights_map.values())
        assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() < offloaded // 2, "it was on the GPU"
        assert torch.cuda.memory_allocated() > before
    whole = load(saved["fp8"], {"": 0 if device.type == "cuda" else "cpu"}, tmp_path, own)
    first, second = experts_of(model)
    assert isinstance(first, moe64.transformers.CodeExperts) and isinstance(second, moe64.transformers.CodeExperts)
    tokens = TOKENS.to(device)
    with torch.no_grad():
        expected = whole(tokens).logits
        for _ in range(2):
            near(model(tokens).logits, expected, 1e-6, "logits")
            assert first.down_proj.is_meta and first.down_proj_scales.is_meta and second.down_proj.device.type == device.type
    assert first._hf_hook.weights_map["down_proj"].device.type == "cpu"
    states = torch.randn(3, 64, device=device, requires_grad=True)
    ids, weights = torch.tensor([[0, 1], [5, 6], [2, 2]], device=device), torch.rand(3, 2, device=device)
    gradients = [torch.autograd.grad(experts(states, ids, weights).square().sum(), states)[0]
                 for experts in (first, experts_of(whole)[0])]
    near(gradients[0], gradients[1], 1e-6, "gradient through offloaded codes")


@pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs")
def test_codes_on_two_gpus(saved, tmp_path):
    model = load(saved["fp8"], mapped(1, 0), tmp_path, moe64.transformers.from_pretrained)
    assert [experts.down_proj.device.index for experts in experts_of(model)] == [1, 0]
    whole = load(saved["fp8"], {"": 0}, tmp_path, moe64.transformers.from_pretrained)
    with torch.no_grad():
        near(model(TOKENS.to("cuda:0")).logits, whole(TOKENS.to("cuda:0")).logits, 1e-6, "logits")


def test_codes_on_the_disk_are_refused(saved, tmp_path):
    with pytest.raises(moe64.UnsupportedError, match="layers.0.mlp.experts is mapped to the disk by 'model.layers.0'"):
        load(saved["fp8"], mapped("disk", "cpu"), tmp_path, moe64.transformers.from_pretrained)


def test_which_experts_are_offloaded():
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(11))
    for i, layer in enumerate(model.layers):
        layer.mlp = torch.nn.Module()
        layer.mlp._hf_hook = accelerate.hooks.AlignDevicesHook(1 if i == 10 else 0)

    def executing(layer, **device_map):
        model.hf_device_map = {name.replace("_", "."): device for name, device in device_map.items()}
        return codes._executing(model, f"layers.{layer}.mlp.experts")

    assert executing(1, layers_1="cpu", layers_10=1) == 0
    assert executing(10, layers_1="cpu", layers_10=1) is None
    assert executing(10, layers_1=0, layers_10_mlp="cpu", layers_10=0) == 1
    model.layers[3].mlp._hf_hook.execution_device = "cpu"  # nothing but the CPU and the disk: it runs where it lies
    assert executing(3, layers_3="cpu", layers_4="disk") is None
    with pytest.raises(moe64.UnsupportedError, match="'layers.4'"):
        executing(4, layers_3="cpu", layers_4="disk")
    del model.hf_device_map
    assert codes._executing(model, "layers.3.mlp.experts") is None
