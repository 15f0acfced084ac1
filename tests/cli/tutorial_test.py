#!/usr/bin/env python3
"""docs/tutorial-checkpoints.md, typed from top to bottom in an empty folder: the tool prints what the page shows."""

import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(os.environ["MOE64_TOOL"]).resolve()
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tutorial-checkpoints.md"
# What takes a machine to its limits, and is tested elsewhere.
NOT_RUN = ("verify", "bench")


def typed(page):
    """(command, [lines that it prints there])."""
    for block in re.findall(r"^```\n(\$ .*?)^```", page, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


def masked(text):
    """Without what differs from machine to machine: numbers, their units, names of implementations."""
    text = re.sub(r"\b(avx512_bf16|amx_bf16|avx512|avx2|scalar)\b", "NAME", text)
    text = re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", text)
    return re.sub(r"\s+", " ", re.sub(r"# ?([mu]?s|[KMGT]?i?B(/s)?)\b", "# U", text)).strip()


class Tutorial(unittest.TestCase):
    def test_the_tool_prints_what_the_page_shows(self):
        commands = [one for one in typed(PAGE.read_text()) if one[0].split()[1] not in NOT_RUN]
        self.assertGreater(len(commands), 12)
        shown = 0
        with tempfile.TemporaryDirectory() as folder:
            for command, lines in commands:
                words = shlex.split(command)
                self.assertEqual(words[0], "moe64")
                run = subprocess.run([TOOL, *words[1:]], cwd=folder, capture_output=True, text=True)
                self.assertIn(run.returncode, (0, 1, 2), run.stderr)
                printed = masked(run.stdout + run.stderr)
                # "..." stands for what is left out: lines, or the end of one.
                for piece in re.split(r"\.\.\.", "\n".join(lines)):
                    self.assertIn(masked(piece.rstrip(" |(")), printed, command)
                    shown += len(piece.split())
        self.assertGreater(shown, 300)


if __name__ == "__main__":
    unittest.main()
