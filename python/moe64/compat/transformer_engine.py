"""TransformerEngine's permutation functions: the same signatures, row_id_map layouts and order of rows.

    from moe64.compat.transformer_engine import moe_permute, moe_unpermute

What differs is what goes wrong there: sentinels of any kind in the index map get no row wherever they stand, a rank
without tokens gives zero rows, `num_out_tokens` below the number of routed slots drops the rest and above it adds rows
of zeros, any top_k, hidden size, dtype that moves, device and stream, float32 sums, and gradients that are zero for rows
and slots without a partner. A routed slot whose probability is 0 keeps its row.

When they wait for a GPU: index maps with `num_out_tokens` never; mask maps with it once, in the permutation, because how
many experts a token has at most stands only on the device (a map that moe_permute made remembers it for moe_unpermute);
without it the shape of the output has to be read too, and the padded permutation compares its counts. `moe64.plan`,
`gather` and `combine` never wait. On a GPU the rows of a map are not checked to occur once each.
"""

from __future__ import annotations

import torch

from ..errors import DtypeMismatchError, InvalidArgumentError, ShapeMismatchError
from ..routing import RoutingPlan, combine, gather

__all__ = ["moe_permute", "moe_permute_and_pad_with_probs", "moe_permute_with_probs", "moe_sort_chunks_by_index",
           "moe_sort_chunks_by_index_with_probs", "moe_unpermute"]


# ---- plans from maps ----------------------------------------------------------------------------

def _plan(rows: torch.Tensor, factors: torch.Tensor | None) -> RoutingPlan:
    """A plan from rows [tokens, top_k] int64, -1 for none: every row from 0 to the largest occurs once."""
    tokens, top_k = rows.shape
    flat = rows.reshape(-1)
    valid = flat >= 0
    kept = valid.sum()
    if not rows.is_cuda and kept and flat.max() != kept - 1:
        raise InvalidArgumentError(f"[permutation] the map has {int(kept)} rows but the largest is {int(flat.max())}: some "
                                   "rows are missing or named twice")
    slots = torch.arange(flat.numel(), device=rows.device)
    row_to_slot = _scattered(flat, slots, flat.numel())
    if not rows.is_cuda and kept and row_to_slot[:kept].min() < 0:
        raise InvalidArgumentError("[permutation] the map names a row twice")
    weight = valid.to(torch.float32)
    if factors is not None:
        weight = torch.where(valid, factors.reshape(-1).to(torch.float32), 0.0)
    return RoutingPlan(tokens, top_k, 1, _begin(kept), row_to_slot.clamp(min=0), flat, weight, _status(kept, flat.numel()))


def _scattered(places: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """[count] int64 with values at places; -1 where there is none. Places below 0 or from count on are left out."""
    places = torch.where((places >= 0) & (places < count), places, count)
    return torch.full((count + 1,), -1, dtype=torch.int64, device=places.device).scatter(0, places, values)[:-1]


def _begin(kept: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(kept.reshape(1), (1, 0))


def _status(kept: torch.Tensor, slots: int) -> torch.Tensor:
    """kept, skipped, elsewhere, dropped, invalid, first_invalid: filled on the device, nothing is sent there."""
    first_invalid = torch.full_like(kept, -1).reshape(1)
    return torch.cat((kept.reshape(1), (slots - kept).reshape(1), kept.new_zeros(3), first_invalid))


def _merge(inp: torch.Tensor, rows: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    """y[t] = sum over k of factor * inp[row]; rows that inp does not have count as none."""
    rows = torch.where(rows < inp.shape[0], rows, -1)
    missing = rows.numel() - inp.shape[0]
    padded = torch.nn.functional.pad(inp, (0, 0, 0, missing)) if missing > 0 else inp[: rows.numel()]
    return combine(padded, _plan(rows, factors), weighted=factors is not None)


def _limited(rows: torch.Tensor, wanted: int) -> tuple[torch.Tensor, int]:
    """Rows below `wanted` (0 or less: all of them), and how many rows the output has."""
    if wanted <= 0:
        return rows, int((rows >= 0).sum())
    return torch.where(rows < wanted, rows, -1), wanted


def _rows_of(inp: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    if inp.element_size() == 1 and inp.dtype != torch.uint8:  # codes are moved; scales of rows move by the same call
        return _rows_of(inp.view(torch.uint8), rows, count).view(inp.dtype)
    moved = gather(inp, _plan(rows, None))
    if count <= moved.shape[0]:
        return moved[:count]
    return torch.nn.functional.pad(moved, (0, 0, 0, count - moved.shape[0]))


# ---- index maps ---------------------------------------------------------------------------------

def _index_rows(ids: torch.Tensor) -> torch.Tensor:
    """The row of each slot in the stable order (expert, token, k); -1 for negative ids."""
    flat = ids.reshape(-1).to(torch.int64)
    order = torch.argsort(torch.where(flat < 0, torch.iinfo(torch.int64).max, flat), stable=True)
    rows = torch.empty_like(order).scatter_(0, order, torch.arange(flat.numel(), device=ids.device))
    return torch.where(flat < 0, -1, rows).view(ids.shape)


# ---- mask maps ----------------------------------------------------------------------------------

def _mask_rows(mask: torch.Tensor) -> torch.Tensor:
    """The row of each (token, expert) in expert order; -1 where the mask is 0."""
    chosen = mask.t().reshape(-1) != 0
    rows = torch.where(chosen, chosen.cumsum(0) - 1, -1)
    return rows.view(mask.shape[1], mask.shape[0]).t()


def _to_map(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[tokens, 2 * experts + 1] int32: rows in descending order, their experts, and how many there are: at most width."""
    if rows.numel() > torch.iinfo(torch.int32).max and int(rows.max()) > torch.iinfo(torch.int32).max:
        raise InvalidArgumentError(f"[permutation] row {int(rows.max())} does not fit the int32 of a row_id_map: use "
                                   "moe64.plan")
    ordered, experts = rows.sort(dim=1, descending=True, stable=True)
    made = torch.cat((ordered, torch.where(ordered >= 0, experts, -1), (rows >= 0).sum(1, keepdim=True)), dim=1).int()
    made._moe64_width = (width, made._version)  # type: ignore[attr-defined]
    return made


def _from_map(row_id_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and experts [tokens, most per token] of such a map; -1 and 0 beyond a token's count."""
    experts = (row_id_map.shape[1] - 1) // 2
    counts = row_id_map[:, 2 * experts:].to(torch.int64)
    most, version = getattr(row_id_map, "_moe64_width", (0, None))
    if version is None or version != row_id_map._version:
        most = int(counts.max()) if counts.numel() else 0
    there = torch.arange(most, device=row_id_map.device) < counts
    return (torch.where(there, row_id_map[:, :most].to(torch.int64), -1),
            torch.where(there, row_id_map[:, experts: experts + most].to(torch.int64), 0))


def _compact(rows: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, experts] as [tokens, most per token]: experts that nobody of a token chose take no slot."""
    most = int((rows >= 0).sum(1).max()) if rows.numel() else 0
    return rows.sort(dim=1, descending=True).values[:, :most]


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
    """
    _check(inp, routing_map, map_type)
    if map_type == "index":
        rows, count = _limited(_index_rows(routing_map), num_out_tokens)
        return _rows_of(inp, rows, count), rows.t().reshape(-1).int()
    rows, count = _limited(_mask_rows(routing_map), num_out_tokens)
    compact = _compact(rows)
    return _rows_of(inp, compact, count), _to_map(rows, compact.shape[1])


def _permuted_probs(probs: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """probs [tokens, experts] in the order of rows; 0 for rows that no slot has."""
    flat = rows.reshape(-1)
    slot = torch.full((count + 1,), flat.numel(), dtype=torch.int64, device=rows.device)
    slot = slot.scatter(0, torch.where(flat >= 0, flat, count), torch.arange(flat.numel(), device=rows.device))[:-1]
    return torch.nn.functional.pad(probs.reshape(-1), (0, 1))[slot]


def moe_permute_with_probs(inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor,
                           num_out_tokens: int = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """moe_permute of a mask, and probs [tokens, experts] moved along: (rows, their probs, row_id_map)."""
    _check(inp, routing_map, "mask")
    rows, count = _limited(_mask_rows(routing_map), num_out_tokens)
    compact = _compact(rows)
    return (_rows_of(inp, compact, count), _permuted_probs(probs, rows, count), _to_map(rows, compact.shape[1]))


def moe_permute_and_pad_with_probs(
        inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor, tokens_per_expert: torch.Tensor,
        align_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The same with each expert's rows padded by zeros to a multiple of align_size.

    Answers (rows, their probs, row_id_map, pad_offsets or None, rows per expert); row_id_map counts without padding.
    tokens_per_expert must be what the mask says: a count that disagrees is refused.
    """
    _check(inp, routing_map, "mask")
    if align_size < 1:
        raise InvalidArgumentError(f"[moe_permute_and_pad_with_probs] align_size is {align_size}")
    counts = (routing_map != 0).sum(0)
    if tokens_per_expert.shape != counts.shape or not torch.equal(tokens_per_expert.to(counts), counts):
        raise InvalidArgumentError(f"[moe_permute_and_pad_with_probs] tokens_per_expert is {tokens_per_expert.tolist()}, "
                                   f"the routing map has {counts.tolist()}")
    permuted, permuted_probs, row_id_map = moe_permute_with_probs(inp, probs, routing_map)
    target = (counts + align_size - 1) // align_size * align_size
    if torch.equal(target, counts):
        return permuted, permuted_probs, row_id_map, None, target
    offsets = (target - counts).cumsum(0) - (target - counts)
    place = torch.arange(permuted.shape[0], device=inp.device) + offsets.repeat_interleave(counts)
    total = int(target.sum())
    padded = permuted.new_zeros((total, permuted.shape[1])).index_copy(0, place, permuted)
    padded_probs = permuted_probs.new_zeros((total,)).index_copy(0, place, permuted_probs)
    return padded, padded_probs, row_id_map, offsets, target


# ---- unpermute ----------------------------------------------------------------------------------

def moe_unpermute(inp: torch.Tensor, row_id_map: torch.Tensor, merging_probs: torch.Tensor | None = None,
                  restore_shape: "torch.Size | tuple[int, ...] | None" = None, map_type: str = "mask",
                  probs: torch.Tensor | None = None, pad_offsets: torch.Tensor | None = None) -> torch.Tensor:
    """Rows back to tokens: sums of a token's rows, times merging_probs, in float32 and one rounding.

    merging_probs  "index": [tokens, top_k]; "mask": [tokens, experts]; without it rows are added as they are
    restore_shape  [tokens, hidden]; an index map without merging_probs needs it to know top_k, else top_k is 1
    pad_offsets    of moe_permute_and_pad_with_probs
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
        return _merge(inp, row_id_map.reshape(top_k, tokens).t().to(torch.int64), factors)
    if map_type != "mask":
        raise InvalidArgumentError(f"[moe_unpermute] map_type is '{map_type}', neither index nor mask")
    rows, experts = _from_map(row_id_map)
    if restore_shape is not None and tuple(restore_shape) != (rows.shape[0], inp.shape[1]):
        raise ShapeMismatchError(f"[moe_unpermute] restore_shape is {list(restore_shape)}, the map has {rows.shape[0]} tokens "
                                 f"and inp {inp.shape[1]} columns")
    if rows.shape[1] == 0:
        return inp.new_zeros((rows.shape[0], inp.shape[1])) + inp.sum() * 0
    if pad_offsets is not None:
        place = torch.zeros(int((rows >= 0).sum()) + 1, dtype=torch.int64, device=inp.device)
        padded = rows + pad_offsets.to(torch.int64)[experts]
        place = place.scatter(0, torch.where(rows >= 0, rows, place.numel() - 1).reshape(-1), padded.reshape(-1))[:-1]
        inp = inp.index_select(0, place)
    return _merge(inp, rows, None if factors is None else factors.gather(1, experts))


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
    begin = sizes.cumsum(0) - sizes
    moved = sizes[order]
    end = moved.cumsum(0)
    row = torch.arange(rows, device=device)
    chunk = torch.searchsorted(end, row, right=True).clamp(max=sizes.numel() - 1)
    source = begin[order][chunk] + row - (end - moved)[chunk]
    return torch.where(row < end[-1], source, row)


def moe_sort_chunks_by_index(inp: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor) -> torch.Tensor:
    """Chunks of rows, split_sizes [n] long, in the order of sorted_index [n]; chunks may be empty."""
    return inp.index_select(0, _chunk_source(inp.shape[0], split_sizes, sorted_index).to(inp.device))


def moe_sort_chunks_by_index_with_probs(inp: torch.Tensor, probs: torch.Tensor, split_sizes: torch.Tensor,
                                        sorted_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and probs [rows] moved along."""
    source = _chunk_source(inp.shape[0], split_sizes, sorted_index).to(inp.device)
    return inp.index_select(0, source), probs.index_select(0, source)
