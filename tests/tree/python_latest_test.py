"""What make python-latest says of the outcomes of tests under two sets of versions."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from python_latest import differences, outcomes  # noqa: E402

JUNIT = """<testsuites><testsuite>
<testcase file="python/tests/test_a.py" name="test_one[x-1]"/>
<testcase file="python/tests/test_a.py" name="test_two"><failure message="assert 1 == 2&#10;more">long</failure></testcase>
<testcase file="python/tests/test_a.py" name="test_three"><skipped message="no GPU"/></testcase>
<testcase file="python/tests/test_a.py" name="test_four"><error message="broken fixture"/></testcase>
</testsuite></testsuites>"""


class PythonLatestTest(unittest.TestCase):
    def test_outcomes_are_those_of_junit(self):
        self.assertEqual(outcomes(JUNIT), {
            "python/tests/test_a.py::test_one[x-1]": ("passed", ""),
            "python/tests/test_a.py::test_two": ("failed", "assert 1 == 2"),
            "python/tests/test_a.py::test_three": ("skipped", "no GPU"),
            "python/tests/test_a.py::test_four": ("failed", "broken fixture")})

    def test_what_differs_is_said_failures_first(self):
        latest = {"a": ("skipped", "no such class"), "b": ("failed", "2"), "c": ("failed", "3"), "d": ("skipped", "no GPU"),
                  "e": ("passed", "")}
        pinned = {"a": ("passed", ""), "b": ("failed", "2"), "c": ("passed", ""), "d": ("skipped", "no GPU")}
        self.assertEqual(differences(latest, pinned), [
            "failed with both: b: 2", "failed with the newest, passed with the pinned: c: 3",
            "skipped with the newest, passed with the pinned: a: no such class"])


if __name__ == "__main__":
    unittest.main()
