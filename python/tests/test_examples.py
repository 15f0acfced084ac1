"""The programs in examples/ and the example in README.md run and end well."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "HF_HUB_OFFLINE": "1"}


def run(*command):
    done = subprocess.run([sys.executable, *map(str, command)], env=ENVIRONMENT, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples" / "reports").glob("*.py")))
def test_report(name):
    assert "WRONG" not in run(ROOT / "examples" / "reports" / name)


def test_every_report_is_in_the_table():
    table = (ROOT / "examples" / "reports" / "README.md").read_text()
    assert all(path.name in table for path in (ROOT / "examples" / "reports").glob("*.py"))


def test_finetune_lora(tmp_path):
    for module in ("transformers", "peft"):
        pytest.importorskip(module)
    out = run(ROOT / "examples" / "finetune_lora.py", "--out", tmp_path, "--steps", "25")
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", out).groups())
    assert last < 0.9 * first
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "loss.png").stat().st_size > 1000
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


def test_generate():
    pytest.importorskip("transformers")
    assert "8 tokens in " in run(ROOT / "examples" / "generate.py", "--tokens", "8")


def test_the_example_in_the_readme(tmp_path):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    path = tmp_path / "readme.py"
    path.write_text(program)
    assert run(path).split() == ["torch.Size([5,", "64])", "True"]
