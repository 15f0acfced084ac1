"""moe64 inspect and moe64 run, on small checkpoints that are written here."""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import tempfile
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
OK, FAILED, BAD_INPUT, UNSUPPORTED, OUT_OF_MEMORY = range(5)
IO_FAILURE, INTERRUPTED = 6, 130

HIDDEN, INTER, EXPERTS, LAYERS = 64, 48, 4, 3
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_experts": EXPERTS,
    "num_experts_per_tok": 2, "num_hidden_layers": LAYERS, "hidden_act": "silu",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}}


def codes(count, source):
    """e4m3 numbers between 1/8 and 7.5, either sign."""
    return bytes(source.choice((0, 0x80)) | source.randrange(4, 10) << 3 | source.randrange(8) for _ in range(count))


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def expert_tensors(seed=1):
    source = random.Random(seed)
    tensors = {}
    modules = [(f"model.layers.{layer}.mlp.experts.{expert}.{part}", shape)
               for layer in range(LAYERS) for expert in range(EXPERTS)
               for part, shape in (("gate_proj", (INTER, HIDDEN)), ("up_proj", (INTER, HIDDEN)),
                                   ("down_proj", (HIDDEN, INTER)))]
    for module, (rows, cols) in modules:  # F32 first: no gaps
        grid = (-(-rows // 32), -(-cols // 32))
        numbers = [source.uniform(0.02, 0.08) for _ in range(grid[0] * grid[1])]
        tensors[module + ".weight_scale_inv"] = ("F32", grid, struct.pack(f"<{len(numbers)}f", *numbers))
    for module, (rows, cols) in modules:
        tensors[module + ".weight"] = ("F8_E4M3", (rows, cols), codes(rows * cols, source))
    return tensors


class Tool(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.write(CONFIG, expert_tensors())

    def write(self, config, tensors):
        (self.folder / "config.json").write_text(json.dumps(config))
        write_safetensors(self.folder / "model.safetensors", tensors)

    def expect(self, code, verb, *arguments):
        done = subprocess.run([TOOL, verb, str(self.folder), *arguments], capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, code, f"{verb} {arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def object(self, code, verb, *arguments):
        return json.loads(self.expect(code, verb, *arguments, "--json").stdout)

    def drop(self, name):
        tensors = expert_tensors()
        del tensors[name]
        self.write(CONFIG, tensors)


class Inspect(Tool):
    def test_text_tells_the_story(self):
        text = self.expect(OK, "inspect").stdout
        for part in ("qwen3_moe", "fp8", "D8", "hidden 64, inter 48, experts 4, top_k 2", "silu_glu", "1 shard,",
                     "72 tensors", "36 quantised weights, 36 scales, 36 matched", "0 to 2", "e4m3 block:32x32 f32",
                     "F8_E4M3", "below 2^31 elements and 4 GiB", "Nothing wrong"):
            self.assertIn(part, text)

    def test_json_has_every_layer(self):
        found = self.object(OK, "inspect")
        self.assertEqual(found["geometry"]["experts"], EXPERTS)
        self.assertIsNone(found["geometry"]["mtp_layers"])
        self.assertEqual(found["dialects"], ["D8"])
        self.assertEqual([layer["layer"] for layer in found["layers"]], [0, 1, 2])
        layer = found["layers"][0]
        self.assertTrue(layer["sound"])
        self.assertEqual(layer["gate"]["scale"], "block:32x32")
        self.assertEqual(layer["parameters"], 3 * EXPERTS * HIDDEN * INTER)
        self.assertIs(layer["stacks"]["gate_up"]["passes_int32_elements"], False)
        self.assertEqual(found["totals"]["matched"], 36)
        self.assertEqual({kind["type"]: kind["tensors"] for kind in found["types"]}, {"F8_E4M3": 36, "F32": 36})
        self.assertEqual(found["findings"], [])

    def test_dropped_scale_is_named(self):
        name = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"
        self.drop(name)
        done = self.expect(FAILED, "inspect")
        self.assertIn("error missing-scale", done.stdout)
        self.assertIn(name.removesuffix("_scale_inv"), done.stdout)
        self.assertIn("36 quantised weights, 35 scales, 35 matched", done.stdout)
        self.assertIn("not sound", done.stdout)
        found = self.object(FAILED, "inspect")
        self.assertEqual([layer["sound"] for layer in found["layers"]], [True, False, True])
        self.assertIn("experts.2.up_proj", found["layers"][1]["problem"])

    def test_assumptions_are_recorded_and_checked(self):
        found = self.object(OK, "inspect", "--assume", "block=32x32", "--assume", "experts=4")
        self.assertEqual(found["assumed"], ["block=32x32", "experts=4"])
        self.assertIn("colour", self.expect(BAD_INPUT, "inspect", "--assume", "colour=red").stderr)
        self.expect(FAILED, "inspect", "--assume", "block=16x16")

    def test_text_of_files_cannot_reach_the_terminal(self):
        self.write(CONFIG | {"model_type": "evil\x1b[2J\u202e"}, expert_tensors())
        text = self.expect(OK, "inspect").stdout
        self.assertNotIn("\x1b", text)
        self.assertNotIn("\u202e", text)

    def test_exit_codes_tell_bad_files_from_missing_ones(self):
        (self.folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
        self.assertIn("model.safetensors", self.expect(BAD_INPUT, "inspect").stderr)
        (self.folder / "model.safetensors").unlink()
        self.expect(BAD_INPUT, "inspect")  # a folder, but none of a checkpoint
        done = subprocess.run([TOOL, "inspect", str(self.folder / "none")], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, IO_FAILURE, done.stderr)
        done = subprocess.run([TOOL, "inspect"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, BAD_INPUT, done.stderr)


class Run(Tool):
    def test_text_has_times_memory_and_error(self):
        text = self.expect(OK, "run", "--layer", "1", "--tokens", "16").stdout
        for part in ("layer 1 of", "4 experts", "w8a16", "loaded", "forward", "16 tokens with 2 experts each", "peak",
                     "error      y ", "16 of 16 rows | ok"):
            self.assertIn(part, text)

    def test_json_and_backward(self):
        found = self.object(OK, "run", "--layer", "2", "--tokens", "8", "--backward", "--threads", "2", "--top-k", "3")
        self.assertIs(found["ok"], True)
        self.assertEqual([output["output"] for output in found["outputs"]], ["y", "dx", "d_weights"])
        for output in found["outputs"]:
            self.assertGreater(output["error"], 0)
            self.assertLessEqual(output["error"], output["bound"])
        self.assertEqual(found["top_k"], 3)
        self.assertEqual(found["layer"]["layer"], 2)
        for key in ("load_seconds", "forward_seconds", "backward_seconds", "weight_bytes", "workspace_bytes"):
            self.assertGreater(found[key], 0)

    def test_seed_chooses_the_data(self):
        def errors(seed):
            found = self.object(OK, "run", "--layer", "0", "--tokens", "8", "--seed", seed)
            return [output["error"] for output in found["outputs"]]
        self.assertEqual(errors("5"), errors("5"))
        self.assertNotEqual(errors("5"), errors("6"))

    def test_reference_is_sampled_within_its_budget(self):
        found = self.object(OK, "run", "--layer", "0", "--tokens", "64", "--budget", "200000")
        self.assertLess(found["compared"], 64)
        self.assertEqual(found["total"], 64)

    def test_nan_codes_fail(self):
        tensors = expert_tensors()
        name = "model.layers.0.mlp.experts.3.down_proj.weight"
        dtype, shape, content = tensors[name]
        tensors[name] = (dtype, shape, b"\x7f" + content[1:])
        self.write(CONFIG, tensors)
        self.assertIn("NaN", self.expect(FAILED, "run", "--layer", "0", "--tokens", "32").stdout)

    def test_refusals(self):
        name = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"
        self.drop(name)
        self.expect(OK, "run", "--layer", "0", "--tokens", "4")
        done = self.expect(BAD_INPUT, "run", "--layer", "1", "--tokens", "4")
        self.assertIn("experts.2.up_proj", done.stderr)
        self.assertIn("layers: 0 to 2", self.expect(BAD_INPUT, "run", "--layer", "9", "--tokens", "4").stderr)
        self.assertIn("cuda:99", self.expect(UNSUPPORTED, "run", "--layer", "0", "--device", "cuda:99").stderr)
        self.expect(BAD_INPUT, "run", "--layer", "0", "--top-k", "5")
        self.expect(BAD_INPUT, "run", "--layer", "-1")
        self.expect(OUT_OF_MEMORY, "run", "--layer", "0", "--tokens", "1000000000000")

    def test_mtp_layers_and_top_k_are_asked_for(self):
        config = {key: value for key, value in CONFIG.items() if key != "num_experts_per_tok"}
        self.write(config | {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}, expert_tensors())
        done = self.expect(BAD_INPUT, "run", "--layer", "2", "--tokens", "4", "--top-k", "2")
        self.assertIn("--mtp", done.stderr)
        self.assertIn("--top-k", self.expect(BAD_INPUT, "run", "--layer", "0", "--tokens", "4").stderr)
        text = self.expect(OK, "run", "--layer", "2", "--mtp", "--tokens", "4", "--top-k", "2").stdout
        self.assertIn("MTP layer 2", text)

    def test_interrupted(self):
        process = subprocess.Popen([TOOL, "run", str(self.folder), "--layer", "0", "--tokens", "200000", "--progress",
                                    "--budget", "1e15", "--threads", "1"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        seen = ""
        while "comparing" not in seen:
            more = process.stderr.read(1)
            self.assertTrue(more, seen)
            seen += more
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, INTERRUPTED, out + err)
        self.assertIn("interrupted", err)
        self.assertEqual(out, "")


if __name__ == "__main__":
    unittest.main()
