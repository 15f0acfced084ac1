"""torch.compile of whole models with experts of moe64: one graph, and the bits of the model that is not compiled."""

import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from test_lora import TARGETS  # noqa: E402
from test_saving import options_of  # noqa: E402
from test_transformers import tiny  # noqa: E402

SHAPES = [(2, 5), (3, 7), (4, 6)]  # the first as a constant, the others in a graph for any
ADAPTER = {"r": 2, "lora_alpha": 4, "target_parameters": TARGETS, "target_modules": ["q_proj"], "init_lora_weights": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small checkpoint in fine-grained FP8."""
    made = tmp_path_factory.mktemp("checkpoint") / "m"
    subprocess.run([moe64.tool(), "synth", made, "--like", "qwen3-30b", "--scale-down", "32", "--layers", "1"], check=True,
                   capture_output=True)
    return made


@pytest.fixture(autouse=True)
def graphs():
    """How many graphs the test has made so far."""
    torch._dynamo.utils.counters.clear()
    return lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]


def model_of(stored, with_adapter, folder):
    if stored == "codes":
        model = moe64.transformers.from_pretrained(folder, dtype=torch.bfloat16, **options_of(folder))
        assert any(isinstance(module, moe64.transformers.CodeExperts) for module in model.modules())
    else:
        model = tiny("mixtral", torch.bfloat16, num_hidden_layers=1)
        model.set_experts_implementation("moe64")
    return peft.get_peft_model(model, peft.LoraConfig(**ADAPTER)) if with_adapter else model


def tokens(shape):
    return torch.arange(shape[0] * shape[1]).view(shape) * 7 % 90


def outcome(call, model, shape):
    model.zero_grad()
    logits = call(tokens(shape)).logits
    logits.float().square().mean().backward()
    return {"logits": logits.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


def equal(ours, expected):
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("with_adapter", [False, True], ids=["bare", "adapter"])
@pytest.mark.parametrize("stored", ["bf16", "codes"])
def test_a_compiled_model_trains_with_the_bits_of_the_model(stored, with_adapter, folder, graphs):
    model = model_of(stored, with_adapter, folder)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for shape in SHAPES:
        equal(outcome(compiled, model, shape), outcome(model, model, shape))
    assert graphs() == 2


def test_a_compiled_model_follows_every_change_of_its_adapters(folder):
    model = model_of("codes", True, folder).eval()
    compiled, before = torch.compile(model, fullgraph=True, backend="eager"), []

    def more():
        model.add_adapter("second", peft.LoraConfig(**{**ADAPTER, "r": 3}))
        model.base_model.set_adapter(["default", "second"])

    def step():
        for name, parameter in model.named_parameters():
            parameter.data.mul_(2 if "lora_B" in name else 1)

    def scale():
        for wrapper in model.modules():
            if "ParamWrapper" in type(wrapper).__name__:
                wrapper.scaling["default"] *= 0.5

    with torch.no_grad():
        for change in (lambda: None, step, scale, more, model.base_model.disable_adapter_layers):
            change()
            expected = model(tokens((2, 5))).logits
            assert torch.equal(compiled(tokens((2, 5))).logits, expected)
            assert not any(torch.equal(expected, seen) for seen in before)
            before.append(expected)


@pytest.mark.parametrize("with_adapter", [False, True], ids=["bare", "adapter"])
def test_generation_with_a_static_cache_is_compiled_once(with_adapter, folder, graphs):
    model = model_of("codes", with_adapter, folder).eval()
    options = {"input_ids": tokens((2, 4)), "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**options)
    how = transformers.CompileConfig(fullgraph=True, backend="eager", mode=None)
    how._compile_all_devices = True  # Transformers compiles on GPUs alone
    assert torch.equal(model.generate(**options, cache_implementation="static", compile_config=how), expected)
    assert graphs() == 1


def test_experts_with_a_gate_of_their_own_have_no_break():
    model = tiny("mixtral", num_hidden_layers=1)
    model.set_experts_implementation("moe64")

    class Odd(type(model.model.layers[0].mlp.experts)):
        def _apply_gate(self, gate_up):
            gate, up = gate_up.chunk(2, dim=-1)
            return torch.tanh(gate) * up + 1

    model.model.layers[0].mlp.experts.__class__ = Odd
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    equal(outcome(compiled, model, SHAPES[0]), outcome(model, model, SHAPES[0]))
