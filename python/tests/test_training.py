"""LoRA beside codes with the trainers that people use, transformers.Trainer and trl.SFTTrainer: every format, gradient
checkpointing off, reentrant and not, with autocast and without. The loss falls, a run that is resumed has the losses of one
that was not, and a saved adapter has the logits of the model that saved it."""

import copy
import gc
import json
import subprocess

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
            subprocess.run([moe64.tool(), "synth", made[name], "--like", FORMATS[name], "--scale-down", "32", "--layers", "2"],
                           check=True, capture_output=True)
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


def adapted(model, seed=3):
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, **TARGETS))


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


def trainer_of(kind, model, out, autocast, checkpointing, **more):
    given = {**arguments(out, autocast, checkpointing), **more}
    if kind == "Trainer":
        return transformers.Trainer(model, transformers.TrainingArguments(**given), train_dataset=Rows(), eval_dataset=Rows())
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input_ids": SENTENCES.tolist()})
    # Without the auxiliary loss of routers: Transformers records their logits where reentrant checkpointing has no gradients.
    config = trl.SFTConfig(max_length=32, router_aux_loss_coef=0.0, **given)
    return trl.SFTTrainer(model, config, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer())


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
