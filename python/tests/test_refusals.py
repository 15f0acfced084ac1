"""What a slip says: the argument, what was given, and what to write instead."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import moe64

ROOT = Path(__file__).resolve().parents[2]


def test_a_layout_that_is_no_text():
    codes, scales = torch.zeros(4, 64, 64, dtype=torch.float8_e4m3fn), torch.ones(4, 1, 1)
    with pytest.raises(moe64.InvalidArgumentError, match=r'layout is \(64, 64\), a tuple: say it in words, as "block:64x64"'):
        moe64.Quantized(codes, scales, (64, 64))
    with pytest.raises(moe64.InvalidArgumentError, match=r'layout is None, a NoneType: .* "block:128x128"'):
        moe64.Quantized(codes, scales, None)


@pytest.mark.parametrize("text", ["block:0x0", "block:128x0", "block:0x128", "group:0"])
def test_a_granularity_without_extents(text):
    with pytest.raises(moe64.InvalidArgumentError, match=rf"{text} has no extent"):
        moe64.Granularity.parse(text)
    with pytest.raises(moe64.InvalidArgumentError, match="block:0x4 has no extent"):
        moe64.Granularity("block", 0, 4)


def test_a_function_as_an_activation():
    with pytest.raises(moe64.InvalidArgumentError, match="activation is <function silu .*neither an Activation nor one of"):
        moe64.ExpertWeights(torch.zeros(2, 8, 4), torch.zeros(2, 4, 4), activation=torch.nn.functional.silu)


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize(("given", "meant"), [("silu", "silu_glu"), ("gelu", "gelu_glu or gelu_tanh"), ("relu2", "one of")])
def test_an_activation_without_a_gate_for_gate_and_up(given, meant, pair):
    gate_up = (torch.zeros(2, 8, 4), torch.zeros(2, 8, 4)) if pair else torch.zeros(2, 16, 4)
    weights = moe64.ExpertWeights(gate_up, torch.zeros(2, 4, 8), activation=given)
    with pytest.raises(moe64.ShapeMismatchError, match=f"'{given}', which has no gate, .* the gated activation is {meant}"):
        moe64.experts(torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.int64), None, weights)


def test_an_activation_without_a_gate_for_packed_codes():
    gate_up, down = (moe64.quantize(torch.randn(2, *shape), "group:32", "int4") for shape in ((64, 32), (32, 32)))
    with pytest.raises(moe64.ShapeMismatchError, match="have 64 rows where down has 32 cols"):
        moe64.experts(torch.zeros(3, 32), torch.zeros(3, 1, dtype=torch.int64), None,
                      moe64.ExpertWeights(gate_up, down, activation="silu"))


def test_lora_that_is_none():
    layer = moe64.Experts(2, 8, 4)
    with pytest.raises(moe64.InvalidArgumentError, match="rank is 0"):
        layer.add_lora(0)
    with pytest.raises(moe64.InvalidArgumentError, match="projections has 'gate', neither gate_up .* nor down"):
        layer.add_lora(2, projections=("gate",))
    assert not layer._scaling


def test_lora_in_the_place_of_lora():
    """The first, trained or not, was discarded."""
    layer = moe64.Experts(2, 8, 4).add_lora(2, projections=("down",))
    factor = layer.down_lora_a
    with pytest.raises(moe64.InvalidArgumentError, match="down has LoRA of rank 2"):
        layer.add_lora(3)
    assert layer.down_lora_a is factor and "gate_up" not in layer._scaling
    layer.add_lora(3, projections=("gate_up",))
    assert layer.gate_up_lora_a.shape[1] == 3


@pytest.mark.parametrize("call", [moe64.inspect, moe64.check, lambda path: moe64.load_experts(path, 3)])
def test_a_name_of_the_hub_that_was_not_downloaded(call):
    with pytest.raises(moe64.IoFailureError, match=r"no folder 'nobody/NoModel'.*snapshot_download\('nobody/NoModel'\)"):
        call("nobody/NoModel")


def test_a_name_of_the_hub_that_was_downloaded(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    subprocess.run([moe64.tool(), "synth", tmp_path / "here", "--like", "qwen3-30b", "--scale-down", "32", "--layers", "1"],
                   check=True, capture_output=True)
    monkeypatch.setattr(hub, "snapshot_download", lambda name, local_files_only: str(tmp_path / "here"))
    assert moe64.inspect("somebody/Model")["model_type"] == "qwen3_moe"
    assert moe64.load_experts("somebody/Model", 0).down.weights.values.shape[0]


def test_a_strict_type_checker_knows_every_name(tmp_path):
    """mypy --strict of a script of somebody's: every lazy name was "not explicitly exported"."""
    pytest.importorskip("mypy")
    uses = "\n".join(f"print(moe64.{name})" for name in moe64.__all__)
    (tmp_path / "script.py").write_text(f"import moe64\n\n{uses}\nlayer: moe64.Experts = moe64.Experts(2, 8, 4).add_lora(2)\n")
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\nfollow_imports = silent\nmypy_path = {ROOT / 'python'}\n"
                                       f"cache_dir = {ROOT / 'build' / 'mypy-strict'}\n"
                                       "[mypy-torch.*,transformers.*,peft.*,numpy.*]\nfollow_imports = skip\n"
                                       "ignore_missing_imports = True\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", tmp_path / "script.py"],
                          capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


ASKS = """
import importlib.util
import sys
import torch
assert "transformers" not in sys.modules and "moe64.transformers" not in sys.modules
assert importlib.util.find_spec("transformers.modeling_utils")  # somebody who only looks
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("mixtral", hidden_size=32, intermediate_size=32, num_hidden_layers=1, vocab_size=16,
                              num_attention_heads=2, num_key_value_heads=1, num_local_experts=2)
AutoModelForCausalLM.from_config(config)
assert "moe64.transformers" not in sys.modules
model = AutoModelForCausalLM.from_config(config, experts_implementation="moe64")
assert torch.isfinite(model(torch.arange(5)[None]).logits).all() and "moe64.transformers" in sys.modules
"""


def test_models_know_the_name_without_an_import(tmp_path):
    """Transformers listed the names that it knew, with no hint. `import torch` is enough where the wheel is installed."""
    pytest.importorskip("transformers", minversion="5.7")
    entry = re.search(r'"torch\.backends"\].*\nmoe64 = "(.*)"', (ROOT / "pyproject.toml").read_text())
    installed = tmp_path / "moe64-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: moe64\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text(f"[torch.backends]\nmoe64 = {entry[1]}\n")
    subprocess.run([sys.executable, "-c", ASKS], check=True,
                   env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{tmp_path}"})
