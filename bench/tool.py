"""moe64's side of the comparison, through the tool that users have."""

import json
import subprocess


class ToolError(RuntimeError):
    """The tool did not time a problem; the text says why."""


def bench(tool, lines, threads, min_time):
    """One JSON object per problem line, all timed by one process."""
    done = subprocess.run([tool, "bench", "--json", "--threads", str(threads), "--min-time", str(min_time), "-f", "-"],
                          input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in found:
        if "error" in one:
            raise ToolError(f"{one['problem']}: {one['message']}")
    if done.returncode != 0 or len(found) != len(lines):
        raise ToolError(done.stderr.strip() or f"exit code {done.returncode}")
    return found


def doctor(tool):
    """What the tool says about this machine."""
    return json.loads(subprocess.run([tool, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
