"""Completion for zsh, in zsh. Skipped where that is not installed."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from help_text import options, said, verbs  # noqa: E402 (needs the path above)
from terminal import typed  # noqa: E402

class Zsh(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="moe64_zsh_")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "_moe64").write_text(said("completion", "zsh"))

    def test_syntax(self):
        subprocess.run(["zsh", "-f", "-n", self.folder / "_moe64"], check=True, timeout=60)

    def test_every_verb_and_every_option(self):
        text = (self.folder / "_moe64").read_text()
        for verb in verbs():
            self.assertTrue(f"\n        '{verb}:" in text, verb)
            arm = re.search(rf"^ +{verb}\)\n(.*?);;", text, re.M | re.S)[1]
            for option, value in options(verb).items():
                self.assertTrue(f"{option}{'=' if value else ''}[" in arm, f"{verb} {option}")

    def typed(self, keys):
        return typed(["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; source ./_moe64", keys, self.folder)

    def test_tab(self):
        (self.folder / "a model").mkdir()
        (self.folder / "problems.txt").touch()
        self.assertEqual(self.typed("moe64 conv\ta\t --to=fp8-b\t--dr\t"),
                         ["moe64", "convert", "a model", "--to=fp8-block", "--dry-run"])
        self.assertEqual(self.typed("moe64 verify -f pr\t--th\t4 "), ["moe64", "verify", "-f", "problems.txt", "--threads=4"])
        self.assertEqual(self.typed("moe64 run --dev\tcu\t0 --assume or\tr\t"),
                         ["moe64", "run", "--device=cuda:0", "--assume", "orientation=rows"])
        self.assertEqual(self.typed("moe64 verify tok\t8 op=deq\t"), ["moe64", "verify", "tokens=8", "op=dequantize"])

    def test_the_file_is_the_function_where_it_is_loaded_from_a_folder(self):
        found = typed(["zsh", "-f", "-i"], "fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u", "moe64 doc\t--js\t",
                      self.folder)
        self.assertEqual(found, ["moe64", "doctor", "--json"])


if __name__ == "__main__":
    if not shutil.which("zsh"):
        print("skipped: zsh is not installed")
        sys.exit(77)
    unittest.main()
