#!/usr/bin/env python3
"""The example in README.md is the program that the tests build and run."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Readme(unittest.TestCase):
    def test_example_is_the_file(self):
        blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        self.assertEqual(len(blocks), 1)
        self.assertEqual(blocks[0], (ROOT / "examples" / "forward.cpp").read_text())

    def test_example_is_short(self):
        body = (ROOT / "examples" / "forward.cpp").read_text().splitlines()
        self.assertLess(len(body), 50)


if __name__ == "__main__":
    unittest.main()
