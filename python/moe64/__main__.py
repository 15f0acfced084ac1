"""`moe64 ...` and `python -m moe64 ...`: the tool that came with the package."""

from __future__ import annotations

import os
import sys

from ._library import tool
from .errors import LibraryError


def main() -> int:
    """Becomes the tool; its exit code is this program's."""
    try:
        program = str(tool())
    except LibraryError as problem:
        print(f"moe64: {problem}", file=sys.stderr)
        return 3
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
