"""The tool on CUDA devices. Without one: what it says about that."""

import json
import os
import subprocess
import unittest

TOOL = os.environ["MOE64_TOOL"]
OK, UNSUPPORTED = 0, 3
SMALL = "tokens=9 hidden=136 inter=72 experts=5 top_k=2 device=cuda:0"


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, timeout=200)


def objects(*arguments):
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


DOCTOR = objects("doctor")[0]
HAS_CUDA = DOCTOR["devices"]["cuda"] == "available"


class Doctor(unittest.TestCase):
    def test_says_why_cuda_is_off_or_what_there_is(self):
        answer = DOCTOR["devices"]["cuda"]
        if HAS_CUDA:
            self.assertRegex(DOCTOR["cuda_devices"][0]["compute_capability"], r"^\d+\.\d$")
            devices = {one["device"] for one in DOCTOR["operations"]}
            self.assertEqual(devices, {"cpu", "cuda:0"})
        else:
            self.assertRegex(answer, r"^off: .{10}")
            self.assertEqual(DOCTOR["cuda_devices"], [])
            self.assertIn(answer[5:], run("verify", SMALL).stdout)
        self.assertIn(answer, run("doctor").stdout)


@unittest.skipIf(HAS_CUDA, "there is a CUDA device")
class Without(unittest.TestCase):
    def test_problems_are_not_run(self):
        for verb in ("verify", "bench"):
            done = run(verb, SMALL)
            self.assertEqual(done.returncode, UNSUPPORTED)
            self.assertIn("cuda:0 cannot be used", done.stdout)


@unittest.skipUnless(HAS_CUDA, "no CUDA device")
class With(unittest.TestCase):
    def test_every_operation_is_right(self):
        lines = [f"op={one} {SMALL}" for one in "layer quantize dequantize route plan gather combine activate".split()]
        lines += [f"op={one} weight=bf16 {SMALL}" for one in ("layer backward=1", "grouped_gemm", "grouped_gemm_wgrad")]
        for found in objects("verify", *lines):
            self.assertTrue(found["ok"], found)

    def test_bench_has_the_time_of_the_device(self):
        found, = objects("bench", "--min-time", "0.02", SMALL.replace("tokens=9", "tokens=600"))
        self.assertGreater(found["seconds"], 0.0)
        self.assertGreater(found["limits"]["copy_bytes_per_s"], 1e10)
        self.assertEqual(found["limit"], "copy")
        self.assertGreater(found["peak_bytes"], found["workspace_bytes"])


if __name__ == "__main__":
    unittest.main()
