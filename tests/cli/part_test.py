"""Parts of a checkpoint for check, diff and convert; conversions that change nothing but files, or the 16 bits of numbers."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
OK, FAILED, USAGE = range(3)


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=240, encoding="utf-8")


def tensors_of(folder):
    """name -> (dtype, shape, bytes)"""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size, = struct.unpack("<Q", data[:8])
        header = json.loads(data[8:8 + size])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + place for place in entry["data_offsets"])
            found[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return found


def write_file(path, tensors):
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def bf16(numbers):
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)


class Part(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def expect(self, code, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def object(self, code, *arguments):
        return json.loads(self.expect(code, *arguments, "--json").stdout)

    def synth(self, *arguments, name="in"):
        self.expect(OK, "synth", self.folder / name, "--scale-down", 64, "--layers", 4, *arguments)
        return self.folder / name


class F16(Part):
    def test_to_f16_writes_f16_also_of_bf16(self):
        made, out = self.synth("--dialect", "plain"), self.folder / "out"
        found = self.object(OK, "convert", made, out, "--to", "f16")
        before, after = tensors_of(made), tensors_of(out)
        self.assertEqual(before.keys(), after.keys())
        self.assertIn("BF16", {dtype for dtype, _, _ in before.values()})
        for name, (dtype, shape, data) in after.items():
            self.assertEqual(shape, before[name][1])
            self.assertEqual(dtype, "F16" if before[name][0] == "BF16" else before[name][0], name)
            if dtype == "F16":
                count = len(data) // 2
                wide = [struct.unpack("<f", b"\0\0" + before[name][2][2 * i:2 * i + 2])[0] for i in range(min(count, 64))]
                self.assertEqual(struct.pack(f"<{len(wide)}e", *wide), data[:2 * len(wide)], name)
        self.assertEqual(found["tensors"]["converted"], sum(dtype == "BF16" for dtype, _, _ in before.values()))
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config.get("torch_dtype", config.get("dtype")), "float16")
        self.expect(OK, "check", out)
        back = self.folder / "back"
        self.expect(OK, "convert", out, back, "--to", "bf16")
        self.assertIn("BF16", {dtype for dtype, _, _ in tensors_of(back).values()})

    def test_what_is_no_f16_says_why(self):
        made, out, coverage = self.folder / "in", self.folder / "out", self.folder / "coverage.txt"
        made.mkdir()
        experts = {f"model.layers.0.mlp.experts.0.{part}_proj.weight": ("BF16", [2, 2], bf16([1, 2, 3, 4]))
                   for part in ("gate", "up", "down")}
        write_file(made / "model.safetensors", {"a.weight": ("BF16", [2, 2], bf16([1.0, -2.5, 65504.0, 1e5])),
                                                "b.weight": ("F32", [2], struct.pack("<2f", 1, 2)),
                                                "c.ids": ("I32", [1], struct.pack("<i", 7)), **experts})
        found = self.object(FAILED, "convert", made, out, "--to", "f16", "--coverage", coverage)
        self.assertEqual(found["overflows"], 1)
        self.assertTrue(any("a.weight" in text for text in found["anomalies"]), found["anomalies"])
        lines = coverage.read_text().splitlines()
        self.assertIn("copied\tb.weight\tit has more bits than the target, and keeps them", lines)
        self.assertIn("converted\ta.weight\t", lines)
        self.assertEqual(tensors_of(out)["b.weight"][0], "F32")


    def test_f32_stays_beside_fewer_bits_and_is_converted_where_it_is_all(self):
        made, out = self.folder / "in", self.folder / "out"
        made.mkdir()
        numbers = [1.0, 1 + 2.0 ** -11, -3.5, 1e-3]
        write_file(made / "model.safetensors",
                   {f"model.layers.0.mlp.experts.0.{part}_proj.weight": ("F32", [2, 2], struct.pack("<4f", *numbers))
                    for part in ("gate", "up", "down")})
        self.expect(OK, "convert", made, out, "--to", "f16")
        for dtype, _, data in tensors_of(out).values():
            self.assertEqual((dtype, data), ("F16", struct.pack("<4e", *numbers)))


class Same(Part):
    def test_to_same_cuts_other_files_and_changes_nothing_else(self):
        for dialect in ("D1", "D13", "D17"):
            made, out = self.synth("--dialect", dialect, name=dialect), self.folder / f"{dialect}-out"
            found = self.object(OK, "convert", made, out, "--to", "same", "--shard-size", "200kB")
            self.assertGreater(found["shards"], 3)
            self.assertEqual(tensors_of(made), tensors_of(out))
            for name in ("config.json", "hf_quant_config.json"):
                if (made / name).exists():
                    self.assertEqual(json.loads((made / name).read_text()), json.loads((out / name).read_text()))
            self.expect(OK, "diff", made, out, "--bitwise")
            self.assertEqual(self.object(OK, "check", made)["totals"]["codes"],
                             self.object(OK, "check", out)["totals"]["codes"])


class Files(Part):
    def test_what_a_conversion_leaves_behind_is_named(self):
        made, out = self.synth(), self.folder / "out"
        (made / ".hidden").write_text("x")
        write_file(made / "adapter.safetensors", {"a": ("U8", [1], b"x")})
        notes = self.object(OK, "convert", made, out, "--to", "bf16")["notes"]
        self.assertTrue(any("adapter.safetensors" in note and "not part" in note for note in notes), notes)
        self.assertTrue(any(".hidden" in note and "hidden" in note for note in notes), notes)
        self.assertIn("adapter.safetensors", self.expect(OK, "inspect", made).stdout)


class Configs(Part):
    def test_diff_compares_configs(self):
        made, other = self.synth(), self.synth(name="other")
        self.expect(OK, "diff", made, other)
        config = json.loads((other / "config.json").read_text())
        config["hidden_act"] = "gelu"
        config["new_key"] = {"a": [1, 2]}
        config["transformers_version"] = "0.0.1"
        (other / "config.json").write_text(json.dumps(config))
        found = self.object(FAILED, "diff", made, other)
        told = {entry["key"]: entry for entry in found["configs"]}
        self.assertEqual(told["hidden_act"]["b"], "'gelu'")
        self.assertEqual((told["new_key"]["a"], told["new_key"]["b"]), ("absent", "{'a': [1, 2]}"))
        self.assertIs(told["transformers_version"]["of_storage"], True)
        self.assertIs(found["same"], False)
        self.assertIn("hidden_act", self.expect(FAILED, "diff", made, other).stdout)

    def test_a_config_that_got_lost_is_a_difference(self):
        made, other = self.synth("--dialect", "plain"), self.synth("--dialect", "plain", name="other")
        (other / "config.json").unlink()
        self.expect(FAILED, "diff", made, other)
        self.expect(FAILED, "diff", other, made)
        shard = sorted(path.name for path in made.glob("*.safetensors"))[0]
        self.expect(OK, "diff", made / shard, other / shard)  # files alone

    def test_numbers_that_are_not_finite_do_not_make_a_config_differ_from_itself(self):
        made, other = self.synth(), self.synth(name="other")
        for folder, limit in ((made, "NaN"), (other, "NaN")):
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(text.replace("{", '{"x": ' + limit + ', "y": [Infinity, 1.0], ', 1))
        self.expect(OK, "diff", made, other)
        text = (other / "config.json").read_text()
        (other / "config.json").write_text(text.replace('"y": [Infinity, 1.0]', '"y": [-Infinity, 1]', 1))
        told = {entry["key"]: entry for entry in self.object(FAILED, "diff", made, other)["configs"]}
        self.assertEqual(list(told), ["y"])

    def test_what_a_conversion_changes_in_a_config_is_told_and_no_difference(self):
        made, out = self.synth(), self.folder / "out"
        self.expect(OK, "convert", made, out, "--to", "bf16")
        found = self.object(OK, "diff", made, out, "--tolerance", "0.004")
        self.assertIn("quantization_config", [entry["key"] for entry in found["configs"]])
        self.expect(FAILED, "diff", made, out, "--tolerance", "0.004", "--bitwise")


class Parts(Part):
    def damage(self, made, layer):
        """NaN codes into every expert of a layer; the file that has the last of them."""
        hit = None
        for number, path in enumerate(sorted(made.glob("*.safetensors")), 1):
            data = bytearray(path.read_bytes())
            size, = struct.unpack("<Q", data[:8])
            for name, entry in json.loads(data[8:8 + size]).items():
                if f"layers.{layer}.mlp.experts." in name and entry["dtype"] == "F8_E4M3":
                    data[8 + size + entry["data_offsets"][0]] = 0x7F
                    hit = number
            path.write_bytes(data)
        self.assertIsNotNone(hit)
        return hit

    def test_check_of_some_layers(self):
        made = self.synth()
        self.damage(made, 3)
        self.expect(FAILED, "check", made)
        found = self.object(OK, "check", made, "--layers", "0-2")
        self.assertEqual(found["limited_to"], "layers 0-2")
        self.assertLess(found["totals"]["read_bytes"], found["totals"]["data_bytes"])
        self.assertGreater(found["totals"]["codes"], 0)
        self.assertIn("limited to", self.expect(FAILED, "check", made, "--layers", "1,3").stdout)

    def test_check_of_some_files(self):
        made = self.synth()
        bad = self.damage(made, 3)
        self.expect(FAILED, "check", made, "--shards", bad)
        found = self.object(OK, "check", made, "--shards", "1")
        self.assertLess(found["totals"]["read_bytes"], found["totals"]["data_bytes"])
        size = (made / "model-00001-of-00003.safetensors").stat().st_size
        self.assertLess(found["totals"]["read_bytes"], 1.2 * size)

    def test_diff_of_some_layers_and_files(self):
        made, other = self.synth(), self.synth(name="other")
        bad = self.damage(other, 3)
        self.expect(FAILED, "diff", made, other)
        self.expect(OK, "diff", made, other, "--layers", "0-2")
        self.expect(FAILED, "diff", made, other, "--layers", "3")
        self.expect(OK, "diff", made, other, "--shards", "1")
        self.expect(FAILED, "diff", made, other, "--shards", bad)

    def test_convert_of_some_layers_and_files(self):
        made = self.synth()
        whole = self.folder / "whole"
        self.expect(OK, "convert", made, whole, "--to", "bf16")
        everything = tensors_of(whole)
        for option, value, wanted in (("--layers", "1-2", lambda name: ".layers.1." in name or ".layers.2." in name),
                                      ("--shards", "1,3", None)):
            out = self.folder / f"out{option}"
            found = self.object(OK, "convert", made, out, "--to", "bf16", option, value)
            part = tensors_of(out)
            self.assertTrue(part)
            self.assertLess(len(part), len(everything))
            for name, tensor in part.items():
                self.assertEqual(tensor, everything[name], name)
            if wanted is not None:
                self.assertEqual(set(part), {name for name in everything if wanted(name)})
            self.assertTrue(any("a part of the checkpoint" in note for note in found["notes"]))
            self.assertGreater(found["tensors"]["dropped"], 0)
        # the parts together are the whole
        rest = self.folder / "rest"
        self.expect(OK, "convert", made, rest, "--to", "bf16", "--shards", "2")
        self.assertEqual(tensors_of(rest) | tensors_of(self.folder / "out--shards"), everything)

    def test_parts_that_are_not_there_are_refused(self):
        made = self.synth()
        for verb in (["check", made], ["diff", made, made], ["convert", made, self.folder / "new", "--to", "bf16"]):
            self.assertIn("has 3", self.expect(USAGE, *verb, "--shards", "3-4").stderr)
            self.assertIn("layers 0 to 3", self.expect(USAGE, *verb, "--layers", "7").stderr)
            for bad in ("x", "3-1", "1,", "-1", "1--2", "99999999999999999999"):
                self.assertIn("expected numbers and ranges", self.expect(USAGE, *verb, f"--layers={bad}").stderr)
        self.assertFalse((self.folder / "new").exists())


if __name__ == "__main__":
    unittest.main()
