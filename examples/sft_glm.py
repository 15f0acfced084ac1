"""Supervised fine-tuning of an FP8 GLM with TRL: the experts stay codes, LoRA trains beside them and on attention.

    python examples/sft_glm.py                                   # a tiny random GLM-4.7-Flash, token ids for words
    python examples/sft_glm.py --model PATH --data rows.jsonl    # a checkpoint and texts of yours: {"text": ...} in each line

Nothing in it is moe64's but the line that loads the model. Writes checkpoints and the adapter to --out; started again with
the same --out it goes on where it was. examples/merge_and_serve.py makes a checkpoint of model and adapter.

Needs torch, transformers, compressed-tensors, peft, trl and datasets.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

import moe64
import moe64.transformers


def make_tiny(path: Path) -> None:
    subprocess.run([moe64.tool(), "synth", path, "--like", "glm-4.7-flash", "--scale-down", "32", "--layers", "3"], check=True)


def tiny_tokenizer(words: int) -> Any:
    """Words w0, w1, ... for a model that has none."""
    table = {f"w{i}": i for i in range(words)}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(table, unk_token="w0")))
    made.pad_token = made.eos_token = "w1"
    return made


def counting(words: int) -> Any:
    """Rows that count in steps of their own: the next word follows from the last two."""
    rows = [[(5 * row + (row % 7 + 1) * at) % words for at in range(24)] for row in range(32)]
    return datasets.Dataset.from_dict({"input_ids": rows})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint; default: a tiny random one is made")
    parser.add_argument("--data", type=Path, help="texts, one JSON object in each line; default: rows that count")
    parser.add_argument("--out", type=Path, default=Path("finetuned/glm"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    if options.model is not None and options.data is None:
        raise SystemExit("sft_glm: --model needs --data, texts to train it on")
    tiny = options.model is None
    path = options.out / "model" if tiny else options.model
    if tiny and not path.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        make_tiny(path)

    gpu = torch.cuda.is_available()
    dtype = torch.bfloat16 if gpu else torch.float32
    model = moe64.transformers.from_pretrained(path, dtype=dtype, device_map="cuda" if gpu else "cpu")
    tokenizer = tiny_tokenizer(model.config.vocab_size) if tiny else transformers.AutoTokenizer.from_pretrained(path)
    rows = counting(64) if tiny else datasets.load_dataset("json", data_files=str(options.data), split="train")

    lora = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules=["o_proj"],
                      target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    config = SFTConfig(output_dir=str(options.out / "runs"), max_steps=options.steps, per_device_train_batch_size=8,
                       learning_rate=1e-2 if tiny else 2e-4, max_length=2048, bf16=gpu, use_cpu=not gpu, seed=0,
                       gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False},
                       logging_steps=5, save_steps=20, report_to=[])
    trainer = SFTTrainer(model, config, train_dataset=rows, processing_class=tokenizer, peft_config=lora)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(config.output_dir) if (options.out / "runs").is_dir() else None)
    trainer.save_model(str(options.out / "adapter"))

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; the adapter is in {options.out / 'adapter'}")
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
