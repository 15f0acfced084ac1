"""Merges a LoRA adapter into a quantised checkpoint and serves the result.

    python examples/merge_and_serve.py                                          # a tiny random FP8 model and adapter
    python examples/merge_and_serve.py --model PATH --adapter PATH --to fp8-block

`moe64 check ADAPTER --base MODEL` says first whether the adapter fits; the merge reads the files in pieces, needs no GPU and
no room for the model, and goes on where it was if it is killed. Then logits of the merged model are compared with those of
base and adapter, and it generates some tokens. Needs torch, transformers, compressed-tensors and peft.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

import moe64
import moe64.transformers


def load(path: Path) -> Any:
    gpu = torch.cuda.is_available()
    return moe64.transformers.from_pretrained(path, dtype=torch.bfloat16 if gpu else torch.float32,
                                              device_map="cuda" if gpu else "cpu")


def make_tiny(path: Path, adapter: Path) -> None:
    """A random FP8 checkpoint, and an adapter as large as training makes them."""
    subprocess.run([moe64.tool(), "synth", path, "--like", "glm-4.7-flash", "--scale-down", "16", "--layers", "3"], check=True)
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["o_proj"], init_lora_weights=False,
                        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    get_peft_model(load(path), config).save_pretrained(adapter)


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model.eval()(input_ids=ids.to(model.device)).logits.float()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint; default: a tiny random one is made, with an adapter")
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--to", default="bf16", choices=["bf16", "fp8-block", "fp8-row", "same"])
    parser.add_argument("--out", type=Path, default=Path("finetuned/merged"))
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    if (options.model is None) != (options.adapter is None):
        raise SystemExit("merge_and_serve: --model and --adapter belong together")
    path, adapter = options.model, options.adapter
    if path is None:
        options.out.mkdir(parents=True, exist_ok=True)
        path, adapter = options.out / "model", options.out / "adapter"
        if not adapter.exists():
            make_tiny(path, adapter)

    subprocess.run([moe64.tool(), "check", adapter, "--base", path], check=True)
    merged = options.out / options.to
    report = moe64.merge(path, adapter, merged, to=options.to)
    for warning in report["warnings"]:
        print(f"warning: {warning}")
    least = min(report["merged"], key=lambda tensor: tensor["kept"])
    print(f"{len(report['merged'])} tensors changed; after rounding {least['kept']:.1%} of the change are there in "
          f"{least['tensor']}, where least is")

    ids = torch.arange(1, 33)[None]
    expected = logits_of(PeftModel.from_pretrained(load(path), adapter), ids)
    model = load(merged)
    error = (logits_of(model, ids) - expected).abs().max() / expected.abs().max()
    print(f"logits of the merged model differ by {error:.1e} of the largest from base and adapter")
    out = model.generate(ids.to(model.device), attention_mask=torch.ones_like(ids).to(model.device),
                         max_new_tokens=options.tokens, do_sample=False, pad_token_id=0)
    print(f"{out.shape[1] - ids.shape[1]} tokens: {out[0, ids.shape[1]:].tolist()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
