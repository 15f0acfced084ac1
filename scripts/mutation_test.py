#!/usr/bin/env python3
"""Plants known bugs, one at a time, and expects the tests to catch each: mutation_test.py [--only NAME] [--list].

The bugs are in mutants.py. Works on a copy of the tree, so the tree itself is never touched. Bugs of the Python package
(suite python) run with the library of build/release in .venv, and are skipped where that is not there. Exits with 1 if a bug
survives, if the text that it replaces is not there exactly once, or if the tests fail without it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 300  # seconds; a bug that makes a test hang is caught, too
PYTHON = ROOT / ".venv" / "bin" / "python"
RELEASE = ROOT / "build" / "release"
CONFIGURE = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DMOE64_CUDA=OFF", "-DMOE64_BUILD_CLI=OFF",
             "-DMOE64_INSTALL=OFF", "-DMOE64_WERROR=OFF"]


class Failure(Exception):
    """A reason to stop: the tool cannot do its work."""


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          check=False, **options)


def copy_tree(target):
    """What git tracks and what it would track."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)  # as new: no object file may be taken for its result


class Workshop:
    """A copy of the tree and one build of it."""

    def __init__(self, folder):
        self.tree = folder / "tree"
        self.build = folder / "build"
        if self.tree.exists():
            shutil.rmtree(self.tree)
        copy_tree(self.tree)
        done = run(["cmake", "-S", self.tree, "-B", self.build, *CONFIGURE])
        if done.returncode != 0:
            raise Failure(f"cmake does not configure the copy:\n{done.stdout}")

    def make(self, suites):
        """Builds the programs of some suites; what the compiler said if it cannot."""
        targets = [f"moe64_{suite}" for suite in sorted(suites) if suite != "python"]
        if not targets:
            return ""
        done = run(["cmake", "--build", self.build, "--target", *targets])
        return "" if done.returncode == 0 else done.stdout

    def test(self, suite, tests):
        """Runs the tests; (whether they passed, the first that failed or what happened)."""
        if suite == "python":
            return self.test_python(tests)
        program = self.build / "tests" / f"moe64_{suite}"
        try:
            done = run([program, f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=0"], timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            return False, f"no answer in {TIMEOUT} s"
        started = re.findall(r"^\[ RUN      \] (\S+)", done.stdout, re.M)
        if not started:
            raise Failure(f"no test of moe64_{suite} matches {tests}:\n{done.stdout[-500:]}")
        if done.returncode == 77 or ("[  SKIPPED ]" in done.stdout and done.returncode == 0):
            return True, "skipped by this machine"
        failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)", done.stdout, re.M)
        if done.returncode < 0:
            return False, f"signal {-done.returncode} in {started[-1]}"
        return done.returncode == 0, failed[0] if failed else ""

    def test_python(self, tests):
        """The same by pytest: `tests` are its arguments."""
        environment = dict(os.environ, MOE64_LIBRARY=str(RELEASE / "libmoe64.so"), MOE64_TOOL=str(RELEASE / "bin" / "moe64"))
        try:
            done = run([PYTHON, "-B", "-m", "pytest", "-q", "-x", *tests.split()], timeout=TIMEOUT, cwd=self.tree,
                       env=environment)
        except subprocess.TimeoutExpired:
            return False, f"no answer in {TIMEOUT} s"
        if not re.search(r"\d+ (passed|failed|error)", done.stdout):
            raise Failure(f"no test of Python ran for {tests}:\n{done.stdout[-500:]}")
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        return done.returncode == 0, failed[0] if failed else ""

    def plant(self, mutant):
        """Replaces the text; the function that puts it back."""
        path = self.tree / mutant.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(mutant.old) != 1:
            raise LookupError(f"{mutant.file} holds its text {text.count(mutant.old)} times, not once")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        return lambda: path.write_text(text, encoding="utf-8")


def can_test_python():
    return PYTHON.exists() and (RELEASE / "libmoe64.so").exists()


def check_without_bugs(workshop, chosen):
    """The tests that shall catch the bugs must pass without them."""
    wrong = workshop.make({mutant.suite for mutant in chosen})
    if wrong:
        raise Failure(f"the copy does not build:\n{wrong[-3000:]}")
    for suite, tests in sorted({(mutant.suite, mutant.tests) for mutant in chosen}):
        if suite == "python" and not can_test_python():
            continue
        passed, what = workshop.test(suite, tests)
        if not passed or what:
            raise Failure(f"{suite} {tests} without any bug: {what or 'failed'}")


def cpu_flags():
    """What Linux says the CPU has; nothing elsewhere."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", info.read_text(encoding="utf-8"), re.M) if info.is_file() else None
    return set(found.group(1).split()) if found else set()


def check(workshop, mutant):
    """('killed', 'skipped' or what is wrong, by what)"""
    if mutant.suite == "python" and not can_test_python():
        return "skipped", "no .venv, or no release build: `make python`"
    if mutant.needs and mutant.needs not in cpu_flags():
        return "skipped", f"this CPU has no {mutant.needs}"
    try:
        restore = workshop.plant(mutant)
    except LookupError as error:
        return "NOT FOUND", str(error)
    try:
        wrong = workshop.make({mutant.suite})
        if wrong:
            first = re.search(r"^.*error:.*$", wrong, re.M)
            return "NO BUILD", first.group() if first else wrong[-300:]
        passed, what = workshop.test(mutant.suite, mutant.tests)
        return ("SURVIVED", f"{mutant.suite} {mutant.tests}") if passed else ("killed", what)
    finally:
        restore()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this bug; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the bugs and do nothing")
    parser.add_argument("--folder", type=Path, help="work here and keep it (default: a temporary folder)")
    options = parser.parse_args()
    unknown = set(options.only or []) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no bug named {', '.join(sorted(unknown))}; --list prints them")
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {mutant.file:28} {mutant.suite} {mutant.tests}")
        return 0
    with tempfile.TemporaryDirectory(prefix="moe64-mutation-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        try:
            workshop = Workshop(folder)
            check_without_bugs(workshop, chosen)
            print(f"without bugs: all pass, {time.monotonic() - begin:.0f} s", flush=True)
            results = []
            for mutant in chosen:
                start = time.monotonic()
                verdict, what = check(workshop, mutant)
                results.append(verdict)
                print(f"{verdict:9} {mutant.name:32} {time.monotonic() - start:4.0f} s  {what}", flush=True)
        except Failure as failure:
            print(f"mutation_test: {failure}", file=sys.stderr)
            return 1
    killed, skipped = results.count("killed"), results.count("skipped")
    print(f"mutation_test: {killed} of {len(results)} bugs killed, {skipped} skipped, "
          f"{time.monotonic() - begin:.0f} s")
    return 0 if killed + skipped == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
