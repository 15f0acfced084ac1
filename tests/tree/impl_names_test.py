"""Every `impl=` of the committed problem lines and documents names an implementation that is in a list of a backend."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ("src/cpu", "src/cuda")
# tests/ is left out: its lines also name implementations that are none.
NAMED = ("README.md", "bench/*.py", "bench/problems/*.txt", "docs/*.md", "examples/**/*.py")


def listed():
    """First members of the entries of lists: {"reference", any_call<...>, ...}."""
    for folder in LISTS:
        for path in (ROOT / folder).rglob("*.cpp"):
            yield from re.findall(r'\{"(\w+)",', path.read_text(encoding="utf-8"))


def named():
    for pattern in NAMED:
        for path in ROOT.glob(pattern):
            for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
                for name in re.findall(r"\bimpl=([a-z0-9_]+)", line):
                    yield f"{path.relative_to(ROOT)}:{number}", name


class ImplNames(unittest.TestCase):
    def test_are_in_a_list(self):
        there = set(listed())
        self.assertIn("reference", there)
        found = list(named())
        self.assertGreater(len(found), 10)
        self.assertEqual([(place, name) for place, name in found if name not in there], [])


if __name__ == "__main__":
    unittest.main()
