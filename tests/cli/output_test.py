"""Where the tool writes: standard output that fails, and the files that check and convert write on request."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from check_test import tensors, write  # noqa: E402 (needs the path above)

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")
OK, FAILED, USAGE, IO = 0, 1, 2, 6
SMALL = "tokens=2 hidden=32 inter=16 experts=2 top_k=1"


def run(*arguments, **options):
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([TOOL, *map(str, arguments)], stderr=subprocess.PIPE, text=True, timeout=280, **options)


class Output(unittest.TestCase):
    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="moe64_output_"))
        self.addCleanup(shutil.rmtree, self.base)
        self.folder = self.base / "model"
        self.folder.mkdir()
        write(self.folder, tensors())

    def broken(self):
        """NaN in a norm: check finds it and exits with 1."""
        made = tensors()
        dtype, shape, content = made["model.norm.weight"]
        made["model.norm.weight"] = (dtype, shape, b"\xc0\x7f" + content[2:])
        write(self.folder, made)

    def names(self, folder=None):
        return sorted(entry.name for entry in (folder or self.base).iterdir())

    def device(self, name):
        """By a link, so that a tool that renames over it takes no device from the machine."""
        link = self.base / name
        if not link.is_symlink():
            link.symlink_to(f"/dev/{name}")
        return link

    # --- standard output -------------------------------------------------------------------------

    def verbs(self):
        yield "inspect", ("inspect", self.folder)
        yield "inspect --json", ("inspect", self.folder, "--json")
        yield "check", ("check", self.folder)
        yield "check --json", ("check", self.folder, "--json")
        yield "convert", ("convert", self.folder, self.base / "out", "--to", "bf16")
        yield "convert --dry-run", ("convert", self.folder, self.base / "dry", "--to", "bf16", "--dry-run")
        yield "diff", ("diff", self.folder, self.folder)
        yield "run", ("run", self.folder, "--layer", 1, "--tokens", 2)
        yield "verify", ("verify", *SMALL.split())
        yield "verify --json", ("verify", "--json", *SMALL.split())
        yield "bench", ("bench", "--min-time", "0.001", *SMALL.split())
        yield "doctor", ("doctor",)
        yield "synth", ("synth", self.base / "synth", "--like", "glm-4.7-flash", "--scale-down", 64, "--layers", 2)
        yield "synth --list", ("synth", "--list")
        yield "version", ("version",)
        yield "--help", ("--help",)
        yield "convert --help", ("convert", "--help")
        if not os.environ.get("MOE64_SANITIZED"):
            yield "demo", ("demo",)

    def test_standard_output_that_fails_is_never_success(self):
        for name, arguments in self.verbs():
            with self.subTest(name), open("/dev/full", "w") as full:
                done = run(*arguments, stdout=full)
                self.assertEqual(done.returncode, IO, done.stderr)
                self.assertIn("standard output", done.stderr)

    def test_findings_that_nobody_read_are_no_findings(self):
        self.broken()
        with open("/dev/full", "w") as full:
            self.assertEqual(run("check", self.folder, stdout=full).returncode, IO)
            self.assertEqual(run("inspect", self.base / "missing", stdout=full).returncode, IO)
            self.assertEqual(run("verify", "tokens=never", stdout=full).returncode, USAGE)

    def test_a_failure_that_nobody_read_as_json_is_a_failure_of_the_output(self):
        with open("/dev/full", "w") as full:
            done = run("run", self.folder, "--layer", 99, "--json", stdout=full)
            self.assertEqual(done.returncode, IO, done.stderr)
            self.assertIn("there is no layer 99", done.stderr)
            self.assertIn("standard output", done.stderr)
            self.assertEqual(run("run", self.folder, "--layer", 99, stdout=full).returncode, USAGE)

    def test_a_file_without_a_name_is_refused(self):
        for arguments in (("check", self.folder, "--report", ""),
                          ("convert", self.folder, self.base / "out", "--to", "bf16", "--coverage", "")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (USAGE, ""))
            self.assertIn("'': expected the name of a file", done.stderr)
        self.assertFalse((self.base / "out").exists())

    def test_a_closed_standard_output_gets_into_no_file(self):
        out = self.base / "out"
        done = subprocess.run(f"'{TOOL}' convert '{self.folder}' '{out}' --to bf16 >&-", shell=True,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertEqual(run("convert", self.folder, self.base / "other", "--to", "bf16").returncode, OK)
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((out / name).read_bytes(), (self.base / "other" / name).read_bytes())

    # --- files -----------------------------------------------------------------------------------

    def test_a_report_that_cannot_be_written_costs_no_time(self):
        """The checkpoint is not even opened: it does not exist."""
        for place in (self.base / "missing" / "page.html", self.folder):
            done = run("check", self.base / "no-such-checkpoint", "--report", place)
            self.assertEqual(done.returncode, IO)
            self.assertIn(f"[check --report] {place}", done.stderr.replace(".partial", " "))
            done = run("convert", self.base / "no-such-checkpoint", self.base / "out", "--to", "bf16",
                       "--coverage", place)
            self.assertEqual(done.returncode, IO)
            self.assertIn(f"[convert --coverage] {place}", done.stderr.replace(".partial", " "))
        self.assertEqual(self.names(), ["model"])

    def test_files_of_others_are_not_overwritten(self):
        (self.base / "notes.html").write_text("<!DOCTYPE html>\n<html><title>moe64 check: not mine</title></html>")
        (self.base / "table.tsv").write_text("copied\tfrom a book\n")
        before = {path: path.read_bytes() for path in self.base.rglob("*") if path.is_file()}
        places = [self.folder / "config.json", self.folder / "model.safetensors", self.base / "notes.html",
                  self.base / "table.tsv"]
        for place in places:
            for arguments in (("check", self.folder, "--report"),
                              ("convert", self.folder, self.base / "out", "--to", "bf16", "--coverage")):
                done = run(*arguments, place)
                self.assertEqual(done.returncode, USAGE, done.stderr)
                self.assertIn(f"{place}: is there", done.stderr)
        self.assertEqual({path: path.read_bytes() for path in self.base.rglob("*") if path.is_file()}, before)

    def test_earlier_ones_of_the_tool_are_replaced(self):
        page, table = self.base / "page.html", self.base / "table.tsv"
        for _ in range(2):
            self.assertEqual(run("check", self.folder, "--report", page).returncode, OK)
            self.assertEqual(run("convert", self.folder, self.base / "out", "--to", "bf16", "--coverage",
                                 table).returncode, OK)
        self.assertEqual(run("check", self.folder, "--report", table).returncode, USAGE)
        self.assertEqual(run("convert", self.folder, self.base / "out", "--to", "bf16", "--coverage",
                             page).returncode, USAGE)
        page.write_text("")  # what mktemp makes
        self.assertEqual(run("check", self.folder, "--report", page).returncode, OK)
        self.assertIn("moe64 check", page.read_text())

    def test_a_link_is_followed_and_a_device_stays_one(self):
        real, link = self.base / "real.html", self.base / "link.html"
        real.write_text("")
        link.symlink_to(real)
        self.assertEqual(run("check", self.folder, "--report", link).returncode, OK)
        self.assertTrue(link.is_symlink())
        self.assertIn("moe64 check", real.read_text())
        null = self.device("null")
        self.assertEqual(run("check", self.folder, "--report", null).returncode, OK)
        self.assertTrue(null.is_symlink() and stat.S_ISCHR(null.stat().st_mode))

    def test_findings_are_printed_when_the_report_fails(self):
        self.broken()
        full = self.device("full")
        done = run("check", self.folder, "--report", full)
        self.assertEqual(done.returncode, IO)
        self.assertIn("non-finite-value (1)", done.stdout)
        self.assertIn(f"[check --report] {full}: writing: No space left on device", done.stderr)
        done = run("convert", self.folder, self.base / "out", "--to", "bf16", "--json", "--coverage", full)
        self.assertEqual(done.returncode, IO)
        self.assertEqual(json.loads(done.stdout)["shards"], 1)

    def test_a_report_is_written_when_standard_output_fails(self):
        self.broken()
        page = self.base / "page.html"
        with open("/dev/full", "w") as full:
            self.assertEqual(run("check", self.folder, "--report", page, stdout=full).returncode, IO)
        self.assertIn("non-finite-value", page.read_text())

    def test_coverage_lies_outside_of_the_output(self):
        out = self.base / "out"
        done = run("convert", self.folder, out, "--to", "bf16", "--coverage", out / "coverage.tsv")
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertIn("choose another place", done.stderr)
        self.assertFalse(out.exists())

    # --- the plan --------------------------------------------------------------------------------

    def test_dry_run_tells_the_plan_and_writes_nothing(self):
        arguments = ("convert", self.folder, self.base / "out", "--to", "bf16")
        planned = run(*arguments, "--dry-run", "--json")
        self.assertEqual(planned.returncode, OK, planned.stderr)
        self.assertEqual(self.names(), ["model"])
        plan = json.loads(planned.stdout)
        text = run(*arguments, "--dry-run")
        self.assertEqual(text.returncode, OK, text.stderr)
        for words in ("model.safetensors", "would write", "free there", "time", "nothing was written"):
            self.assertIn(words, text.stdout)
        self.assertEqual(self.names(), ["model"])
        self.assertEqual(run(*arguments).returncode, OK)
        written = {entry.name: entry.stat().st_size for entry in (self.base / "out").iterdir()
                   if not entry.name.startswith(".")}
        self.assertEqual({file["name"]: file["bytes"] for file in plan["files"]}, written)
        self.assertEqual(plan["write_bytes"], sum(written.values()))
        self.assertIs(plan["fits"], True)
        self.assertGreater(plan["estimated_seconds"], 0.0)
        kept = json.loads(run(*arguments, "--dry-run", "--json").stdout)
        self.assertEqual([file["kept"] for file in kept["files"]], [True, False])
        self.assertEqual(run(*arguments, "--dry-run", "--coverage", self.base / "x").returncode, USAGE)


if __name__ == "__main__":
    if not pathlib.Path(TOOL).exists():
        sys.exit(f"{TOOL} is not there: build it, or set MOE64_TOOL")
    unittest.main(verbosity=2)
