"""-1 in the routing map, and rows past 2^31 elements.

The report: moe_permute(..., map_type="index") of TransformerEngine sorted the -1 of expert parallelism before all real
experts, so that sentinels were kept and real rows dropped; and row offsets overflowed at 2^31 elements. Since then ids are
sorted as unsigned numbers there, which is right if num_out_tokens is exactly the number of valid slots, and not otherwise.

    python permute_sentinels.py
    python permute_sentinels.py --full     # 262145 rows of 8192: offsets past 2^31, 13 GiB
"""

import argparse
import sys

import torch

from moe64.compat.transformer_engine import moe_permute, moe_unpermute


def reference(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    flat = ids.view(-1)
    order = torch.argsort(flat, stable=True)
    return x.index_select(0, order[flat[order] != -1] // ids.shape[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(8, 16, dtype=torch.bfloat16, device=options.device)
    ids = torch.randint(0, 4, (8, 2), dtype=torch.int32, device=options.device)
    ids.view(-1)[torch.randperm(16, device=options.device)[:8]] = -1
    valid = int((ids != -1).sum())
    for count in (valid, 0):
        rows, row_id_map = moe_permute(x, ids, num_out_tokens=count, map_type="index")
        worst = (rows.float() - reference(x, ids).float()).abs().max().item()
        print(f"num_out_tokens={count}: {rows.shape[0]} rows, largest difference from the reference {worst}")
        if worst != 0:
            return 1
    back = moe_unpermute(rows, row_id_map, torch.ones(8, 2, device=options.device), map_type="index")
    print("tokens that nobody here serves come back as zeros:", bool((back[(ids == -1).all(1)] == 0).all()))
    nobody, _ = moe_permute(x, torch.full_like(ids, -1), num_out_tokens=0, map_type="index")
    print(f"a rank without tokens: {nobody.shape[0]} rows")
    tokens, cols = (2 ** 18 + 1, 2 ** 13) if options.full else (2 ** 8 + 1, 2 ** 5)
    x = torch.empty(tokens, cols, dtype=torch.bfloat16, device=options.device).normal_()
    ids = torch.arange(tokens, dtype=torch.int32, device=options.device).remainder(4).view(-1, 1)
    rows, _ = moe_permute(x, ids, num_out_tokens=tokens, map_type="index")
    same = torch.equal(rows, reference(x, ids))
    print(f"{tokens} rows of {cols}, {tokens * cols:,} elements: {'right' if same else 'WRONG'}")
    return 0 if same and nobody.shape[0] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
