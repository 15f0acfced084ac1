#!/usr/bin/env python3
"""The table of scripts/mutants.py fits the tree: each bug can be planted, and the tests that shall see it exist.

That they do see it takes minutes: scripts/mutation_test.py.
"""

import fnmatch
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
sys.dont_write_bytecode = True

from mutants import MUTANTS  # noqa: E402 (needs the path above)


def pytest_names(arguments):
    """The tests of the files of `FILE ... -k WORD` that have the word in their name."""
    files, _, word = arguments.partition(" -k ")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in files.split()]
    return [name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M) if word in name]


def tests_of(suite):
    """The tests of a suite as suite.name; those with parameters also as a filter sees them."""
    names = set()
    for path in (ROOT / "tests" / suite).rglob("*_test.cpp"):
        text = path.read_text(encoding="utf-8")
        for kind, group, name in re.findall(r"^(TEST|TEST_F|TEST_P)\((\w+),\s*(\w+)\)", text, re.M):
            names.add(f"every/{group}.{name}/0" if kind == "TEST_P" else f"{group}.{name}")
    return names


class MutationTable(unittest.TestCase):
    def test_each_text_is_there_exactly_once(self):
        for mutant in MUTANTS:
            with self.subTest(mutant.name):
                text = (ROOT / mutant.file).read_text(encoding="utf-8")
                self.assertEqual(text.count(mutant.old), 1, f"in {mutant.file}:\n{mutant.old}")
                self.assertNotEqual(mutant.old, mutant.new)

    def test_each_filter_names_tests(self):
        for mutant in MUTANTS:
            with self.subTest(mutant.name):
                if mutant.suite == "python":
                    self.assertTrue(pytest_names(mutant.tests), f"no test of Python is {mutant.tests}")
                    continue
                names = tests_of(mutant.suite)
                for pattern in mutant.tests.split(":"):
                    self.assertTrue(fnmatch.filter(names, pattern), f"no test of {mutant.suite} is {pattern}")

    def test_names_are_distinct_and_many(self):
        names = [mutant.name for mutant in MUTANTS]
        self.assertEqual(len(names), len(set(names)))
        self.assertGreaterEqual(len(names), 25)

    def test_an_unknown_name_is_refused(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/mutation_test.py", "--only", "no_such_bug"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no_such_bug", done.stderr)

    def test_the_list_is_complete(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "scripts/mutation_test.py", "--list"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(done.stdout.splitlines()), len(MUTANTS))


if __name__ == "__main__":
    unittest.main()
