"""Fine-tunes LoRA on the experts of an FP8 mixture-of-experts model: the codes stay as they are stored.

    python examples/finetune_lora.py                      # a tiny random GLM-4-MoE, about a minute on a CPU
    python examples/finetune_lora.py --model PATH ...     # a checkpoint of yours
    python examples/finetune_lora.py --device cuda

Makes a small random checkpoint (`moe64 synth`), loads it with Transformers and its experts as codes, trains LoRA, saves the
adapter with PEFT, loads it again, and checks it against a bf16 copy of the checkpoint with the adapter merged. Writes the
adapter, the bf16 copy and loss.png to --out. docs/tutorial-finetune.md explains each step.

Needs torch, transformers, peft and tqdm. Without compressed-tensors the tiny model is one of FP8 blocks; without
matplotlib there is no loss.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tqdm import tqdm
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

import moe64
import moe64.transformers

TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def make_tiny(path: Path, like: str) -> None:
    """A random FP8 checkpoint of some MiB."""
    plain = importlib.util.find_spec("compressed_tensors") is not None
    made = path if plain else path.with_name("made")
    subprocess.run([moe64.tool(), "synth", made, "--like", like, "--scale-down", "32", "--layers", "3"], check=True)
    if not plain:
        print("compressed-tensors is not installed: the tiny model is converted to FP8 blocks")
        subprocess.run([moe64.tool(), "convert", made, path, "--to", "fp8-block"], check=True, stdout=subprocess.DEVNULL)


def load(path: Path, device: str) -> torch.nn.Module:
    """The model with its experts as they are stored; what else is in FP8 blocks is expanded, so that no kernels of the
    Hub are needed."""
    quantized = json.loads((path / "config.json").read_text()).get("quantization_config", {})
    options = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if quantized.get("quant_method") == "fp8" else {}
    model = moe64.transformers.from_pretrained(path, dtype=torch.float32, device_map=device, **options)
    kept = [module for module in model.modules() if isinstance(module, moe64.transformers.CodeExperts)]
    codes = sum(p.numel() * p.element_size() for module in kept for p in module.parameters())
    print(f"{len(kept)} layers keep their codes: {codes / 2**20:.1f} MiB of experts")
    return model.to(torch.float32)  # Transformers leaves bf16 what it expanded from FP8 blocks; codes stay codes


def batch_of(tokens: int, sequences: int, vocabulary: int, device: str) -> torch.Tensor:
    """Sequences that count in steps of their own: the next token follows from the last two."""
    start = torch.arange(sequences, device=device)[:, None] * 5
    step = torch.arange(sequences, device=device)[:, None] % 7 + 1
    return (start + step * torch.arange(tokens, device=device)) % min(vocabulary, 64)


def train(model: torch.nn.Module, batch: torch.Tensor, steps: int, rate: float) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    losses: list[float] = []
    model.train()
    for _ in (bar := tqdm(range(steps), desc="training", file=sys.stdout)):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    model.eval()
    return losses


def plot(losses: list[float], path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print(f"matplotlib is not installed: no {path}")
        return
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="loss", title="LoRA on FP8 experts")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")


@torch.no_grad()
def logits_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model.eval()(input_ids=batch).logits.float()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint; default: a tiny random one is made")
    parser.add_argument("--like", default="glm-4.5", help="what the tiny one is like; see `moe64 synth --list`")
    parser.add_argument("--out", type=Path, default=Path("finetuned"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.01)
    options = parser.parse_args()
    torch.manual_seed(0)
    options.out.mkdir(parents=True, exist_ok=True)

    path = options.model
    if path is None:
        path = options.out / "model"
        if not path.exists():
            make_tiny(path, options.like)
    model = load(path, options.device)
    batch = batch_of(24, 16, model.config.get_text_config().vocab_size, options.device)

    config = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_parameters=TARGETS, target_modules=[])
    model = get_peft_model(model, config)
    model.print_trainable_parameters()
    losses = train(model, batch, options.steps, options.rate)
    plot(losses, options.out / "loss.png")
    model.save_pretrained(options.out / "adapter")
    trained = logits_of(model, batch)

    again = PeftModel.from_pretrained(load(path, options.device), options.out / "adapter")
    if not torch.equal(logits_of(again, batch), trained):
        raise SystemExit("the adapter that was loaded gives other logits than the one that was saved")

    copy = options.out / "bf16"
    if not copy.exists():
        subprocess.run([moe64.tool(), "convert", path, copy, "--to", "bf16"], check=True, stdout=subprocess.DEVNULL)
    plain = AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32).to(options.device)
    merged = PeftModel.from_pretrained(plain, options.out / "adapter").merge_and_unload()
    # bf16 rounds the weights a little, and now and then that lets a router choose another expert for a token.
    errors = (logits_of(merged, batch) - trained).abs().amax(-1) / trained.abs().max()
    other = int((errors > 0.01).sum())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; logits of the merged bf16 copy differ by {errors.median():.1e} of the "
          f"largest; {other} of {errors.numel()} tokens chose another expert there")
    print(f"adapter, bf16 copy and loss.png are in {options.out}")
    if not losses[-1] < 0.9 * losses[0]:
        raise SystemExit("the loss did not go down")
    if other > 0.02 * errors.numel():
        raise SystemExit("the merged model is not the trained one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
