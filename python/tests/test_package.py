"""The package as such: Python 3.10, documentation that runs, type hints, what a wheel holds, what a call costs."""

import ast
import contextlib
import doctest
import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import moe64
from moe64.compat import transformer_engine, unsloth

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "python" / "moe64").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "python").as_posix())
def test_python_3_10_can_read_it(path):
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_every_module_is_typed_and_says_so():
    assert (ROOT / "python" / "moe64" / "py.typed").is_file()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                where = f"{path.name}:{node.lineno} {node.name}"
                assert node.returns is not None or node.name in ("backward",), where
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls", "ctx")]
                assert not bare, f"{where}: {bare}"


def names():
    modules = ["moe64", "moe64.compat.transformer_engine", "moe64.compat.unsloth"]
    if importlib.util.find_spec("transformers"):
        modules.append("moe64.transformers")
        modules += ["moe64.lora"] * (importlib.util.find_spec("peft") is not None)
    for module in map(importlib.import_module, modules):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) or inspect.isclass(found):
                yield pytest.param(found, id=f"{module.__name__}.{name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place to run examples in, with a checkpoint of the name that they use."""
    where = tmp_path_factory.mktemp("examples")
    subprocess.run([moe64.tool(), "synth", where / "GLM-4.7-Flash-FP8", "--like", "glm-4.7-flash", "--scale-down", "32",
                    "--layers", "4"], check=True, capture_output=True)
    return where


def surroundings(name, folder):
    """What the variables stand for that examples take for granted."""
    gate_up, down = torch.randn(4, 2 * 128, 256), torch.randn(4, 256, 128)
    q = moe64.quantize(torch.randn(128, 256), "block:128x128")
    known = {"torch": torch, "moe64": moe64, "te": transformer_engine, "unsloth": unsloth, "subprocess": subprocess,
             "path": folder / "GLM-4.7-Flash-FP8", "Granularity": moe64.Granularity, "gate_up": gate_up, "down": down,
             "codes": q.values, "scales": q.scales, "x": torch.randn(5, 64), "probs": torch.rand(5, 4),
             "logits": torch.randn(5, 16), "bias": torch.rand(16), "gate": torch.randn(5, 8), "up": torch.randn(5, 8),
             "ids": torch.randint(0, 2, (5, 2)), "experts": 4}
    if name == "grouped_gemm":
        known.update(weights=torch.randn(4, 8, 64))
    elif name in ("ExpertWeights", "explain"):
        stack = moe64.quantize(gate_up, "block:128x128")
        known.update(codes=stack.values, scales=stack.scales, weights=moe64.ExpertWeights(stack, down))
    elif name in ("CodeLinear", "serve"):
        known["transformers"] = importlib.import_module("transformers")
    elif name == "Experts":
        known.update(top_k_index=known["ids"], top_k_weights=torch.rand(5, 2))
    elif name == "merge":
        from safetensors.torch import save_file
        layer = next(layer for layer in moe64.inspect(known["path"])["layers"] if layer["sound"] and not layer["mtp"])
        key = f"base_model.model.model.layers.{layer['layer']}.mlp.experts.lora_"
        (folder / "adapter").mkdir()
        save_file({f"{key}A.weight": torch.randn(2 * layer["experts"], layer["inter"]),
                   f"{key}B.weight": torch.randn(layer["hidden"], 2 * layer["experts"])},
                  folder / "adapter" / "adapter_model.safetensors")
        (folder / "adapter" / "adapter_config.json").write_text(
            '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_parameters": ["experts.down_proj"]}')
    elif name in ("keep_codes", "weights_of", "experts_forward", "from_pretrained", "active_factors"):
        from transformers import AutoModelForCausalLM
        pytest.importorskip("compressed_tensors")
        known.update(AutoModelForCausalLM=AutoModelForCausalLM, experts=torch.nn.Module())
        if name != "from_pretrained":
            known["model"] = moe64.transformers.from_pretrained(known["path"], dtype=torch.float32)
    known["x"] = torch.randn(5, moe64.inspect(known["path"])["layers"][0]["hidden"]) if name in (
        "load_experts", "CodeExperts", "experts_forward", "Experts") else known["x"]
    return known


@pytest.mark.parametrize("thing", list(names()))
def test_every_public_name_has_an_example_that_runs(thing, folder, monkeypatch):
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        assert issubclass(thing, moe64.Moe64Error)
        return
    examples = doctest.DocTestParser().get_examples(text)
    assert examples, "no example"
    if thing.__name__ == "set_layout":
        pytest.skip("test_lora has an adapter of unsloth")
    monkeypatch.chdir(folder)
    known = surroundings(thing.__name__, folder)
    try:
        for example in examples:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(example.source, thing.__name__, "single"), known)
            if example.want:
                assert said.getvalue() == example.want, example.source
    finally:
        moe64.set_threads(None)


def test_the_check_of_wheels_sees_what_is_missing(tmp_path):
    if not (ROOT / "scripts" / "check_wheel").is_file():
        pytest.skip("not in a checkout")
    loader = importlib.machinery.SourceFileLoader("check_wheel", str(ROOT / "scripts" / "check_wheel"))
    check = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_wheel", loader))
    loader.exec_module(check)
    entries = {path.relative_to(ROOT / "python").as_posix(): path.read_bytes()
               for path in (*SOURCES, ROOT / "python" / "moe64" / "py.typed")}
    entries |= {"moe64/lib/libmoe64.so.0.1": b"", "moe64/bin/moe64": b"",
                "moe64-0.1.0.dist-info/entry_points.txt": b"[console_scripts]\nmoe64 = moe64.__main__:main\n"}

    def wheel(have, name="moe64-0.1.0-py3-none-linux_x86_64.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for entry, content in have.items():
                info = zipfile.ZipInfo(entry)
                info.external_attr = (0o755 if "/bin/" in entry else 0o644) << 16
                archive.writestr(info, content)
        return check.wrong_in(tmp_path / name)

    assert wheel(entries) == []
    for entry in ("moe64/py.typed", "moe64/bin/moe64", "moe64/lib/libmoe64.so.0.1", "moe64-0.1.0.dist-info/entry_points.txt",
                  "moe64/compat/unsloth.py"):
        assert len(wheel({name: content for name, content in entries.items() if name != entry})) == 1, entry
    assert "compiled Python module" in wheel({**entries, "moe64/_c.cpython-311-x86_64-linux-gnu.so": b""})[0]
    assert "every Python 3" in wheel(entries, "moe64-0.1.0-cp311-cp311-linux_x86_64.whl")[0]


def test_what_one_call_costs_besides_the_library(device):
    """Under 20 us on the machines that this was measured on; slower ones are given as much more as they need for a plain
    loop. The best of some tries, because others may be at work."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    loop = "import timeit; print(min(timeit.repeat('for i in range(10000): f(i)', 'f = abs', number=1, repeat=40)))"
    slowness = max(1.0, float(subprocess.check_output([sys.executable, "-c", loop], text=True)) / 400e-6)
    costs = []
    for _ in range(5):
        said = subprocess.check_output([sys.executable, ROOT / "bench" / "python_call.py", device.type], env=environment,
                                       text=True)
        costs.append(float(re.search(r"us: (-?[\d.]+) us of Python", said).group(1)))
        if costs[-1] < 20 * slowness:
            return
    raise AssertionError(f"{costs} us, on a machine {slowness:.2f} times as slow as usual")
