"""Maps of TransformerEngine as plans of moe64, and rows that are moved by them."""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from ..errors import InvalidArgumentError
from ..routing import RoutingPlan, combine, gather


def on_host(tensor: torch.Tensor) -> bool:
    """Whether looking at values costs nothing."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def _plan(rows: torch.Tensor, begin: torch.Tensor, row_to_slot: torch.Tensor, live: int | None,
          factors: torch.Tensor | None = None) -> RoutingPlan:
    """A plan of one expert from rows [tokens, top_k] int64, below 0 for none. What moves rows looks neither at weights of
    slots without a row nor at the status."""
    weight = rows.new_empty(rows.numel(), dtype=torch.float32) if factors is None else factors.reshape(-1).float()
    return RoutingPlan(rows.shape[0], rows.shape[1], 1, begin, row_to_slot, rows.reshape(-1), weight, rows.new_empty(6), live)


def _begin(rows: torch.Tensor, live: int | None) -> torch.Tensor:
    begin = rows.new_full((2,), 0 if live is None else live)
    if live is None:
        begin[1:] = (rows >= 0).sum()
    else:
        begin[:1].zero_()
    return begin


def inverse(rows: torch.Tensor) -> torch.Tensor:
    """The slot of each row; 0 for rows that no slot has."""
    flat = rows.reshape(-1)
    count = flat.numel()
    places = torch.where(flat >= 0, flat, count)
    return flat.new_zeros(count + 1).scatter_(0, places, torch.arange(count, device=flat.device))[:-1]


def _check_rows(rows: torch.Tensor) -> None:
    kept, largest = int((rows >= 0).sum()), int(rows.max()) if rows.numel() else -1
    if kept and largest != kept - 1:
        raise InvalidArgumentError(f"[permutation] the map has {kept} rows but the largest is {largest}: some rows are "
                                   "missing or named twice")
    if kept and rows[rows >= 0].unique().numel() != kept:
        raise InvalidArgumentError("[permutation] the map names a row twice")


def as_bytes(inp: torch.Tensor) -> torch.Tensor:
    """Codes are moved as bytes; scales of rows move by the same call."""
    return inp.view(torch.uint8) if inp.element_size() == 1 and inp.dtype != torch.uint8 else inp


def rows_of(inp: torch.Tensor, plan: RoutingPlan, count: int) -> torch.Tensor:
    moved = gather(as_bytes(inp), plan)
    if count < moved.shape[0]:
        moved = moved[:count]
    elif count > moved.shape[0]:
        moved = torch.nn.functional.pad(moved, (0, 0, 0, count - moved.shape[0]))
    return moved.view(inp.dtype) if moved.dtype != inp.dtype else moved


def merge(inp: torch.Tensor, rows: torch.Tensor, factors: torch.Tensor | None, live: int | None) -> torch.Tensor:
    """y[t] = sum over k of factor * inp[row]; rows that inp does not have count as none."""
    slots = rows.numel()
    limit = min(inp.shape[0], slots)
    rows = rows.masked_fill(rows >= limit, -1)
    if on_host(rows):
        _check_rows(rows)
    if inp.shape[0] < slots:
        inp = torch.nn.functional.pad(inp, (0, 0, 0, slots - limit))
    elif inp.shape[0] > slots:
        inp = inp[:slots]
    trained = torch.is_grad_enabled() and (inp.requires_grad or (factors is not None and factors.requires_grad))
    known = None if live is None else min(live, limit)
    row_to_slot = inverse(rows) if trained else rows.new_empty(slots)  # for the gradient, which is a gather
    return combine(inp, _plan(rows, _begin(rows, known), row_to_slot, known, factors), weighted=factors is not None)


# ---- index maps ---------------------------------------------------------------------------------

def index_plan(ids: torch.Tensor, wanted: int) -> tuple[RoutingPlan, int]:
    """The stable order (expert, token, k) without negative ids, and how many rows the output has."""
    flat = ids.reshape(-1)
    if flat.dtype not in (torch.int32, torch.int64):
        flat = flat.to(torch.int64)
    # With the sign turned over, negative ids are behind all others.
    ordered, order = torch.sort(flat ^ torch.iinfo(flat.dtype).min, stable=True)
    rows = torch.empty_like(order).scatter_(0, order, torch.arange(flat.numel(), device=flat.device))
    limits = ordered.new_full((2,), torch.iinfo(flat.dtype).min)
    limits[1:].zero_()
    begin = torch.searchsorted(ordered, limits)
    rows.masked_fill_(flat < 0, -1)
    if 0 < wanted < flat.numel():
        rows.masked_fill_(rows >= wanted, -1)
        begin.clamp_(max=wanted)
    live = None if wanted > 0 else int(begin[1])
    return _plan(rows.view(ids.shape), begin, order, live), wanted if live is None else live


def k_major(rows: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return torch.empty((shape[1], shape[0]), dtype=torch.int32, device=rows.device).copy_(rows.view(shape).t()).view(-1)


# ---- mask maps ----------------------------------------------------------------------------------

class Mask:
    """A mask [tokens, experts] as TransformerEngine's row_id_map [tokens, 2 * experts + 1] int32: rows in descending
    order, their experts, and how many there are. Rows of a token descend with its experts, so nothing is sorted."""

    def __init__(self, mask: torch.Tensor, wanted: int, *more: torch.Tensor) -> None:
        chosen = mask if mask.dtype == torch.bool else mask != 0
        row = (chosen.t().reshape(-1).cumsum(0) - 1).view(chosen.t().shape).t()
        upto = chosen.cumsum(1)
        self.width, self.live, *self.more = self._read(upto, *more)
        if 0 < wanted < self.live:
            chosen = chosen & (row < wanted)
            upto = chosen.cumsum(1)
            self.width, self.live = self._read(upto)
        self.count = wanted if wanted > 0 else self.live
        if self.live > torch.iinfo(torch.int32).max:
            raise InvalidArgumentError(f"[permutation] row {self.live - 1} does not fit the int32 of a row_id_map: use "
                                       "moe64.plan")
        self.map = self._filled(chosen, row, upto)
        self.map._moe64_width = (self.width, self.live, self.map._version)  # type: ignore[attr-defined]
        self.rows, self.experts = from_map(self.map)

    @staticmethod
    def _read(upto: torch.Tensor, *more: torch.Tensor) -> list[int]:
        """Most rows of a token, all rows, and more counts, by waiting once."""
        counts = upto[:, -1:]
        first = (counts.max(), counts.sum()) if counts.numel() else (upto.new_zeros(()),) * 2
        return torch.stack((*first, *more)).tolist()

    @staticmethod
    def _filled(chosen: torch.Tensor, row: torch.Tensor, upto: torch.Tensor) -> torch.Tensor:
        tokens, experts = chosen.shape
        made = torch.full((tokens, 2 * experts + 1), -1, dtype=torch.int32, device=chosen.device)
        if experts == 0:
            return made.zero_()
        counts = upto[:, -1:]
        place = torch.where(chosen, counts - upto, 2 * experts)  # what is not chosen goes where the count comes later
        made.scatter_(1, place, row.to(torch.int32))
        ids = torch.arange(experts, dtype=torch.int32, device=chosen.device).expand(tokens, experts)
        made.scatter_(1, (place + experts).clamp_(max=2 * experts), ids)
        made[:, 2 * experts:] = counts
        return made

    def plan(self) -> RoutingPlan:
        return _plan(self.rows, _begin(self.rows, self.live), inverse(self.rows), self.live)

    def permuted(self, probs: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
        """probs [tokens, experts] in the order of rows [tokens, width]; 0 for rows that no slot has."""
        places = torch.where(self.rows >= 0, rows, count).reshape(-1)
        return probs.new_zeros(count + 1).scatter(0, places, probs.gather(1, self.experts).reshape(-1))[:-1]


def from_map(row_id_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and experts [tokens, most per token] of such a map; -1 and 0 beyond a token's count."""
    experts = (row_id_map.shape[1] - 1) // 2
    width = remembered(row_id_map)
    if width is not None:
        return (row_id_map[:, :width[0]].to(torch.int64),
                row_id_map[:, experts: experts + width[0]].to(torch.int64).clamp_(min=0))
    counts = row_id_map[:, 2 * experts:]
    most = int(counts.max()) if counts.numel() else 0
    there = torch.arange(most, device=row_id_map.device) < counts
    return (torch.where(there, row_id_map[:, :most], -1).to(torch.int64),
            torch.where(there, row_id_map[:, experts: experts + most], 0).to(torch.int64))


def remembered(row_id_map: torch.Tensor) -> tuple[int, int] | None:
    """Most rows of a token and all rows of a map that was made here and not written since."""
    width, live, version = getattr(row_id_map, "_moe64_width", (0, 0, None))
    return (width, live) if version is not None and version == row_id_map._version else None


# ---- rows by places -----------------------------------------------------------------------------

class PaddedRows(torch.autograd.Function):
    """Row r = inp[source[r]], or zeros where source is the number of tokens; place [rows without padding]: where each of
    those is. The gradient is a sum in a fixed order."""

    @staticmethod
    def forward(ctx, inp: torch.Tensor, source: torch.Tensor, place: torch.Tensor, plan: RoutingPlan) -> torch.Tensor:
        ctx.plan = plan
        ctx.save_for_backward(place)
        return torch.nn.functional.pad(inp, (0, 0, 0, 1)).index_select(0, source)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_rows: torch.Tensor):  # type: ignore[override]
        rows = d_rows.index_select(0, ctx.saved_tensors[0])
        missing = ctx.plan.tokens * ctx.plan.top_k - rows.shape[0]
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
        return combine(rows, ctx.plan, weighted=False), None, None, None


class SomeRows(torch.autograd.Function):
    """inp[places], no place twice."""

    @staticmethod
    def forward(ctx, inp: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.rows = inp.shape[0]
        ctx.save_for_backward(places)
        return inp.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_rows: torch.Tensor):  # type: ignore[override]
        places, = ctx.saved_tensors
        return d_rows.new_zeros((ctx.rows, d_rows.shape[1])).index_copy_(0, places, d_rows), None


class ReorderedRows(torch.autograd.Function):
    """inp[source], source being a permutation: so is the way back."""

    @staticmethod
    def forward(ctx, inp: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(source)
        return inp.index_select(0, source)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_rows: torch.Tensor):  # type: ignore[override]
        source, = ctx.saved_tensors
        back = torch.empty_like(source).scatter_(0, source, torch.arange(source.numel(), device=source.device))
        return d_rows.index_select(0, back), None
