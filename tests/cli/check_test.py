"""moe64 check: exit codes, text, JSON and the page, on checkpoints made here byte by byte."""

import hashlib
import html.parser
import json
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
OK, FAILED, USAGE, IO = 0, 1, 2, 6
HIDDEN, INTER, EXPERTS, LAYERS = 64, 32, 4, 2
VOID = {"meta", "br", "hr", "img", "input", "link"}


def config(**more):
    return {"model_type": "qwen3_moe", "hidden_size": HIDDEN, "moe_intermediate_size": INTER, "num_experts": EXPERTS,
            "num_experts_per_tok": 2, "num_hidden_layers": LAYERS, "hidden_act": "silu",
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}} | more


BESIDE_EXPERTS = ["input_layernorm", "post_attention_layernorm", "mlp.gate"] + [
    f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]


def tensors():
    """Name -> (dtype, shape, bytes) of a sound checkpoint: scales around 2^-11, every finite code."""
    finite = bytes(code for code in range(256) if code & 0x7f != 0x7f)
    ones = ("BF16", [HIDDEN], struct.pack("<H", 0x3f80) * HIDDEN)
    made = {"model.embed_tokens.weight": ones, "model.norm.weight": ones}
    for layer in range(LAYERS):
        made |= {f"model.layers.{layer}.{name}.weight": ones for name in BESIDE_EXPERTS}
        for expert in range(EXPERTS):
            for name, rows, cols in (("gate_proj", INTER, HIDDEN), ("up_proj", INTER, HIDDEN),
                                     ("down_proj", HIDDEN, INTER)):
                module = f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                made[module + ".weight"] = ("F8_E4M3", [rows, cols], (finite * 9)[:rows * cols])
                grid = [rows // 16, cols // 16]
                scales = [2.0 ** -11 * (1 + (expert + i) / 16) for i in range(grid[0] * grid[1])]
                made[module + ".weight_scale_inv"] = ("F32", grid, struct.pack(f"<{len(scales)}f", *scales))
    return made


def replaced(content, offset, new):
    return content[:offset] + new + content[offset + len(new):]


def write(folder, made, **more):
    header, data = {}, b""
    for name, (dtype, shape, content) in made.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config(**more)))
    return len(data)


class Balanced(html.parser.HTMLParser):
    """Every element is closed where it should be; attributes and the texts of elements are kept."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.texts, self.tags = [], [], {}, []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            raise AssertionError(f"</{tag}> closes {self.open[-3:]} at {self.getpos()}")
        self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


class Check(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name) / "model"
        self.folder.mkdir()
        self.page = pathlib.Path(self.temporary.name) / "page.html"

    def check(self, code, *options):
        done = subprocess.run([TOOL, "check", str(self.folder), *options], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"{options}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def report(self, code, *options):
        return json.loads(self.check(code, "--json", *options))

    def rules(self, code):
        return {entry["rule"]: entry["count"] for entry in self.report(code)["rules"]}

    def test_sound_checkpoint(self):
        size = write(self.folder, tensors())
        text = self.check(OK)
        self.assertIn(f"{size} of {size} bytes", text)
        self.assertIn("24 quantised weights, 24 scales, 24 matched", text)
        self.assertTrue(text.endswith("ok: 0 errors, 0 warnings, 0 notes\n"), text)
        report = self.report(OK)
        self.assertIs(report["ok"], True)
        self.assertEqual(report["findings"], [])
        self.assertEqual(report["totals"]["read_bytes"], size)
        self.assertEqual([layer["layer"] for layer in report["layers"]], [0, 1])
        part = report["layers"][1]["projections"][2]
        self.assertEqual(part["projection"], "down")
        self.assertEqual([entry["expert"] for entry in part["experts"]], list(range(EXPERTS)))
        self.assertAlmostEqual(part["experts"][0]["scale_min"], 2.0 ** -11)
        self.assertEqual(part["experts"][0]["elements"], HIDDEN * INTER)
        content = tensors()["model.layers.1.mlp.experts.0.down_proj.weight"][2]
        self.assertEqual(part["experts"][0]["saturated"], sum(code & 0x7f == 0x7e for code in content))
        self.assertEqual(part["experts"][0]["negative_zero"], content.count(0x80))

    def test_threads_do_not_matter(self):
        write(self.folder, tensors())
        one, many = self.report(OK, "--threads", "1"), self.report(OK, "--threads", "4")
        one.pop("seconds"), many.pop("seconds")
        self.assertEqual(one, many)

    def test_planted_faults_are_found_and_nothing_else(self):
        weight = "model.layers.1.mlp.experts.2.up_proj.weight"
        scale = weight + "_scale_inv"
        faults = {
            "nan-code": (weight, 100, b"\x7f"),
            "non-finite-scale": (scale, 4, struct.pack("<f", float("inf"))),
            "negative-scale": (scale, 4, struct.pack("<f", -1e-4)),
            "zero-scale": (scale, 4, bytes(4)),
            "subnormal-scale": (scale, 4, struct.pack("<f", 1e-40)),
            "non-finite-value": ("model.norm.weight", 2, b"\x80\x7f"),
        }
        for rule, (name, offset, new) in faults.items():
            made = tensors()
            dtype, shape, content = made[name]
            made[name] = (dtype, shape, replaced(content, offset, new))
            write(self.folder, made)
            with self.subTest(rule):
                self.assertEqual(self.rules(OK if rule == "subnormal-scale" else FAILED), {rule: 1})
                text = self.check(OK if rule == "subnormal-scale" else FAILED)
                self.assertIn(rule + " (1)", text)
                self.assertIn(name, text)

    def test_missing_orphan_and_duplicate_scales(self):
        name = "model.layers.0.mlp.experts.3.gate_proj.weight"
        made = tensors()
        del made[name + "_scale_inv"]
        write(self.folder, made)
        self.assertEqual(self.rules(FAILED), {"missing-scale": 1})
        self.assertIn("24 quantised weights, 23 scales, 23 matched", self.check(FAILED))
        made = tensors()
        del made[name]
        write(self.folder, made)
        self.assertIn("orphan-scale", self.rules(FAILED))
        made = tensors()
        made[name + "_scale"] = made[name + "_scale_inv"]
        write(self.folder, made)
        self.assertIn("duplicate-scale", self.rules(FAILED))

    def test_inverted_scales(self):
        made = {name: (dtype, shape, struct.pack("<f", 4000.0) * (len(content) // 4) if dtype == "F32" else content)
                for name, (dtype, shape, content) in tensors().items()}
        write(self.folder, made)
        rules = self.rules(FAILED)
        self.assertEqual(rules["scale-direction"], 1)
        self.assertEqual(rules["weight-size"], 3 * LAYERS)

    def test_missing_parts_of_the_architecture(self):
        made = tensors()
        del made["model.embed_tokens.weight"], made["model.layers.1.mlp.gate.weight"]
        for layer in range(LAYERS):
            del made[f"model.layers.{layer}.self_attn.q_proj.weight"]
        write(self.folder, made)
        self.assertEqual(self.rules(FAILED), {"missing-tensor": 3})
        text = self.check(FAILED)
        self.assertIn("'model.embed_tokens.weight' (embeddings) is not there; ", text)
        self.assertIn("'model.layers.1.mlp.gate.weight' (router) is not there; ", text)
        self.assertIn("q_proj.weight' (attention) is not there, nor those of 2 of 2 layers: 0 to 1; ", text)
        # nobody expects a whole model of a single file of it
        self.folder = self.folder / "model.safetensors"
        self.assertNotIn("missing-tensor", self.check(OK, "--assume", "scale=block", "--assume", "block=16x16"))

    def test_assumptions(self):
        write(self.folder, tensors(), quantization_config={"quant_method": "fp8"})
        self.check(FAILED)
        self.check(OK, "--assume", "scale=block", "--assume", "block=16x16")
        self.check(USAGE, "--assume", "block=16")

    def test_broken_files(self):
        self.check(USAGE)  # an empty folder
        write(self.folder, tensors())
        file = self.folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        self.check(USAGE)
        self.folder = self.folder / "missing"
        self.check(IO)

    def page_of(self, code):
        self.check(code, "--report", str(self.page))
        text = self.page.read_text(encoding="ascii")
        page = Balanced()
        page.feed(text)
        page.close()
        self.assertEqual(page.open, [])
        return text, page

    def test_page_is_well_formed_and_needs_nothing_else(self):
        write(self.folder, tensors())
        text, page = self.page_of(OK)
        for tag, name, value in page.attributes:
            self.assertNotIn(name, ("src", "href", "srcset", "data", "action", "background"), f"{tag} {name}={value}")
        for outside in ("http://", "https://", "url(", "@import", "//cdn", "fetch(", "XMLHttpRequest", "import("):
            self.assertNotIn(outside, text)
        self.assertIn("default-src 'none'", text)
        self.assertLess(len(text), 60_000)

    def test_page_shows_what_the_report_says(self):
        made = tensors()
        name = "model.layers.1.mlp.experts.2.up_proj.weight"
        made[name] = made[name][:2] + (replaced(made[name][2], 7, b"\xff"),)
        write(self.folder, made)
        text, _ = self.page_of(FAILED)
        report = self.report(FAILED)
        data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
        self.assertEqual(data["columns"], EXPERTS)
        self.assertEqual(data["parts"], ["gate", "up", "down"])
        self.assertEqual([layer["name"] for layer in data["layers"]], ["0", "1"])
        for layer, drawn in zip(report["layers"], data["layers"]):
            for part in layer["projections"]:
                cells = drawn["parts"][part["projection"]]
                for key, values in (("median", "scale_median"), ("max", "scale_max"), ("amax", "amax")):
                    for one, shown in zip(part["experts"], cells[key], strict=True):
                        self.assertAlmostEqual(shown / one[values], 1.0, delta=0.01)
        self.assertEqual(data["layers"][1]["parts"]["up"]["mark"], [0, 0, 2, 0])
        self.assertEqual(data["layers"][0]["parts"]["up"]["mark"], [])
        self.assertIn("nan-code", text)
        self.assertIn("FAIL", text)

    def test_page_opens_on_the_worst_projection_and_frames_what_is_not_there(self):
        made = tensors()
        for expert in (1, 3):
            del made[f"model.layers.1.mlp.experts.{expert}.down_proj.weight_scale_inv"]
        scale = "model.layers.0.mlp.experts.2.gate_proj.weight_scale_inv"
        made[scale] = made[scale][:2] + (replaced(made[scale][2], 0, struct.pack("<f", 1e-40)),)
        write(self.folder, made)
        text, page = self.page_of(FAILED)
        data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
        self.assertEqual(data["first"], "down")
        self.assertEqual(data["layers"][1]["parts"]["down"]["absent"], [[1, 2], [3, 2]])
        self.assertEqual(data["layers"][0]["parts"]["gate"]["mark"], [0, 0, 1, 0])
        buttons = [dict((name, value) for tag, name, value in page.attributes[i:i + 4] if tag == "button")
                   for i, (tag, name, _) in enumerate(page.attributes) if (tag, name) == ("button", "type")]
        self.assertEqual([(one["data-row"], one["data-part"], one["data-expert"]) for one in buttons],
                         [("1", "down", "1"), ("1", "down", "3"), ("0", "gate", "2")])

    def test_sha256_is_held_against_what_the_hub_states(self):
        write(self.folder, tensors())
        file = self.folder / "model.safetensors"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        report = self.report(OK, "--sha256")
        self.assertEqual([(one["sha256"], one["stated"]) for one in report["files"]], [(digest, "")])
        self.assertEqual([one["rule"] for one in report["rules"]], ["no-sha256"])
        metadata = self.folder / ".cache" / "huggingface" / "download" / "model.safetensors.metadata"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"{'0' * 40}\n{digest}\n1700000000.0\n")
        self.assertIn("1 files, 1 as stated", self.check(OK, "--sha256"))
        flipped = bytearray(file.read_bytes())
        flipped[-1] ^= 1
        file.write_bytes(flipped)
        self.assertIn("wrong-sha256 (1)", self.check(FAILED, "--sha256"))
        metadata.unlink()
        blob = self.folder.parent / "blobs" / digest  # as in a Hub cache
        blob.parent.mkdir()
        file.rename(blob)
        snapshot = self.folder.parent / "snapshots" / "main"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_bytes((self.folder / "config.json").read_bytes())
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{digest}")
        self.folder = snapshot
        self.assertIn("the Hub cache states " + digest, self.check(FAILED, "--sha256"))
        flipped[-1] ^= 1
        blob.write_bytes(flipped)
        self.assertIn("ok: 0 errors, 0 warnings, 0 notes", self.check(OK, "--sha256"))

    def test_all_broken_files_are_named_at_once(self):
        write(self.folder, tensors())
        whole = (self.folder / "model.safetensors").read_bytes()
        (self.folder / "model.safetensors").unlink()
        names = [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
        for name in names:
            (self.folder / name).write_bytes(whole)
        (self.folder / names[1]).write_bytes(whole[:-1])
        (self.folder / names[3]).write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5368709120\n")
        done = subprocess.run([TOOL, "check", str(self.folder)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertIn("2 of 4 files cannot be used", done.stderr)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 3, done.stderr)
        self.assertIn(names[1], lines[1])
        self.assertIn(names[3] + ": is a Git LFS pointer, not the file of '5368709120' bytes", done.stderr)

    def test_texts_of_files_cannot_become_markup(self):
        made = tensors()
        hostile = "</script><img src=x onerror=alert(1)>&'\"\u2028"
        made[hostile] = ("F32", [1], struct.pack("<f", float("nan")))
        write(self.folder, made)
        self.folder = self.folder.rename(self.folder.parent / "<b>&model")
        text, page = self.page_of(FAILED)
        self.assertNotIn("<img", text)
        self.assertNotIn("<b>&", text)
        self.assertIn("&lt;img src=x onerror", text)
        self.assertEqual(page.tags.count("script"), 2)

    def test_page_is_whole_or_not_there(self):
        write(self.folder, tensors())
        self.page = self.page.parent / "missing" / "page.html"
        self.check(IO, "--report", str(self.page))
        self.assertFalse(self.page.parent.exists())
        self.page = self.folder  # a folder cannot be replaced
        self.check(IO, "--report", str(self.page))
        self.assertEqual([entry.name for entry in self.folder.parent.iterdir()], ["model"])

    def test_terminal_is_safe(self):
        made = tensors()
        made["x\u202e31m\u200b\u0e01"] = ("F32", [1], struct.pack("<f", float("nan")))
        write(self.folder, made)
        text = self.check(FAILED)
        self.assertTrue(all(c == "\n" or c.isprintable() for c in text), text)


if __name__ == "__main__":
    unittest.main()
