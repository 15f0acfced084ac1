"""PEFT's adapters beside codes of every format: they have the shapes, the values and the losses of adapters of the model that
`moe64 convert --to bf16` makes of the same checkpoint, and fit both."""

import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
peft = pytest.importorskip("peft")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from test_training import FORMATS, SENTENCES, _quick, adapted, folder, load  # noqa: E402, F401 (fixtures)
from test_transformers import near  # noqa: E402


def converted(where, out):
    subprocess.run([moe64.tool(), "convert", where, out, "--to", "bf16"], check=True, capture_output=True)
    return transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, experts_implementation="eager")


def code_experts(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, moe64.transformers.CodeExperts)}


def as_the_class_has_it(codes, name, own):
    """Values of codes in the order of rows and the orientation of the experts class."""
    matrix = codes.matrix(name)
    parts = moe64.transformers._halves(matrix) if name == "gate_up_proj" and matrix.global_scale is not None else [matrix]
    values = torch.cat([moe64.dequantize(part, dtype=torch.float32) for part in parts], 1)
    if name == "gate_up_proj" and not own.is_concatenated:
        values = torch.stack(values.chunk(2, 1), 2).flatten(1, 2)
    return values.transpose(1, 2).contiguous() if own.is_transposed else values


def trained(model):
    """Logits, and gradients of all factors."""
    logits = model.train()(SENTENCES[:2]).logits
    logits.square().mean().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FORMATS)
def test_an_adapter_fits_the_codes_and_the_bf16_model(name, folder, tmp_path):  # noqa: F811
    model, plain = load(folder(name)), converted(folder(name), tmp_path / "plain")
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if "experts" not in key}, strict=False)
    for path, codes in code_experts(model).items():  # what remains of a difference is not that of rounding to bf16
        own = plain.get_submodule(path)
        for matrix in ("gate_up_proj", "down_proj"):
            exact, parameter = as_the_class_has_it(codes, matrix, own), getattr(own, matrix)
            near(parameter.detach(), exact, 0.005, matrix)
            parameter.data = exact
    model = adapted(model)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(0, 0.1)
    model.save_pretrained(tmp_path / "adapter")
    plain = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter", is_trainable=True)
    (ours, gradients), (theirs, expected) = trained(model), trained(plain)
    near(ours, theirs, 1e-4, "logits")
    assert gradients.keys() == expected.keys() and sum("experts" in key for key in gradients) >= 4
    for key, gradient in expected.items():
        near(gradients[key], gradient, 1e-3, key)
    with torch.no_grad():  # without gradients the factors are copied another way
        assert torch.equal(model(SENTENCES[:2]).logits, ours)
    with plain.disable_adapter(), torch.no_grad():
        assert (plain(SENTENCES[:2]).logits - theirs).abs().max() > 0.01, "the adapter does nothing"


@pytest.mark.parametrize("name", ["fp8-row", "mxfp4"])
def test_100_steps_have_the_losses_of_the_bf16_model(name, folder, tmp_path):  # noqa: F811
    """Of GLM and gpt-oss. Routers of random weights choose another expert at the roundings of the bf16 copy, the more the
    larger the steps are: at this rate the losses differ by 1e-4 and 1e-6."""
    runs = []
    for model in (load(folder(name)), converted(folder(name), tmp_path / "plain")):
        model = adapted(model).train()
        factors = [p for p in model.parameters() if p.requires_grad]
        optimizer, seen = torch.optim.AdamW(factors, lr=1e-3, weight_decay=0.0), []
        for step in range(100):
            tokens = SENTENCES[step % 4 * 2:][:2]
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        runs.append(torch.tensor(seen))
    ours, theirs = runs
    assert theirs[-8:].mean() < 0.85 * theirs[:8].mean()
    assert ((ours - theirs).abs() / theirs).max() < 0.01


def test_gpt_oss_experts_that_transformers_would_wrap(folder, monkeypatch):  # noqa: F811
    """On a GPU with Triton and kernels Transformers keeps its own module around MXFP4 experts, which calls them in another
    way and cannot be trained."""
    from transformers.quantizers import quantizer_mxfp4
    monkeypatch.setattr(quantizer_mxfp4.Mxfp4HfQuantizer, "validate_environment", lambda *_args, **_options: None)
    monkeypatch.setattr(quantizer_mxfp4, "get_current_accelerator", lambda: torch.device("cuda"), raising=False)
    model = load(folder("mxfp4"))
    assert code_experts(model) and {type(layer.mlp).__name__ for layer in model.model.layers} == {"GptOssMLP"}
    assert not getattr(model, "is_quantized", False), "a Trainer would ask its quantizer, which cannot be trained"
    assert torch.isfinite(model(SENTENCES[:1]).logits).all()
