"""Block dequantisation of more than 2^31 elements.

The report: weight_dequant_block(x, s) of unsloth computed element offsets in 32 bits; x of [400000, 6144], and every FP8
stack of experts above 2^31 elements, ended in an illegal memory access. Fixed there by now.

    python dequant_past_2_31.py            # a small one
    python dequant_past_2_31.py --full     # [400000, 6144] as in the report: 4.6 GiB of results
"""

import argparse
import sys

import torch

from moe64.compat.unsloth import weight_dequant_block


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rows, cols, block = (400_000 if options.full else 1_000, 6144, 128)
    x = torch.randint(-64, 64, (1, cols), device=options.device).float().to(torch.float8_e4m3fn)
    x = x.expand(rows, cols)  # every row is the same memory: the codes cost nothing, the offsets are the real ones
    s = torch.rand(-(-rows // block), cols // block, device=options.device) + 0.5
    y = weight_dequant_block(x, s, block_size=block, dtype=torch.bfloat16)
    print(f"x [{rows}, {cols}] has {x.numel():,} elements, 2^31 is {2**31:,}")
    for row in (0, rows // 2, rows - 1):
        expected = (x[row].float() * s[row // block].repeat_interleave(block)).bfloat16()
        if not torch.equal(y[row], expected):
            print(f"row {row} is wrong")
            return 1
    print("rows at the beginning, in the middle and at the end are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
