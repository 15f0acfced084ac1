"""The manual page: all of --help is in it, and man (where it is installed) renders it without complaint."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from help_text import options, said, section, verbs  # noqa: E402 (needs the path above)

PAGE = said("man")


def rendered(width=100):
    """The page as a reader sees it."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "moe64.1"
        file.write_text(PAGE)
        if shutil.which("man"):
            command = ["man", "--warnings=w", "-l", str(file)]
        elif shutil.which("groff"):
            command = ["groff", "-man", "-Tutf8", "-ww", "-P-c", "-P-b", "-P-u", str(file)]
        else:
            raise unittest.SkipTest("neither man nor groff is here to render the page")
        done = subprocess.run(command, capture_output=True, timeout=60, encoding="utf-8",
                              env={**os.environ, "MANWIDTH": str(width), "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout


class Man(unittest.TestCase):
    def test_verbs_and_options(self):
        text = rendered()
        for verb in verbs():
            part = re.search(rf"^ +{verb}\n(.*?)(?=^ {{0,3}}\S|\Z)", text, re.M | re.S)
            self.assertTrue(part, verb)
            for option, value in options(verb).items():
                self.assertRegex(part[1], rf"(?m)^ +(-\w, )?{option}( {re.escape(value)})?\b", verb)

    def test_sections_that_verbs_share_are_there_once(self):
        text = rendered()
        for title in ("START HERE", "ENVIRONMENT", "EXIT CODES", "KEYS OF A PROBLEM LINE"):
            self.assertEqual(len(re.findall(rf"^{title}$", text, re.M)), 1, title)
        self.assertEqual(text.count("a verification failed, or a checkpoint is not sound"), 1)
        for line in section(said("--help"), "Exit codes").splitlines():
            self.assertIn(" ".join(line.split()), " ".join(text.split()))

    def test_examples_are_as_they_are_typed(self):
        text = rendered()
        for verb in verbs():
            for line in section(said(verb, "--help"), "Examples").splitlines():
                self.assertIn(line.strip(), text)

    def test_name_and_version(self):
        self.assertTrue(PAGE.startswith(f'.TH MOE64 1 "" "{said("version").strip()}"'), PAGE[:80])
        self.assertIn("\nmoe64 \\- ", PAGE)  # what whatis and apropos read


if __name__ == "__main__":
    unittest.main()
