"""What moe64 says when something is wrong with a command line: the value, what was expected, what was probably meant."""

import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
SMALL = "tokens=4 hidden=32 inter=24 experts=4 top_k=2"
OK, FAILED, USAGE, UNSUPPORTED, OUT_OF_MEMORY, INTERNAL, IO = range(7)


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=240, encoding="utf-8")


class Messages(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def expect(self, code, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def refused(self, *arguments, code=USAGE):
        return self.expect(code, *arguments).stderr

    def synth(self, name="made"):
        self.expect(OK, "synth", self.folder / name, "--scale-down", 64)
        return self.folder / name


class Values(Messages):
    def test_a_word_that_is_none_of_the_values_lists_them(self):
        text = self.refused("convert", "a", "b", "--to", "int4")
        self.assertIn("--to int4: expected one of bf16, f16, fp8-block, fp8-row", text)
        self.assertIn("did you mean fp8-block?", self.refused("convert", "a", "b", "--to", "fp8-blok"))
        self.assertIn("one of random, exact", self.refused("verify", SMALL, "--data", "exotic"))

    def test_ranges_are_written_for_people(self):
        for arguments in (["verify", "--budget", "0", SMALL], ["bench", "--min-time", "-1", SMALL],
                          ["run", "a", "--layer", "-1"], ["run", "a", "--layer", "0", "--tokens", "0"],
                          ["diff", "a", "b", "--tolerance", "-1"], ["diff", "a", "b", "--shown", "x"],
                          ["synth", "a", "--scale-down", "0"], ["verify", "--threads", "0", SMALL]):
            text = self.refused(*arguments)
            self.assertIn("expected a", text)
            self.assertLess(max(map(len, text.splitlines())), 100, text)

    def test_numbers_that_are_too_large_are_refused_and_not_clamped(self):
        large = "99999999999999999999999"
        made = self.synth()
        for arguments in (["run", made, "--layer", large], ["run", made, "--layer", "1", "--tokens", large],
                          ["run", made, "--layer", "1", "--seed", large], ["run", made, "--layer", "1", "--seed", "-1"],
                          ["synth", self.folder / "new", "--seed", large], ["diff", made, made, "--tolerance", "1e999"],
                          ["diff", made, made, "--tolerance", "nan"], ["verify", SMALL, "--budget", "inf"],
                          ["synth", self.folder / "new", "--shard-size", large],
                          ["convert", made, self.folder / "new", "--to", "bf16", "--memory", "9EiB"]):
            text = self.refused(*arguments)
            self.assertIn(f"{arguments[-2]} {arguments[-1]}: expected", text)
        self.assertIn("too large", self.refused("verify", f"tokens={large}"))


class Words(Messages):
    def test_version_is_an_option_too(self):
        self.assertEqual(self.expect(OK, "--version").stdout, self.expect(OK, "version").stdout)

    def test_a_mistyped_verb_or_option_names_the_nearest(self):
        self.assertIn("there is no verb 'insepct'; did you mean inspect?", self.refused("insepct", "x"))
        self.assertIn("check has no option --jsn; did you mean --json?", self.refused("check", "x", "--jsn"))
        self.assertIn("did you mean --shard-size?", self.refused("convert", "a", "b", "--shardsize=1"))
        self.assertIn("there is no verb 'fly'; there are inspect, check,", self.refused("fly"))
        self.assertIn("a verb is missing; there are inspect, check,", self.refused())
        self.assertIn("check has no option --tolerance, only diff has it", self.refused("check", "x", "--tolerance", "1"))
        self.assertIn("moe64 has no option --versoin; did you mean --version?", self.refused("--versoin"))


class Files(Messages):
    def test_a_folder_where_a_file_is_expected_is_called_one(self):
        self.assertIn("is a folder, expected a file", self.refused("verify", "-f", self.folder))
        made = self.synth()
        (made / "model-00001-of-00003.safetensors").unlink()
        (made / "model-00001-of-00003.safetensors").mkdir()
        self.assertIn("is a folder, expected a regular file", self.refused("inspect", made, code=IO))

    def test_a_file_where_a_folder_is_expected_is_called_one(self):
        made = self.synth()
        for name in ("config.json", "model.safetensors.index.json"):
            for arguments in (["inspect", made / name], ["diff", made, made / name]):
                self.assertIn("is a .json file, expected a folder with safetensors files", self.refused(*arguments))
        for arguments in (["convert", made, made / "config.json", "--to", "bf16"], ["synth", made / "config.json"]):
            self.assertIn("config.json: is a file, expected a folder", self.refused(*arguments, code=IO))

    def test_a_link_that_is_not_followed_names_the_option(self):
        made = self.synth()
        moved = self.folder / "elsewhere.safetensors"
        (made / "model-00001-of-00003.safetensors").rename(moved)
        (made / "model-00001-of-00003.safetensors").symlink_to(moved)
        self.assertIn("--follow-links", self.refused("inspect", made, code=IO))
        self.expect(OK, "inspect", made, "--follow-links")

    def test_paths_in_utf8_are_printed_as_they_are(self):
        made = self.synth("modèle-模型")
        self.assertIn("modèle-模型", self.expect(OK, "inspect", made).stdout)
        self.assertIn("模型/nowhere", self.refused("inspect", made / "nowhere", code=IO))
        self.assertIn("--größe", self.refused("inspect", made, "--größe"))

    def test_what_a_terminal_would_obey_or_hide_is_escaped(self):
        for character, text in (("\x1b[31m", "\\x1b[31m"), ("\x85", "\\xc2\\x85"), ("\u202e", "\\xe2\\x80\\xae"),
                                ("\u200b", "\\xe2\\x80\\x8b")):
            said = self.refused("inspect", self.folder / f"a{character}b", code=IO)
            self.assertIn(f"a{text}b", said)
            self.assertNotIn(character, said)
        done = subprocess.run([TOOL.encode(), b"inspect", os.fsencode(self.folder) + b"/a\xff\xc3b"], capture_output=True)
        self.assertIn(b"a\\xff\\xc3b", done.stderr)


class Json(Messages):
    def test_fatal_errors_are_objects_under_json(self):
        cases = ((["inspect", "/nonexistent"], IO, "io_failure"), (["check", "/nonexistent"], IO, "io_failure"),
                 (["diff", "/nonexistent", "x"], IO, "io_failure"), (["verify", "colour=red"], USAGE, "invalid_argument"),
                 (["run", "x"], USAGE, "invalid_argument"), (["insepct"], USAGE, "invalid_argument"),
                 (["convert", "a", "b", "--to", "int4"], USAGE, "invalid_argument"))
        for arguments, code, name in cases:
            done = self.expect(code, *arguments, "--json")
            found = json.loads(done.stdout)
            self.assertEqual((found["ok"], found["error"], found["exit_code"]), (False, name, code))
            self.assertIn(found["message"], done.stderr)
            self.assertEqual(self.expect(code, *arguments).stdout, "")


class Doctor(Messages):
    def test_doctor_fits_100_columns(self):
        for line in self.expect(OK, "doctor").stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)


class Budget(Messages):
    def test_budget_bounds_weight_gradients_of_few_experts(self):
        shape = "tokens=1024 hidden=1024 inter=1024 experts=2 top_k=2"
        for line in (f"op=grouped_gemm_wgrad {shape} weight=bf16 bias=1", f"{shape} weight=bf16 bias=1 backward=1",
                     f"{shape} lora=4 backward=1"):
            begin = time.monotonic()
            found = json.loads(self.expect(OK, "verify", line, "--budget", "1e8", "--json").stdout)
            self.assertLess(time.monotonic() - begin, 60, line)
            gate = next(one for one in found["outputs"] if one["output"].startswith("d_gate"))
            self.assertLess(gate["neurons"], 1024, line)
            self.assertGreaterEqual(gate["neurons"], 2, line)


if __name__ == "__main__":
    unittest.main()
