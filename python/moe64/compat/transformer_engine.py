"""TransformerEngine's permutation functions: the same signatures, row_id_map layouts and order of rows.

    from moe64.compat.transformer_engine import moe_permute, moe_unpermute

What differs is what goes wrong there: sentinels of any kind in the index map get no row wherever they stand, a rank
without tokens gives zero rows, `num_out_tokens` below the number of routed slots drops the rest and above it adds rows
of zeros, any top_k, hidden size, dtype that moves, device and stream, float32 sums, and gradients that are zero for rows
and slots without a partner. A routed slot whose probability is 0 keeps its row.

When they wait for a GPU: index maps with `num_out_tokens` never; mask maps once in the permutation, padded or not,
because how many experts a token has at most stands only on the device (a map that came from here remembers it for
moe_unpermute); index maps without `num_out_tokens` once, for the shape of the output. `moe64.plan`, `gather` and `combine`
never wait. On a GPU the rows of a map are not checked to occur once each.
"""

from __future__ import annotations

import torch

from ..errors import DtypeMismatchError, InvalidArgumentError, ShapeMismatchError
from ._rows import (Mask, PaddedRows, ReorderedRows, SomeRows, as_bytes, from_map, index_plan, inverse, k_major, merge,
                    on_host, remembered, rows_of)

__all__ = ["moe_permute", "moe_permute_and_pad_with_probs", "moe_permute_with_probs", "moe_sort_chunks_by_index",
           "moe_sort_chunks_by_index_with_probs", "moe_unpermute"]


# ---- permute ------------------------------------------------------------------------------------

def _check(inp: torch.Tensor, routing_map: torch.Tensor, map_type: str) -> None:
    if map_type not in ("index", "mask"):
        raise InvalidArgumentError(f"[moe_permute] map_type is '{map_type}', neither index nor mask")
    if inp.dim() != 2 or routing_map.dim() != 2 or inp.shape[0] != routing_map.shape[0]:
        raise ShapeMismatchError(f"[moe_permute] inp is {list(inp.shape)} and routing_map {list(routing_map.shape)}, "
                                 "expected [tokens, hidden] and [tokens, top_k or experts]")
    if routing_map.is_floating_point():
        raise DtypeMismatchError(f"[moe_permute] routing_map is {routing_map.dtype}, not bool or an integer type")


def moe_permute(inp: torch.Tensor, routing_map: torch.Tensor, num_out_tokens: int = -1, max_token_num: int = -1,
                map_type: str = "mask") -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in expert order, and the map back.

    routing_map     "index": [tokens, top_k] expert ids, negative: no expert; "mask": [tokens, experts], non-zero: chosen
    num_out_tokens  rows of the output; 0 or less: as many as there are routed slots
    max_token_num   of no effect, as there
    row_id_map      "index": [top_k * tokens] int32, k-major, -1: no row; "mask": [tokens, 2 * experts + 1] int32

        >>> rows, row_id_map = te.moe_permute(torch.tensor([[1.0], [2.0]]), torch.tensor([[1], [0]]), map_type="index")
        >>> rows.flatten().tolist(), row_id_map.tolist()
        ([2.0, 1.0], [1, 0])
    """
    _check(inp, routing_map, map_type)
    if map_type == "index":
        plan, count = index_plan(routing_map, num_out_tokens)
        return rows_of(inp, plan, count), k_major(plan.slot_to_row, (plan.tokens, plan.top_k))
    mask = Mask(routing_map, num_out_tokens)
    return rows_of(inp, mask.plan(), mask.count), mask.map


def moe_permute_with_probs(inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor,
                           num_out_tokens: int = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """moe_permute of a mask, and probs [tokens, experts] moved along: (rows, their probs, row_id_map).

        >>> rows, moved, row_id_map = te.moe_permute_with_probs(x, probs, probs > 0.5)
    """
    _check(inp, routing_map, "mask")
    mask = Mask(routing_map, num_out_tokens)
    return rows_of(inp, mask.plan(), mask.count), mask.permuted(probs, mask.rows, mask.count), mask.map


def moe_permute_and_pad_with_probs(
        inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor, tokens_per_expert: torch.Tensor,
        align_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The same with each expert's rows padded by zeros to a multiple of align_size.

    Answers (rows, their probs, row_id_map, pad_offsets or None, rows per expert); row_id_map counts without padding.
    tokens_per_expert must be what the mask says: a count that disagrees is refused.

        >>> mask = probs > 0.5
        >>> rows, moved, row_id_map, offsets, sizes = te.moe_permute_and_pad_with_probs(x, probs, mask, mask.sum(0), 16)
        >>> back = te.moe_unpermute(rows, row_id_map, probs, pad_offsets=offsets)
    """
    _check(inp, routing_map, "mask")
    if align_size < 1:
        raise InvalidArgumentError(f"[moe_permute_and_pad_with_probs] align_size is {align_size}")
    counts = (routing_map != 0).sum(0)
    target = (counts + align_size - 1) // align_size * align_size
    given = tokens_per_expert.to(counts) if tokens_per_expert.shape == counts.shape else counts + 1
    mask = Mask(routing_map, -1, target.sum(), (given != counts).sum())
    total, wrong = mask.more
    if wrong:
        raise InvalidArgumentError(f"[moe_permute_and_pad_with_probs] tokens_per_expert is {tokens_per_expert.tolist()}, "
                                   f"the routing map has {counts.tolist()}")
    plan = mask.plan()
    if total == mask.live:
        return rows_of(inp, plan, total), mask.permuted(probs, mask.rows, total), mask.map, None, target
    offsets = (target - counts).cumsum(0) - (target - counts)
    padded = mask.rows + offsets[mask.experts]
    places = torch.where(mask.rows >= 0, padded, total).reshape(-1)
    tokens = torch.arange(inp.shape[0], device=inp.device)[:, None].expand(mask.rows.shape).reshape(-1)
    source = places.new_full((total + 1,), inp.shape[0]).scatter_(0, places, tokens)[:-1]
    rows = PaddedRows.apply(as_bytes(inp), source, padded.reshape(-1)[plan.row_to_slot[:mask.live]], plan)
    return (rows.view(inp.dtype) if rows.dtype != inp.dtype else rows, mask.permuted(probs, padded, total), mask.map,
            offsets, target)


# ---- unpermute ----------------------------------------------------------------------------------

def moe_unpermute(inp: torch.Tensor, row_id_map: torch.Tensor, merging_probs: torch.Tensor | None = None,
                  restore_shape: "torch.Size | tuple[int, ...] | None" = None, map_type: str = "mask",
                  probs: torch.Tensor | None = None, pad_offsets: torch.Tensor | None = None) -> torch.Tensor:
    """Rows back to tokens: sums of a token's rows, times merging_probs, in float32 and one rounding.

    merging_probs  "index": [tokens, top_k]; "mask": [tokens, experts]; without it rows are added as they are
    restore_shape  [tokens, hidden]; an index map without merging_probs needs it to know top_k, else top_k is 1
    pad_offsets    of moe_permute_and_pad_with_probs

        >>> rows, row_id_map = te.moe_permute(torch.tensor([[1.0], [2.0]]), torch.tensor([[1], [0]]), map_type="index")
        >>> te.moe_unpermute(rows * 10, row_id_map, map_type="index").flatten().tolist()
        [10.0, 20.0]
    """
    factors = merging_probs if merging_probs is not None else probs
    if map_type == "index":
        if factors is not None:
            tokens, top_k = factors.shape
        else:
            tokens = restore_shape[0] if restore_shape is not None else row_id_map.numel()
            top_k = row_id_map.numel() // tokens if tokens else 1
        if tokens * top_k != row_id_map.numel():
            raise ShapeMismatchError(f"[moe_unpermute] row_id_map has {row_id_map.numel()} slots, expected {tokens} tokens "
                                     f"times {top_k}")
        turned = row_id_map.reshape(top_k, tokens).t()
        return merge(inp, torch.empty((tokens, top_k), dtype=torch.int64, device=inp.device).copy_(turned), factors, None)
    if map_type != "mask":
        raise InvalidArgumentError(f"[moe_unpermute] map_type is '{map_type}', neither index nor mask")
    rows, experts = from_map(row_id_map)
    if restore_shape is not None and tuple(restore_shape) != (rows.shape[0], inp.shape[1]):
        raise ShapeMismatchError(f"[moe_unpermute] restore_shape is {list(restore_shape)}, the map has {rows.shape[0]} tokens "
                                 f"and inp {inp.shape[1]} columns")
    if rows.shape[1] == 0:
        return inp.new_zeros((rows.shape[0], inp.shape[1])) + inp.sum() * 0
    known = remembered(row_id_map)
    live = None if known is None else known[1]
    if pad_offsets is not None:
        live = int((rows >= 0).sum()) if live is None else live
        padded = (rows + pad_offsets.to(torch.int64)[experts]).reshape(-1)
        inp = SomeRows.apply(inp, padded[inverse(rows)[:live]])
    return merge(inp, rows, None if factors is None else factors.gather(1, experts), live)


# ---- chunks -------------------------------------------------------------------------------------

def _chunk_source(rows: int, split_sizes: torch.Tensor, sorted_index: torch.Tensor) -> torch.Tensor:
    """For each output row the input row that it is; rows behind the chunks stay where they are."""
    device = split_sizes.device
    sizes, order = split_sizes.to(torch.int64), sorted_index.to(device, torch.int64)
    if sizes.shape != order.shape or sizes.dim() != 1:
        raise ShapeMismatchError(f"[moe_sort_chunks_by_index] split_sizes is {list(sizes.shape)} and sorted_index "
                                 f"{list(order.shape)}")
    if sizes.numel() == 0:
        return torch.arange(rows, device=device)
    if on_host(sizes):
        if not torch.equal(order.sort().values, torch.arange(order.numel())):
            raise InvalidArgumentError(f"[moe_sort_chunks_by_index] sorted_index is {order.tolist()}, no permutation")
        if int(sizes.min()) < 0 or int(sizes.sum()) > rows:
            raise ShapeMismatchError(f"[moe_sort_chunks_by_index] split_sizes is {sizes.tolist()}, inp has {rows} rows")
    begin = sizes.cumsum(0) - sizes
    moved = sizes[order]
    end = moved.cumsum(0)
    row = torch.arange(rows, device=device)
    chunk = torch.searchsorted(end, row, right=True).clamp(max=sizes.numel() - 1)
    source = begin[order][chunk] + row - (end - moved)[chunk]
    return torch.where(row < end[-1], source, row)


def moe_sort_chunks_by_index(inp: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor) -> torch.Tensor:
    """Chunks of rows, split_sizes [n] long, in the order of sorted_index [n]; chunks may be empty.

        >>> te.moe_sort_chunks_by_index(torch.arange(5), torch.tensor([2, 3]), torch.tensor([1, 0])).tolist()
        [2, 3, 4, 0, 1]
    """
    return ReorderedRows.apply(inp, _chunk_source(inp.shape[0], split_sizes, sorted_index).to(inp.device))


def moe_sort_chunks_by_index_with_probs(inp: torch.Tensor, probs: torch.Tensor, split_sizes: torch.Tensor,
                                        sorted_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and probs [rows] moved along.

        >>> y, moved = te.moe_sort_chunks_by_index_with_probs(x, probs[:, 0], torch.tensor([3, 2]), torch.tensor([1, 0]))
    """
    source = _chunk_source(inp.shape[0], split_sizes, sorted_index).to(inp.device)
    return ReorderedRows.apply(inp, source), ReorderedRows.apply(probs, source)
