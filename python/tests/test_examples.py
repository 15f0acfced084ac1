"""The programs in examples/, the example in README.md and the tutorial run, and print what their pages say."""

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


@pytest.mark.parametrize("name, needs", [("sft_glm", ["trl", "datasets", "compressed_tensors"]), ("finetune_gpt_oss", [])])
def test_fine_tuning_with_trainers(name, needs, tmp_path):
    for module in ("transformers", "peft", "accelerate", *needs):
        pytest.importorskip(module)
    out = run(ROOT / "examples" / f"{name}.py", "--out", tmp_path)
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", out).groups())
    assert last < 0.9 * first
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("to, bound", [("bf16", 0.02), ("fp8-block", 0.1)])
def test_merge_and_serve(to, bound, tmp_path):
    for module in ("transformers", "peft", "compressed_tensors"):
        pytest.importorskip(module)
    out = run(ROOT / "examples" / "merge_and_serve.py", "--out", tmp_path, "--to", to, "--tokens", "4")
    assert "27 tensors changed" in out and "4 tokens: [" in out
    assert float(re.search(r"differ by ([\d.e+-]+) of the largest", out).group(1)) < bound


def test_generate():
    pytest.importorskip("transformers")
    assert "8 tokens in " in run(ROOT / "examples" / "generate.py", "--tokens", "8")


def test_the_example_in_the_readme(tmp_path):
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    path = tmp_path / "readme.py"
    path.write_text(program)
    assert run(path).split() == ["torch.Size([5,", "64])", "True"]


NUMBER = r"\d+(?:\.\d+)?(?:e-\d+)?"


def test_the_tutorial_of_fine_tuning(tmp_path, monkeypatch):
    """Its commands of the tool, then its blocks of Python as one program; lines about losses and roundings may differ in the
    values, by a tenth and by three times."""
    for module in ("transformers", "peft", "compressed_tensors"):
        pytest.importorskip(module)
    page = (ROOT / "docs" / "tutorial-finetune.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^python (-m moe64 .*)$", "".join(text for kind, text in blocks if kind == "sh"), re.M)
    assert len(commands) == 2
    for command in commands:
        run(*command.split())
    (tmp_path / "tutorial.py").write_text("\n".join(text for kind, text in blocks if kind == "python"))
    printed = run("tutorial.py").splitlines()
    stated = "".join(text for kind, text in blocks if kind == "").splitlines()
    assert len(printed) == len(stated) == 10, printed
    for line, says in zip(printed, stated):
        if not says.startswith(("step ", "merged: ")):
            assert line == says
            continue
        assert re.sub(NUMBER, "#", line) == re.sub(NUMBER, "#", says)
        for value, said in zip(re.findall(NUMBER, line), re.findall(NUMBER, says)):
            assert float(value) == pytest.approx(float(said), rel=0.1) or (
                says.startswith("merged: ") and float(value) < 3 * float(said)), line
