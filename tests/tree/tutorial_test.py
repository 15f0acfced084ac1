#!/usr/bin/env python3
"""The first program of the C++ tutorial is the one that the tests build and run."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Tutorial(unittest.TestCase):
    def test_example_is_the_file(self):
        blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "tutorial-cpp.md").read_text(), re.S)
        self.assertTrue(blocks)
        self.assertEqual(blocks[0], (ROOT / "examples" / "forward.cpp").read_text())

    def test_example_is_short(self):
        body = (ROOT / "examples" / "forward.cpp").read_text().splitlines()
        self.assertLess(len(body), 50)


if __name__ == "__main__":
    unittest.main()
