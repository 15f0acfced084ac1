"""scripts/steps says what happens, stops at the first step that fails, and says which, why and what to do."""

import contextlib
import importlib.machinery
import importlib.util
import io
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from step_plans import Plan, Step, names, plan  # noqa: E402
from step_report import duration  # noqa: E402

loader = importlib.machinery.SourceFileLoader("steps", str(SCRIPTS / "steps"))
steps = importlib.util.module_from_spec(importlib.util.spec_from_loader("steps", loader))
loader.exec_module(steps)


def shell(name, text, **options):
    return Step(name, f"runs {name}", ["sh", "-c", text], f"mend {name}", **options)


class StepsTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="steps_"))
        self.addCleanup(shutil.rmtree, self.root)

    def run_steps(self, *all_steps, **options):
        """(exit code, what was printed)"""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = steps.run(self.root, "test", Plan(list(all_steps), **options))
        return code, printed.getvalue()

    def test_each_step_is_announced_and_timed(self):
        code, text = self.run_steps(shell("one", "echo a"), shell("two", "echo b"))
        self.assertEqual(code, 0)
        self.assertIn("[1/2] one: runs one\n", text)
        self.assertRegex(text, r"\[2/2\] two \d+ s: done\n")
        self.assertRegex(text, r"\none +\d+ +\d+\ntwo +\d+ +\d+\nall +\d+ +\d+\n")
        self.assertIn("make test: all of it passed", text)
        self.assertEqual((self.root / "build/logs/two.txt").read_text(), "b\n")

    def test_a_failure_says_which_step_why_and_what_to_do(self):
        code, text = self.run_steps(shell("one", "echo a"), shell("two words", "echo a reason; exit 3"),
                                    shell("three", "touch ran"))
        self.assertEqual(code, 3)
        self.assertRegex(text, r"make test stopped at step 2 of 3, two words, after \d+ s\.\n\n  a reason\n")
        self.assertRegex(text, r"\none +\d+ +\d+\ntwo words +\d+ +\d+\nall ")  # where the time went, all the same
        self.assertTrue(text.endswith("The whole output: build/logs/two-words.txt\nWhat to do: mend two words\n"))
        self.assertFalse((self.root / "ran").exists())

    def test_a_step_that_is_killed_is_a_failure(self):
        code, text = self.run_steps(shell("one", "kill -9 $$"))
        self.assertEqual(code, 1)
        self.assertIn("stopped at step 1 of 1", text)

    def test_a_step_in_the_background_begins_after_the_first_and_is_awaited(self):
        code, text = self.run_steps(shell("one", "true"), shell("two", "for i in $(seq 100); do test -e ran && exit; "
                                                                "sleep 0.1; done; exit 1"),
                                    shell("three", "touch ran; echo done so", background=True), shell("four", "test -e ran"))
        self.assertEqual((code, (self.root / "build/logs/three.txt").read_text()), (0, "done so\n"), text)

    def test_a_failure_in_the_background_stops_the_run_where_it_is_awaited(self):
        code, text = self.run_steps(shell("one", "true"), shell("two", "exit 4", background=True), shell("three", "true"))
        self.assertEqual(code, 4)
        self.assertIn("stopped at step 2 of 3, two", text)

    def test_what_runs_in_the_background_ends_with_a_run_that_fails(self):
        code, _ = self.run_steps(shell("one", "true"),
                                 shell("two", "for i in $(seq 600); do test -e child && exit 5; sleep 0.1; done"),
                                 shell("three", "sleep 600 & echo $! >made; mv made child; wait", background=True))
        self.assertEqual(code, 5)
        child = Path("/proc") / (self.root / "child").read_text().strip() / "stat"
        for _ in range(600):
            if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.1)
        self.fail("what the step had started still runs")

    def test_the_first_error_of_a_compiler_is_on_the_last_screen(self):
        (self.root / "build.ninja").write_text(
            "rule c\n  command = $text\n  description = c\nbuild a: c\n  text = true\nbuild b: c\n"
            "  text = echo 'x.cpp:1: error: no such thing'; echo 'note: much else'; false\n")
        code, text = self.run_steps(Step("build", "compiles", ["ninja", "-j1"], "mend", "ninja", "."))
        self.assertEqual(code, 1)
        self.assertIn("  FAILED: b \n  x.cpp:1: error: no such thing\n\n", text)

    def test_kernels_that_are_still_to_be_compiled_count_as_the_long_ones_they_are(self):
        (self.root / "compile_commands.json").write_text(
            '[{"command": "nvcc -x cu -c a.cu -o k/a.cu.o"}, {"command": "nvcc -c b.cu -o k/b.cu.o"}, '
            '{"command": "c++ -c c.cpp -o c.cpp.o"}]')
        (self.root / "k").mkdir()
        (self.root / "k" / "b.cu.o").touch()
        now = [0]
        progress = steps.NinjaProgress(self.root, Step("build", "compiles", ["ninja"], "mend", "ninja", "."), lambda: now[0])
        now[0] = 100
        self.assertEqual(progress.read("[1/3] Building CXX object x/c.cpp.o"), "1/3 c.cpp.o, about 15 min 00 s left")
        self.assertEqual(progress.read("[2/3] Building CUDA object k/a.cu.o"), "2/3 a.cu.o, about 11 s left")
        self.assertIsNone(progress.read("a warning"))

    def test_warnings_are_counted(self):
        (self.root / "build.ninja").write_text("rule c\n  command = echo 'x.cpp:1: warning: hm'\n  description = c\nbuild a: c\n")
        code, text = self.run_steps(Step("build", "compiles", ["ninja"], "mend", "ninja", "."))
        self.assertEqual(code, 0)
        self.assertIn("1 WARNINGS (in build/logs)", text)

    def test_failed_tests_are_named(self):
        log = ("  1/2 Test #1: unit.a ...   Passed\n  2/2 Test #2: unit.b ...***Failed\nb.cpp:7: Failure\n"
               "The following tests FAILED:\n\t  2 - unit.b (Failed)\n")
        code, text = self.run_steps(Step("tests", "runs", ["sh", "-c", f"printf '{log}'; exit 8"], "again", "ctest", "."))
        self.assertEqual(code, 8)
        self.assertIn("unit.b ...***Failed\n", text)
        self.assertIn("  b.cpp:7: Failure\n", text)

    def test_checks_of_suites_are_added_up(self):
        folder = self.root / "tests" / "results"
        folder.mkdir(parents=True)
        (folder / "unit.a.count").write_text("3")
        (folder / "unit.a.json").write_text('{"testsuites": [{"testsuite": [{"result": "COMPLETED"}, '
                                            '{"result": "COMPLETED"}, {"result": "SKIPPED"}]}]}')
        (folder / "cuda.of-b.count").write_text("5")
        (self.root / "results.xml").write_text(
            '<testsuite><testcase name="unit.a" time="1" status="run"/><testcase name="cuda.of/b" time="0" status="notrun">'
            '<skipped message=""/></testcase><testcase name="c" time="2" status="run"/></testsuite>')
        step = Step("tests", "runs", ["sh", "-c", "echo '100% tests passed, 0 tests failed out of 3'"],
                    "again", "ctest", ".")
        code, text = self.run_steps(step)
        self.assertEqual(code, 0)
        self.assertIn("3 checks ran, 6 were skipped; ctest: 100% tests passed, 0 tests failed out of 3\n", text)
        self.assertRegex(text, r"The slowest tests, in seconds:\n +2\.0  \.: c\n")

    def test_every_plan_has_steps_that_say_what_to_do(self):
        for name in names():
            for step in plan(name, "2").steps:
                self.assertTrue(step.says and step.hint and step.command, f"{name}: {step.name}")

    def test_an_unknown_plan_is_refused(self):
        done = subprocess.run([sys.executable, "-B", SCRIPTS / "steps", "nothing"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: steps demo|", done.stderr)

    def test_durations(self):
        self.assertEqual([duration(0.4), duration(59.6), duration(754)], ["0 s", "1 min 00 s", "12 min 34 s"])


if __name__ == "__main__":
    unittest.main()
