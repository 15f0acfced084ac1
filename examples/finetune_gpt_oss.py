"""Fine-tunes gpt-oss with the Trainer of Transformers: its experts stay MXFP4, LoRA trains beside them.

    python examples/finetune_gpt_oss.py                                   # a tiny random one, token ids for words
    python examples/finetune_gpt_oss.py --model PATH --data rows.jsonl    # yours, and texts: {"text": ...} in each line

The adapter is one of PEFT, and fits the bf16 model as well. Needs torch, transformers, peft and accelerate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer, Trainer, TrainingArguments

import moe64
import moe64.transformers

TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class Rows(torch.utils.data.Dataset):
    """Rows of token ids, each its own label."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = [torch.as_tensor(row) for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def rows_of(data: Path, model: Path, length: int = 1024) -> Rows:
    """Texts one after the other, cut into rows of one length."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids: list[int] = []
    for line in data.read_text(encoding="utf-8").splitlines():
        ids += [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id]
    if len(ids) < length:
        raise SystemExit(f"finetune_gpt_oss: {data} has {len(ids)} tokens, expected {length} or more")
    return Rows([ids[at:at + length] for at in range(0, len(ids) - length + 1, length)])


def load(path: Path) -> Any:
    gpu = torch.cuda.is_available()
    return moe64.transformers.from_pretrained(path, dtype=torch.bfloat16 if gpu else torch.float32,
                                              device_map="cuda" if gpu else "cpu")


@torch.no_grad()
def logits_of(model: Any, row: torch.Tensor) -> torch.Tensor:
    return model.eval()(input_ids=row[None].to(model.device)).logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint; default: a tiny random one is made")
    parser.add_argument("--data", type=Path, help="texts, one JSON object in each line; default: rows that count")
    parser.add_argument("--out", type=Path, default=Path("finetuned/gpt-oss"))
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    if options.model is not None and options.data is None:
        raise SystemExit("finetune_gpt_oss: --model needs --data, texts to train it on")
    tiny = options.model is None
    path = options.out / "model" if tiny else options.model
    if tiny and not path.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        subprocess.run([moe64.tool(), "synth", path, "--like", "gpt-oss", "--scale-down", "32", "--layers", "2"], check=True)
    rows = rows_of(options.data, path) if not tiny else Rows(
        [[(5 * row + (row % 7 + 1) * at) % 64 for at in range(24)] for row in range(32)])

    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_parameters=TARGETS, target_modules=["q_proj", "o_proj"])
    model = get_peft_model(load(path), config)
    model.print_trainable_parameters()
    gpu = torch.cuda.is_available()
    arguments = TrainingArguments(output_dir=str(options.out / "runs"), max_steps=options.steps, per_device_train_batch_size=8,
                                  learning_rate=1e-2 if tiny else 2e-4, bf16=gpu, use_cpu=not gpu, logging_steps=5,
                                  save_strategy="no", report_to=[], seed=0)
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    model.save_pretrained(options.out / "adapter")

    again = PeftModel.from_pretrained(load(path), options.out / "adapter")
    if not torch.equal(logits_of(again, rows.rows[0]), logits_of(model, rows.rows[0])):
        raise SystemExit("the adapter that was loaded gives other logits than the one that was saved")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the adapter is in {options.out / 'adapter'}")
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
