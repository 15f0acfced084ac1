"""Expert weights past 4 GiB.

The report: a two-stage MoE kernel of AITER reached all experts of a bf16 stack through one 32-bit byte offset; past 4 GiB
(MiniMax-M3: 128 experts of [6144, 6144], 9 GiB) it read the weights of other experts. Nothing was raised.

    python weights_past_4_gib.py           # the experts share memory: offsets past 4 GiB, 0.5 GiB of memory
    python weights_past_4_gib.py --full    # 9 GiB of them
"""

import argparse
import sys

import torch

import moe64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    experts, rows, cols = 128, 6144, 6144
    # A stack whose expert e begins e * rows * cols elements behind the first, of which only a few are touched: the pages
    # of the others are never made, and none is read.
    stack = torch.empty(experts, rows, cols, dtype=torch.bfloat16, device=options.device)
    used = [0, 55, 56, 57, 113, 127] if not options.full else list(range(experts))
    for e in used:
        stack[e, :8] = torch.randint(-2, 3, (8, cols), device=options.device).bfloat16()
    print(f"the stack has {stack.numel() * 2 / 2**30:.1f} GiB; 4 GiB is reached in expert {2**32 // (2 * rows * cols)}")
    x = torch.randint(-2, 3, (len(used), cols), device=options.device).bfloat16()
    plan = moe64.plan(torch.tensor(used, device=options.device).view(-1, 1), experts)
    y = moe64.grouped_gemm(moe64.gather(x, plan), stack[:, :8], plan)  # 8 rows of each expert, at their real places
    for r, e in enumerate(used):
        expected = (stack[e, :8].double() @ x[r].double()).bfloat16()  # whole numbers: every order gives the same sum
        if not torch.equal(y[r], expected):
            print(f"expert {e} is wrong")
            return 1
    print(f"experts {used if len(used) < 9 else 'of the whole stack'} are right, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
