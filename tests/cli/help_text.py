"""What the tool's --help names, for tests of what is made from the same texts."""

import os
import re
import subprocess

TOOL = os.environ.get("MOE64_TOOL", "build/release/bin/moe64")


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=60)


def said(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def section(text, title):
    """The lines below `Title:`, to the next empty one."""
    found = re.search(rf"^{title}:\n((?:.+\n)+)", text, re.M)
    return found[1] if found else ""


def verbs():
    return re.findall(r"^  (\w+) ", section(said("--help"), "Subcommands"), re.M)


def options(verb=None):
    """{long name: what its value is called, "" for a flag}"""
    text = section(said(*([verb] if verb else []), "--help"), "Options")
    return dict(re.findall(r"^  (?:-\w,)?(--[\w-]+) ?([A-Z][A-Z=]*|\w[^ ]*\|[^ ]+)?\b", text, re.M))
