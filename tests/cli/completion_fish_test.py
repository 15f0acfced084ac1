"""Completion for fish, in fish. Skipped where that is not installed."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from help_text import options, said, verbs  # noqa: E402 (needs the path above)


class Fish(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="moe64_fish_")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "moe64.fish").write_text(said("completion", "fish"))
        (self.folder / "model").mkdir()
        (self.folder / "one.safetensors").touch()

    def offered(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", 'source moe64.fish; complete -C "$argv"', line], cwd=self.folder,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]

    def test_syntax(self):
        subprocess.run(["fish", "--no-execute", self.folder / "moe64.fish"], check=True, timeout=60)

    def test_every_verb_and_every_option(self):
        self.assertEqual(sorted(self.offered("moe64 ")), sorted(verbs()))
        for verb in verbs():
            self.assertEqual(set(self.offered(f"moe64 {verb} --")), set(options(verb)), verb)

    def test_values_files_and_folders(self):
        self.assertEqual(sorted(self.offered("moe64 convert --to ")), ["bf16", "f16", "fp8-block", "fp8-row", "same"])
        self.assertEqual(self.offered("moe64 convert --to=fp8-b"), ["--to=fp8-block"])
        self.assertEqual(sorted(self.offered("moe64 completion ")), ["bash", "fish", "zsh"])
        self.assertEqual(self.offered("moe64 check one"), ["one.safetensors"])
        self.assertEqual(self.offered("moe64 check mod"), ["model/"])
        self.assertEqual(self.offered("moe64 synth "), ["model/"])
        self.assertIn("moe64.fish", self.offered("moe64 verify -f "))
        self.assertEqual(self.offered("moe64 run check --mt"), ["--mtp"])
        self.assertEqual(self.offered("moe64 verify op=grouped_gemm_"), ["op=grouped_gemm_wgrad"])
        self.assertEqual(self.offered("moe64 bench --min-time "), [])
        self.assertEqual(self.offered("moe64 nonsense --"), [])


if __name__ == "__main__":
    if not shutil.which("fish"):
        print("skipped: fish is not installed")
        sys.exit(77)
    unittest.main()
