"""Generates text with the experts of a model in moe64, and compares with Transformers' own.

    python examples/generate.py                                   # a tiny random FP8 model: token ids, not words
    python examples/generate.py --model PATH --prompt "Hello"     # a checkpoint of yours
    python examples/generate.py --model PATH --adapter finetuned/adapter

Needs torch and transformers. Without compressed-tensors the tiny model is one of FP8 blocks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config

import moe64
import moe64.transformers


def timed(model: torch.nn.Module, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, ids.shape[1]:], time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--adapter", type=Path, help="a PEFT adapter on the experts")
    parser.add_argument("--prompt", default="The experts of this model are")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path is None:
            path = Path(folder) / "model"
            like = "glm-4.5" if importlib.util.find_spec("compressed_tensors") else "qwen3-30b"
            subprocess.run([moe64.tool(), "synth", path, "--like", like, "--scale-down", "32", "--layers", "3"],
                           check=True, stdout=subprocess.DEVNULL)
        # Expanded for the comparison; with FP8 blocks on a GPU Transformers would fetch kernels from the Hub instead.
        quantized = json.loads((path / "config.json").read_text()).get("quantization_config", {})
        expand = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if quantized.get("quant_method") == "fp8" else {}
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map=options.device, **expand).eval()
        tokenizer = AutoTokenizer.from_pretrained(path) if any(path.glob("tokenizer*")) else None
        ids = (tokenizer(options.prompt, return_tensors="pt").input_ids if tokenizer else torch.arange(1, 9)[None])
        ids = ids.to(options.device)
        theirs, theirs_seconds = timed(model, ids, options.tokens)
        model.set_experts_implementation("moe64")
        names = moe64.transformers.keep_codes(model, path)
        weights = [moe64.transformers.weights_of(model.get_submodule(name)) for name in names]
        modes = {moe64.explain(one, options.device)[0] for one in weights}
        if options.adapter is not None:
            from peft import PeftModel
            model = PeftModel.from_pretrained(model, options.adapter)
        ours, seconds = timed(model, ids, options.tokens)
    print(tokenizer.decode(ours) if tokenizer else " ".join(map(str, ours.tolist())))
    same = int((ours[:len(theirs)] == theirs[:len(ours)]).long().cumprod(0).sum())
    print(f"{len(ours)} tokens in {seconds:.2f} s (Transformers' own experts: {theirs_seconds:.2f} s); the first {same} are "
          "the same" + (", then rounding decides" if options.adapter is None and same < len(theirs) else "")
          + (" (w8a8: activations are rounded to 8 bits too)" if options.adapter is None and "w8a8" in modes else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
