"""MOE64_CUDA_ARCHITECTURES=AUTO makes machine code for the GPUs that nvidia-smi names, for Hopper where it names none."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

CMAKE = Path(__file__).resolve().parents[2] / "cmake" / "cuda.cmake"


class ArchitecturesTest(unittest.TestCase):
    def architectures(self, script):
        """What is found where nvidia-smi is this script, or is not there."""
        folder = Path(tempfile.mkdtemp(prefix="architectures_"))
        self.addCleanup(shutil.rmtree, folder)
        if script is not None:
            (folder / "nvidia-smi").write_text("#!/bin/sh\n" + script)
            (folder / "nvidia-smi").chmod(0o755)
        (folder / "ask.cmake").write_text(f"set(MOE64_CUDA OFF)\ninclude({CMAKE})\n"
                                          f"find_program(MOE64_NVIDIA_SMI nvidia-smi PATHS {folder} NO_DEFAULT_PATH)\n"
                                          "if(NOT MOE64_NVIDIA_SMI)\n  set(MOE64_NVIDIA_SMI \"\")\nendif()\n"
                                          "moe64_architectures_here(found)\nmessage(\"found=${found}\")\n")
        done = subprocess.run(["cmake", "-P", folder / "ask.cmake"], capture_output=True, text=True, check=True,
                              env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"))
        return done.stderr.partition("found=")[2].strip()

    def test_a_machine_without_a_gpu(self):
        self.assertEqual(self.architectures("exit 9\n"), "90a-real")
        self.assertEqual(self.architectures("echo 'No devices were found'\n"), "90a-real")

    def test_hopper_has_its_own_instructions(self):
        self.assertEqual(self.architectures("echo 9.0\n"), "90a-real")

    def test_several_gpus_of_two_kinds(self):
        self.assertEqual(self.architectures("echo 8.0\necho 9.0\necho 8.0\n"), "80-real;90a-real")

    def test_newer_ones(self):
        self.assertEqual(self.architectures("echo 12.0\n"), "120-real")


if __name__ == "__main__":
    unittest.main()
