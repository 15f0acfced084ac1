#!/usr/bin/env python3
"""Makes a folder to link against in place of the system's C library: glibc_stubs.py FOLDER.

What is linked on a system needs a C library as new as the one there. The stubs of `zig` (PyPI: ziglang, for the interpreter
that runs this) have the symbols of glibc 2.28 with their versions and no code; a program that is linked against them by any
compiler runs on systems from 2018 on. cmake/old_glibc.cmake uses the folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

GLIBC = "2.28"
LIBRARIES = {"libc.so.6": None, "libm.so.6": "libm.so", "libpthread.so.0": "libpthread.so", "libdl.so.2": "libdl.so",
             "librt.so.1": "librt.so"}
ARCHIVE = "libc_nonshared.a"  # functions that were in no shared library then, such as stat


def link_something(cache):
    """Links an empty program, for which zig makes the stubs."""
    cache.mkdir(parents=True)
    source = cache / "empty.c"
    source.write_text("int main(void) { return 0; }\n", encoding="ascii")
    environment = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(cache), ZIG_LOCAL_CACHE_DIR=str(cache))
    subprocess.run([sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}", str(source),
                    "-o", str(cache / "empty")], check=True, env=environment)


def the_only(cache, name):
    found = list(cache.rglob(name))
    if len(found) != 1:
        raise SystemExit(f"glibc_stubs: zig made {len(found)} files {name} in {cache}, expected one: another version of "
                         "ziglang than scripts/wheel_requirements.txt names?")
    return found[0]


def make(folder):
    shutil.rmtree(folder, ignore_errors=True)
    cache = folder / "cache"
    link_something(cache)
    for name, link in LIBRARIES.items():
        shutil.copy(the_only(cache, name), folder / name)
        if link:
            (folder / link).symlink_to(name)
    shutil.copy(the_only(cache, ARCHIVE), folder / ARCHIVE)
    (folder / "libc.so").write_text(f"GROUP ( libc.so.6 {ARCHIVE} )\n", encoding="ascii")
    # A program's constructors were run by its own start code then, which is therefore that of the time, too.
    for name in ("crt1.o", "Scrt1.o"):
        shutil.copy(the_only(cache, "crt1.o"), folder / name)
    shutil.rmtree(cache)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    make(Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    main()
