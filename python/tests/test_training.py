"""LoRA beside codes with the trainers that people use, transformers.Trainer and trl.SFTTrainer: every format, gradient
checkpointing off, reentrant and not, with autocast and without. The loss falls, a run that is resumed has the losses of one
that was not, and a saved adapter has the logits of the model that saved it."""

import copy
import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.7")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402

FORMATS = {"fp8-block": "qwen3-30b", "fp8-row": "glm-4.7-flash", "int4": "kimi-k2-thinking", "mxfp4": "gpt-oss",
           "nvfp4": "qwen3-30b-nvfp4"}
CHECKPOINTING = {"off": {}, "reentrant": {"use_reentrant": True}, "not": {"use_reentrant": False}}
TARGETS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], "target_modules": ["o_proj"]}
SENTENCES = (torch.arange(8)[:, None] * 37 + torch.arange(16) * (torch.arange(8)[:, None] % 3 + 1)) % 500


@pytest.fixture(autouse=True)
def _quick():
    """One thread, because matrices are tiny; and trainers collect garbage often: what is there already is none."""
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """folder(format): a small checkpoint in it, made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoint") / name
            size = ("--scale-down", "64" if name == "int4" else "32", "--layers", "2")
            subprocess.run([moe64.tool(), "synth", made[name], "--like", FORMATS[name], *size], check=True, capture_output=True)
            config = json.loads((made[name] / "config.json").read_text())
            if config["model_type"] == "kimi_k2":  # the same architecture, for a Transformers that has no class of its name
                (made[name] / "config.json").write_text(json.dumps({**config, "model_type": "deepseek_v3"}))
        return made[name]
    return get


def load(where, dtype=torch.float32):
    options = {}
    method = json.loads((where / "config.json").read_text())["quantization_config"]["quant_method"]
    if method == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
    elif method == "fp8":  # what is not experts: Transformers has no kernels for it on a CPU
        options["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    return moe64.transformers.from_pretrained(where, dtype=dtype, **options).to(dtype)  # what was FP8 comes in bfloat16


@pytest.fixture(scope="module")
def base(folder):
    """base(format): a fresh copy of the model."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = load(folder(name))
        return copy.deepcopy(made[name])
    return get


def lora():
    return peft.LoraConfig(r=4, lora_alpha=8, **TARGETS)


def adapted(model, seed=3):
    torch.manual_seed(seed)
    return peft.get_peft_model(model, lora())


class Rows(Dataset):
    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, i):
        return {"input_ids": SENTENCES[i], "labels": SENTENCES[i]}


def arguments(out, autocast, checkpointing, steps=6):
    return {"output_dir": str(out), "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": steps,
            "learning_rate": 2e-2, "lr_scheduler_type": "constant", "max_grad_norm": 1.0, "save_steps": 3, "logging_steps": 1,
            "report_to": [], "use_cpu": True, "bf16": autocast, "gradient_checkpointing": checkpointing != "off",
            "gradient_checkpointing_kwargs": CHECKPOINTING[checkpointing] or None, "disable_tqdm": True, "seed": 5,
            "dataloader_pin_memory": False}


def trainer_of(kind, model, out, autocast, checkpointing, peft_config=None, **more):
    given = {**arguments(out, autocast, checkpointing), **more}
    if kind == "Trainer":
        return transformers.Trainer(model, transformers.TrainingArguments(**given), train_dataset=Rows(), eval_dataset=Rows())
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input_ids": SENTENCES.tolist()})
    # Without the auxiliary loss of routers: Transformers records their logits where reentrant checkpointing has no gradients.
    config = trl.SFTConfig(max_length=32, router_aux_loss_coef=0.0, **given)
    return trl.SFTTrainer(model, config, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer(),
                          peft_config=peft_config)


def tokenizer():
    from tokenizers import Tokenizer, models
    words = {f"w{i}": i for i in range(500)}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    made.pad_token = made.eos_token = "w1"
    return made


def losses(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def logits(model, autocast=False):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model.eval()(SENTENCES[:2]).logits


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("kind", ["Trainer", "SFTTrainer"])
@pytest.mark.parametrize("name", FORMATS)
def test_lora_beside_codes_trains_resumes_and_reloads(name, kind, autocast, base, tmp_path):
    if kind == "SFTTrainer":
        pytest.importorskip("trl")
    seen = {}
    for checkpointing in CHECKPOINTING:
        out = tmp_path / checkpointing
        trainer = trainer_of(kind, adapted(base(name)), out, autocast, checkpointing)
        trainer.train()
        seen[checkpointing] = found = losses(trainer)
        assert len(found) == 6 and found[5] + found[6] < found[1] + found[2] - 0.4, found  # the last epoch and the first
        again = trainer_of(kind, adapted(base(name), seed=4), out, autocast, checkpointing)
        again.train(resume_from_checkpoint=str(out / "checkpoint-3"))
        assert {step: loss for step, loss in losses(again).items() if step > 3} == {s: found[s] for s in (4, 5, 6)}
        trainer.model.save_pretrained(out / "adapter")
        fresh = peft.PeftModel.from_pretrained(base(name), out / "adapter")
        assert torch.equal(logits(fresh, autocast), logits(trainer.model, autocast))
    assert seen["off"] == seen["not"] == seen["reentrant"]


@pytest.mark.parametrize("name", ["fp8-row", "mxfp4"])
def test_packing_and_evaluation_of_adapters_that_trl_makes(name, base, tmp_path):
    pytest.importorskip("trl")
    packing = {"packing": True, "packing_strategy": "wrapped", "eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of("SFTTrainer", base(name), tmp_path, False, "off", lora(), **packing)
    trainer.train()
    assert len(trainer.train_dataset) < len(SENTENCES)  # two in each row
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 3 and evaluated[2] < evaluated[0]


@pytest.mark.parametrize("name", ["fp8-block", "nvfp4"])
def test_grpo(name, base, tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model, words = adapted(base(name)), tokenizer()
    before = {key: p.detach().clone() for key, p in model.named_parameters() if p.requires_grad}
    config = trl.GRPOConfig(**{**arguments(tmp_path, False, "off", steps=2), "gradient_accumulation_steps": 1,
                               "per_device_train_batch_size": 4}, num_generations=4, max_completion_length=5, beta=0.05)
    trainer = trl.GRPOTrainer(model, reward_funcs=lambda completion_ids, **_: [float(ids[0] % 7) for ids in completion_ids],
                              args=config, train_dataset=datasets.Dataset.from_dict({"prompt": ["w3 w4 w5", "w6 w7 w8"]}),
                              processing_class=words)
    trainer.train()
    moved = [key for key, p in model.named_parameters() if key in before and not torch.equal(p, before[key])]
    assert any("experts" in key and "lora_B" in key for key in moved)


FRESH = """
import sys, torch, peft
sys.path[:0] = sys.argv[1:3]
import test_training
model = peft.PeftModel.from_pretrained(test_training.load(__import__("pathlib").Path(sys.argv[3])), sys.argv[4])
torch.set_num_threads(1)
torch.save(test_training.logits(model), sys.argv[5])
"""


def test_a_fresh_process_has_the_logits_of_the_trained_model(folder, tmp_path):
    trainer = trainer_of("Trainer", adapted(load(folder("mxfp4"))), tmp_path, False, "off")
    trainer.train()
    trainer.save_model(tmp_path / "adapter")
    here = Path(__file__).resolve().parent
    subprocess.run([sys.executable, "-c", FRESH, here, here.parent, folder("mxfp4"), tmp_path / "adapter",
                    tmp_path / "logits.pt"], check=True, capture_output=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), logits(trainer.model))
