#!/usr/bin/env python3
"""Tests the Python package with the newest Transformers and PEFT of the package index, and says what differs from the
pinned ones.

.venv-latest holds what is newer than in the pinned environment and nothing else: torch and the rest are read from there.
Tests that fail or are skipped with the newest are run again with the pinned ones, so that a failure is known for what it is:
of this tree, or of a new version.
"""

import argparse
import subprocess
import sys
import xml.etree.ElementTree
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LATEST = ROOT / ".venv-latest"
RESULTS = ROOT / "build" / "python-latest"
NEWEST = ("transformers", "peft")


def packages_of(python):
    """Where an environment keeps its packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def versions_in(folder):
    return {found.metadata["Name"].lower().replace("_", "-"): found.version for found in distributions(path=[str(folder)])}


def make_environment(pinned):
    """.venv-latest over the packages of the pinned environment; answers its own packages and the pinned ones."""
    below = packages_of(pinned)
    python = LATEST / "bin" / "python"
    if not python.exists():
        subprocess.run([pinned, "-m", "venv", "--without-pip", LATEST], check=True)
    own = packages_of(python)
    (own / "pinned.pth").write_text(f"{below}\n")
    subprocess.run([python, "-m", "pip", "install", "-q", "--upgrade", *NEWEST], check=True)
    return versions_in(own), versions_in(below)


def run_tests(python, name, arguments):
    """Runs pytest; answers its exit status and {test: (outcome, reason)} with outcome passed, failed or skipped."""
    results = RESULTS / f"{name}.xml"
    results.unlink(missing_ok=True)
    done = subprocess.run([python, "-B", "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={results}",
                           *arguments], cwd=ROOT, check=False)
    return done.returncode, outcomes(results.read_text()) if results.exists() else {}


def outcomes(junit):
    found = {}
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                reason = (child.get("message") or "").split("\n")[0]
        file = case.get("file")  # none: a file that could not be imported
        found[f"{file}::{case.get('name')}" if file else case.get("name")] = outcome, reason
    return found


def differences(latest, pinned):
    """Lines on the tests that fail with the newest versions, and then on those that are skipped with them alone."""
    lines = []
    for test, (outcome, reason) in latest.items():
        other, other_reason = pinned.get(test, ("missing", ""))
        if outcome == "passed" or outcome == other == "skipped":
            continue
        both = "with both" if outcome == other else f"with the newest, {other} with the pinned"
        why = reason or other_reason
        lines.append((outcome != "failed", f"{outcome} {both}: {test}" + (f": {why}" if why else "")))
    return [line for _, line in sorted(lines)]


def main():
    options = argparse.ArgumentParser(description=__doc__, epilog="Other arguments are pytest's.", allow_abbrev=False)
    options.add_argument("--pinned", default=ROOT / ".venv", type=Path, help="the environment of the pinned versions")
    given, rest = options.parse_known_args()
    pinned = given.pinned / "bin" / "python"
    own, below = make_environment(pinned)
    newer = {name: version for name, version in sorted(own.items()) if below.get(name) != version}
    for name in NEWEST:
        if name not in newer:
            print(f"python-latest: {name} {below.get(name, '(not installed)')} is the newest already")
    for name, version in newer.items():
        print(f"python-latest: {name} {version}, pinned {below.get(name, 'none')}", flush=True)
    if not newer:
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    status, latest = run_tests(LATEST / "bin" / "python", "latest", rest)
    again = [test for test, (outcome, _) in latest.items() if outcome != "passed" and "::" in test]
    before = {}
    if again:
        names = RESULTS / "again.txt"
        names.write_text("\n".join(again) + "\n")
        print(f"python-latest: the {len(again)} tests that did not pass, with the pinned versions", flush=True)
        _, before = run_tests(pinned, "pinned", [f"@{names}"])
    lines = differences(latest, before)
    print("\n".join(["python-latest: what differs", *(f"  {line}" for line in lines)]) if lines
          else "python-latest: every test passes with the newest, or is skipped with both")
    return status


if __name__ == "__main__":
    sys.exit(main())
