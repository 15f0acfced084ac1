"""The table at the end of a run of steps, and the part of a log that says why a step failed."""

import json
import re
import time
import xml.etree.ElementTree as ElementTree

SLOWEST = 10
LONG_MINUTES = 45  # a run of all tests that takes longer warns


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def log_of(root, step):
    return root / "build" / "logs" / f"{step.name.replace(' ', '-')}.txt"


def last_lines(kind, log):
    """Why a step failed: its first error where one can be told from the rest, otherwise its end."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    if kind == "ninja":
        for at, line in enumerate(lines):
            if line.startswith("FAILED:"):
                found = lines[at:at + 400]
                end = next((i for i, text in enumerate(found) if i > 1 and text.startswith("[")), len(found))
                errors = [text for text in found[2:end] if re.search(r"error|undefined|multiple definition", text)]
                return [line, *(errors[:12] or found[2:end][-20:])]
    if kind == "ctest":
        failed = [line.strip() for line in lines if "***" in line and "***Skipped" not in line]
        words = [line for line in lines if re.search(r"Failure$|\[  FAILED  \]|Error|error:", line)]
        return failed[:20] + words[:20] or lines[-30:]
    return lines[-30:]


class Report:
    def __init__(self, root, target):
        self.root = root
        self.target = target
        self.begin = time.monotonic()
        self.rows = []    # (step, seconds, CPU seconds)
        self.units = []   # (seconds, compile unit)
        self.tests = []   # (seconds, test)
        self.checks = []  # (step, run, skipped)
        self.log_size = 0

    def before(self, step):
        if step.kind == "ninja":
            log = self.root / step.folder / ".ninja_log"
            self.log_size = log.stat().st_size if log.is_file() else 0

    def took(self, step, seconds, cpu_seconds):
        self.rows.append((step.name + (" (in background)" if step.background else ""), seconds, cpu_seconds))

    def after(self, step, seconds, cpu_seconds):
        """One line on how a step went that passed."""
        self.took(step, seconds, cpu_seconds)
        log = log_of(self.root, step)
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        if step.kind == "ninja":
            return self.compiled(step, text)
        if step.kind == "ctest":
            return self.tested(step, text)
        if step.kind == "pytest":
            summary = text.rstrip().rpartition("\n")[2]
            self.checks.append((step.name, *(int((re.search(rf"(\d+) {word}", summary) or [0, 0])[1])
                                             for word in ("passed", "skipped"))))
            return summary
        return "done"

    def compiled(self, step, text):
        log = self.root / step.folder / ".ninja_log"
        added = log.read_bytes()[self.log_size:].decode() if log.is_file() else ""
        files = 0
        for line in added.splitlines():
            fields = line.split("\t")
            if len(fields) == 5 and fields[3].endswith((".o", ".gch")):
                name = re.sub(r"^(?:tests/)?CMakeFiles/([^/]*)\.dir/", r"\1: ", fields[3])
                self.units.append(((int(fields[1]) - int(fields[0])) / 1000, f"{step.folder}: {name}"))
                files += 1
        warnings = len(re.findall(r"\bwarning: ", text))
        return f"{files} files compiled" + (f", {warnings} WARNINGS (in build/logs)" if warnings else "")

    def tested(self, step, text):
        folder = self.root / step.folder
        junit = folder / step.results
        run = skipped = 0
        cases = ElementTree.parse(junit).getroot().iter("testcase") if junit.is_file() else []
        for case in cases:
            self.tests.append((float(case.get("time", 0)), f"{step.folder}: {case.get('name')}"))
            checks, left_out = self.checks_of(folder, case)
            run += checks
            skipped += left_out
        self.checks.append((step.name, run, skipped))
        summary = re.search(r"^\d+% tests passed.*$", text, re.M)
        return f"{run} checks ran, {skipped} were skipped; ctest: {summary[0] if summary else 'no summary'}"

    @staticmethod
    def checks_of(folder, case):
        """(run, skipped) tests of GoogleTest behind a test of ctest; one where there are none."""
        listed = folder / "tests" / "results" / f"{case.get('name').replace('/', '-')}"
        count = int(listed.with_name(listed.name + ".count").read_text()) \
            if listed.with_name(listed.name + ".count").is_file() else 1
        if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
            return 0, count
        told = listed.with_name(listed.name + ".json")
        if not told.is_file():
            return count, 0
        suites = json.loads(told.read_text(encoding="utf-8"))["testsuites"]
        skipped = sum(test.get("result") == "SKIPPED" for suite in suites for test in suite["testsuite"])
        return count - skipped, skipped

    def finish(self, plan):
        total = time.monotonic() - self.begin
        self.print_table(plan)
        if self.target == "test" and total > LONG_MINUTES * 60:
            print(f"\nWARNING: this took {duration(total)}, more than {LONG_MINUTES} minutes: the lists above say where.")
        if plan.table and self.checks:
            print(f"\n{sum(row[1] for row in self.checks)} passed, 0 failed, {sum(row[2] for row in self.checks)} skipped")
        print(f"\nmake {self.target}: all of it passed, in {duration(total)}." + (f"\n{plan.then}" if plan.then else ""),
              flush=True)

    def print_table(self, plan):
        if not plan.table:
            return
        total = time.monotonic() - self.begin
        print(f"\n{'step':28} {'seconds':>8} {'CPU s':>8}")
        for name, seconds, cpu_seconds in self.rows:
            print(f"{name:28} {seconds:8.0f} {cpu_seconds:8.0f}")
        print(f"{'all':28} {total:8.0f} {sum(row[2] for row in self.rows):8.0f}")
        for title, entries in [("compile units", self.units), ("tests", self.tests)]:
            if entries:
                print(f"\nThe slowest {title}, in seconds:")
            for seconds, name in sorted(entries, reverse=True)[:SLOWEST]:
                print(f"{seconds:8.1f}  {name}")
        if self.checks:
            print()
        for name, run, skipped in self.checks:
            print(f"{name}: {run} checks ran, {skipped} were skipped")

