"""Synthetic checkpoints opened by Transformers, and checkpoints that Transformers saves opened by moe64.

Needs the packages of bench/requirements.txt: run `make interop`.
"""

import json
import os
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tool import Interop, run, run_json, shards, synth

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# Releases that Transformers can open with what bench/requirements.txt installs, without a GPU.
QUANTISED = ["deepseek-v3", "deepseek-v3.1", "deepseek-v4-flash-base", "deepseek-v4-flash", "glm-5.2", "qwen3-30b",
             "qwen3.5", "minimax-m2", "olmoe", "dots1", "gpt-oss"]
# Their quantised form needs packages beyond that: their BF16 siblings have the same names and shapes beside the scales.
PLAIN = ["mixtral", "glm-4.5", "glm-4.7-flash", "granite-moe", "llama-4", *QUANTISED]

EXTENTS = dict(hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, vocab_size=128, max_position_embeddings=256, num_experts_per_tok=2)
DEEPSEEK = dict(EXTENTS, moe_intermediate_size=192, n_routed_experts=4, n_group=1, topk_group=1,
                first_k_dense_replace=1, n_shared_experts=1)
MLA = dict(DEEPSEEK, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
           v_head_dim=16, num_nextn_predict_layers=0)
SAVED = {
    "mixtral": dict(EXTENTS, num_local_experts=4),
    "qwen3_moe": dict(EXTENTS, moe_intermediate_size=192, num_experts=4, head_dim=16),
    "glm4_moe": dict(DEEPSEEK, head_dim=16, num_nextn_predict_layers=0),
    "glm4_moe_lite": MLA,
    "deepseek_v3": MLA,
    "minimax_m2": dict(EXTENTS, num_local_experts=4, head_dim=16, rotary_dim=8),
    "gpt_oss": dict(EXTENTS, num_local_experts=4, head_dim=16),
    "granitemoe": dict(EXTENTS, num_local_experts=4),
    "olmoe": dict(EXTENTS, num_experts=4, eos_token_id=1),
}
# How moe64 calls the FP8 form of those with one matrix per expert.
DIALECTS = {"mixtral": "D30", "qwen3_moe": "D8", "glm4_moe": "D30", "glm4_moe_lite": "D30", "deepseek_v3": "D1",
            "minimax_m2": "D11", "olmoe": "D30"}
BLOCK = 128


def opened(folder, **options):
    """The model, after it was seen that each of its parameters came from the files and nothing was left over."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True,
                                                       **options)
    left = {key: sorted(value)[:5] if not isinstance(value, dict) else value for key, value in info.items() if value}
    if left:
        raise AssertionError(f"{folder.name}: {left}")
    return model


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 9).reshape(1, 8)).logits


def saved(folder, model_type):
    """A tiny random model, saved by Transformers itself."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**SAVED[model_type])).to(torch.bfloat16)
    model.save_pretrained(folder)
    return model


def quantised(weight):
    """Codes and one scale per block; the last blocks may be partial."""
    rows, cols = weight.shape
    grid = torch.zeros(-(-rows // BLOCK), -(-cols // BLOCK))
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    for r in range(grid.shape[0]):
        for c in range(grid.shape[1]):
            part = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            block = weight[part].float()
            grid[r, c] = block.abs().max() / 448
            codes[part] = (block / grid[r, c]).to(torch.float8_e4m3fn)
    return codes, grid


def dequantised(codes, grid):
    rows, cols = codes.shape
    scales = grid.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :cols]
    return (codes.float() * scales).to(torch.bfloat16)


class Opened(Interop):
    """moe64 synth, then Transformers."""

    def test_quantised_releases_open_without_a_missing_or_unexpected_key(self):
        for like in QUANTISED:
            with self.subTest(like=like):
                model = opened(synth(self.folder, like))
                self.assertTrue(torch.isfinite(logits(model)).all())

    def test_plain_siblings_open_without_a_missing_or_unexpected_key(self):
        for like in PLAIN:
            with self.subTest(like=like):
                model = opened(synth(self.folder, like, "--dialect", "plain"))
                self.assertTrue(torch.isfinite(logits(model)).all())

    def test_mtp_layers_are_left_alone_where_they_are_named_apart(self):
        for like in ("qwen3.5", "deepseek-v4-flash"):
            with self.subTest(like=like):
                opened(synth(self.folder, like, "--mtp"))

    def test_what_transformers_dequantises_is_what_convert_writes(self):
        for like in QUANTISED:
            with self.subTest(like=like):
                folder = synth(self.folder, like)
                plain = self.folder / (like + "-bf16")
                run("convert", folder, plain, "--to", "bf16")
                theirs = opened(folder).state_dict()
                ours = opened(plain).state_dict()
                self.assertEqual(set(theirs), set(ours))
                for name, tensor in theirs.items():
                    same = torch.equal(tensor.to(torch.bfloat16), ours[name].to(torch.bfloat16))  # a quantised load keeps F32
                    self.assertTrue(same, f"{like} {name}")


class Saved(Interop):
    """Transformers, then moe64."""

    def test_plain_models_are_understood(self):
        for model_type in SAVED:
            with self.subTest(model_type=model_type):
                folder = self.folder / model_type
                saved(folder, model_type)
                found = run_json("inspect", folder)
                self.assertEqual(found["dialects"], ["plain"])
                self.assertEqual((found["totals"]["errors"], found["totals"]["warnings"]), (0, 0), found["findings"])
                self.assertTrue(all(layer["sound"] for layer in found["layers"]))

    def test_fp8_models_are_understood_and_converted_bit_for_bit(self):
        for model_type, dialect in DIALECTS.items():
            with self.subTest(model_type=model_type):
                folder = self.folder / model_type
                saved(folder, model_type)
                tensors, expected = {}, {}
                for name, tensor in load_file(folder / "model.safetensors").items():
                    if ".experts." not in name:
                        tensors[name] = tensor
                        continue
                    codes, grid = quantised(tensor)
                    tensors[name], tensors[name + "_scale_inv"] = codes, grid
                    expected[name] = dequantised(codes, grid)
                save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
                config = json.loads((folder / "config.json").read_text())
                config["quantization_config"] = transformers.FineGrainedFP8Config(
                    modules_to_not_convert=["lm_head", "self_attn", "mlp.gate", "shared_experts"]).to_dict()
                (folder / "config.json").write_text(json.dumps(config))
                found = run_json("inspect", folder)
                self.assertEqual(found["dialects"], [dialect])
                self.assertEqual((found["totals"]["errors"], found["totals"]["warnings"]), (0, 0), found["findings"])
                self.assertEqual(found["totals"]["matched"], len(expected))
                out = self.folder / (model_type + "-bf16")
                run("convert", folder, out, "--to", "bf16")
                read = {}
                for shard in shards(out):
                    read |= load_file(shard)
                for name, tensor in expected.items():
                    self.assertTrue(torch.equal(read[name], tensor), name)
                opened(out)

    def test_fp8_experts_that_transformers_saves_again(self):
        # without a GPU it would dequantise on loading; its FP8 modules load and save on a CPU all the same
        check = FineGrainedFP8HfQuantizer.validate_environment
        FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **kwargs: None
        self.addCleanup(setattr, FineGrainedFP8HfQuantizer, "validate_environment", check)
        for like in ("qwen3-30b", "olmoe", "deepseek-v3", "glm-5.2"):
            with self.subTest(like=like):
                folder = synth(self.folder, like)
                again = self.folder / (like + "-again")
                opened(folder).save_pretrained(again)
                found = run_json("inspect", again)
                self.assertEqual(found["totals"]["errors"], 0, found["findings"])
                before = run_json("inspect", folder)
                self.assertEqual(found["totals"]["matched"], before["totals"]["matched"])
                self.assertTrue(all(layer["sound"] for layer in found["layers"]))


if __name__ == "__main__":
    unittest.main()
