"""Routing: route (logits to experts), plan (expert ids to rows), gather (tokens to rows), combine (rows to tokens)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import _c
from ._library import library
from ._torch import alone, bytes_on, device_of, operator, refuse_transforms, stream_of, view, workspace
from .errors import DtypeMismatchError, InvalidArgumentError, ShapeMismatchError

__all__ = ["RoutingPlan", "combine", "gather", "plan", "route"]


# ---- route --------------------------------------------------------------------------------------

def _options(score: str, renormalize: bool, scaling: float, groups: int, kept: int, group_by: str) -> _c.RouteOptions:
    return _c.RouteOptions(_c.SCORES[score], int(renormalize), _c.GROUP_SCORES[group_by], 0, scaling, groups, kept)


@operator("route",
          "(Tensor logits, Tensor? bias, SymInt top_k, str score, bool renormalize, float scaling, SymInt "
          "groups, SymInt kept, str group_by) -> (Tensor, Tensor)")
def _route(logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, score: str, renormalize: bool, scaling: float,
           groups: int, kept: int, group_by: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids = logits.new_empty((logits.shape[0], top_k), dtype=torch.int64)
    weights = logits.new_empty((logits.shape[0], top_k), dtype=torch.float32)
    args = _c.RouteArgs(logits=view(logits, "logits"), selection_bias=view(bias, "selection_bias"),
                        options=_options(score, renormalize, scaling, groups, kept, group_by),
                        expert_ids=view(ids, "expert_ids"), weights=view(weights, "weights"))
    library().call("route", args, stream_of(logits))
    return weights, ids


@_route.register_fake
def _(logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, score: str, renormalize: bool, scaling: float,
      groups: int, kept: int, group_by: str) -> tuple[torch.Tensor, torch.Tensor]:
    return (logits.new_empty((logits.shape[0], top_k), dtype=torch.float32),
            logits.new_empty((logits.shape[0], top_k), dtype=torch.int64))


@operator("route_backward",
          "(Tensor logits, Tensor ids, Tensor d_weights, str score, bool renormalize, float scaling, SymInt "
          "groups, SymInt kept, str group_by) -> Tensor")
def _route_backward(logits: torch.Tensor, ids: torch.Tensor, d_weights: torch.Tensor, score: str, renormalize: bool,
                    scaling: float, groups: int, kept: int, group_by: str) -> torch.Tensor:
    d_logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    args = _c.RouteBackwardArgs(logits=view(logits, "logits"),
                                options=_options(score, renormalize, scaling, groups, kept, group_by),
                                expert_ids=view(ids, "expert_ids"), d_weights=view(d_weights, "d_weights"),
                                d_logits=view(d_logits, "d_logits"))
    library().call("route_backward", args, stream_of(logits))
    return d_logits


@_route_backward.register_fake
def _(logits: torch.Tensor, ids: torch.Tensor, d_weights: torch.Tensor, score: str, renormalize: bool, scaling: float,
      groups: int, kept: int, group_by: str) -> torch.Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _route_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.options = inputs[3:]
    ctx.mark_non_differentiable(output[1])


def _route_gradient(ctx, d_weights: torch.Tensor, _ids):
    logits, ids = ctx.saved_tensors
    return torch.ops.moe64.route_backward(logits, ids, d_weights, *ctx.options), *[None] * 8


_route.register_autograd(_route_gradient, setup_context=_route_context)


def route(logits: torch.Tensor, top_k: int, *, score: str = "softmax", renormalize: bool = False, scaling: float = 1.0,
          selection_bias: torch.Tensor | None = None, expert_groups: int = 1, groups_kept: int = 1,
          group_by: str = "top2_sum") -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, experts] to expert ids [tokens, top_k] int64 and weights [tokens, top_k] float32.

    score      "softmax" over all experts (Qwen3, Mixtral with renormalize), "softmax_of_selected" (gpt-oss), "sigmoid"
               (DeepSeek-V3, GLM, MiniMax)
    Choice is by score + selection_bias, best first, ties to the lower id; the weight is the score without the bias.
    The weights are differentiable with respect to the logits.

        >>> ids, weights = moe64.route(logits, 8, score="sigmoid", renormalize=True, selection_bias=bias)
    """
    for what, table, word in (("score", _c.SCORES, score), ("group_by", _c.GROUP_SCORES, group_by)):
        if word not in table:
            raise InvalidArgumentError(f"[route] {what} is '{word}', none of {', '.join(table)}")
    if logits.dim() != 2:
        raise ShapeMismatchError(f"[route] logits is {list(logits.shape)}, expected [tokens, experts]")
    refuse_transforms("route", logits=logits)
    weights, ids = torch.ops.moe64.route(logits, selection_bias, top_k, score, renormalize, float(scaling),
                                         expert_groups, groups_kept, group_by)
    return ids, weights


# ---- plan ---------------------------------------------------------------------------------------

@dataclass
class RoutingPlan:
    """Which token goes to which expert, in the order (expert, token, k).

    expert_begin  [experts + 1] int64: the rows of expert e are [expert_begin[e], expert_begin[e + 1])
    row_to_slot   [tokens * top_k] int64, slot = token * top_k + k; entries past the last row are -1
    slot_to_row   [tokens * top_k] int64; -1: this slot has no row
    slot_weight   [tokens * top_k] float32; 0 for a slot without a row
    status        [6] int64: kept, skipped, elsewhere, dropped, invalid, first_invalid
    live          the number of rows if the host knows it of a plan on a GPU, else None: gather then fills all of its
                  output with zeros first, because the rows behind the last one shall be zero

        >>> moe64.plan(torch.tensor([[1, 0], [0, -1]]), experts=2).slot_to_row.tolist()
        [2, 0, 1, -1]
    """

    tokens: int
    top_k: int
    experts: int
    expert_begin: torch.Tensor
    row_to_slot: torch.Tensor
    slot_to_row: torch.Tensor
    slot_weight: torch.Tensor
    status: torch.Tensor
    live: int | None = None

    def counts(self) -> dict[str, int]:
        """The status by name. On a GPU this waits for the device."""
        names = ("kept", "skipped", "elsewhere", "dropped", "invalid", "first_invalid")
        return dict(zip(names, self.status.tolist()))

    def arrays(self) -> list[torch.Tensor]:
        return [self.expert_begin, self.row_to_slot, self.slot_to_row, self.slot_weight, self.status]


def _plan_arrays(like: torch.Tensor, slots: int, experts: int) -> tuple[torch.Tensor, ...]:
    def made(count: int) -> torch.Tensor:
        return like.new_full((count,), -1, dtype=torch.int64)
    return made(experts + 1), made(slots), made(slots), made(_c.PLAN_STATUS_COUNT)


def _plan_struct(arrays: list[torch.Tensor], tokens: int, top_k: int) -> _c.RoutingPlan:
    names = ("expert_begin", "row_to_slot", "slot_to_row", "slot_weight", "status")
    return _c.RoutingPlan(tokens, top_k, arrays[0].shape[0] - 1,
                          *(view(array, "plan." + name) for name, array in zip(names, arrays)))


@operator("plan",
          "(Tensor ids, bool masked, SymInt experts_total, SymInt first_expert, SymInt experts, SymInt "
          "capacity) -> (Tensor, Tensor, Tensor, Tensor)")
def _plan(ids: torch.Tensor, masked: bool, experts_total: int, first_expert: int, experts: int,
          capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _run_plan(ids, masked, experts_total, first_expert, experts, capacity)


def _run_plan(ids: torch.Tensor, masked: bool, experts_total: int, first_expert: int, experts: int,
              capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens, top_k = ids.shape
    begin, rows, slots, status = _plan_arrays(ids, tokens * top_k, experts)
    weight = ids.new_empty((tokens * top_k,), dtype=torch.float32)
    scratch = bytes_on(library().ask("plan_scratch_bytes", tokens, top_k, experts, device_of(ids)), ids.device)
    args = _c.PlanArgs(experts_total=experts_total, first_expert=first_expert, capacity=capacity,
                       plan=_plan_struct([begin, rows, slots, weight, status], tokens, top_k),
                       scratch=workspace(scratch))
    setattr(args, "expert_mask" if masked else "expert_ids", view(ids, "expert_mask" if masked else "expert_ids"))
    library().call("plan", args, stream_of(ids))
    return begin, rows, slots, status


@_plan.register_fake
def _(ids: torch.Tensor, masked: bool, experts_total: int, first_expert: int, experts: int,
      capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    slots = ids.shape[0] * ids.shape[1]
    return tuple(ids.new_empty((n,), dtype=torch.int64)  # type: ignore[return-value]
                 for n in (experts + 1, slots, slots, _c.PLAN_STATUS_COUNT))


def plan(expert_ids: torch.Tensor, experts: int, weights: torch.Tensor | None = None, *, capacity: int = -1,
         experts_total: int | None = None, first_expert: int = 0, mask: bool = False) -> RoutingPlan:
    """Expert ids to a routing plan.

    expert_ids     [tokens, top_k] int32 or int64, -1 and experts_total mean "no expert here"; with mask=True
                   [tokens, experts_total] bool or uint8, non-zero where chosen
    experts        experts that this plan serves
    weights        [tokens, top_k], differentiable; None: every weight is 1
    capacity       most rows per expert, later slots are dropped and counted; -1: no limit
    experts_total  ids are below it; the plan serves [first_expert, first_expert + experts) of them

        >>> p = moe64.plan(torch.tensor([[0, 2], [1, -1]]), experts=3)
        >>> p.counts()["kept"], p.expert_begin.tolist()
        (3, [0, 1, 2, 3])
    """
    if expert_ids.dim() != 2:
        raise ShapeMismatchError(f"[plan] expert_ids is {list(expert_ids.shape)}, expected two dimensions")
    if mask and expert_ids.dtype not in (torch.bool, torch.uint8):
        raise DtypeMismatchError(f"[plan] the mask is {expert_ids.dtype}, not bool or uint8")
    if weights is not None and weights.shape != expert_ids.shape:
        raise ShapeMismatchError(f"[plan] weights is {list(weights.shape)}, expert_ids {list(expert_ids.shape)}")
    begin, rows, slots, status = (_run_plan if alone(expert_ids) else torch.ops.moe64.plan)(
        expert_ids, mask, experts if experts_total is None else experts_total, first_expert, experts, capacity)
    if weights is None:
        slot_weight = (slots >= 0).to(torch.float32)
    else:
        slot_weight = torch.where(slots >= 0, weights.reshape(-1).to(torch.float32), 0.0)
    return RoutingPlan(expert_ids.shape[0], expert_ids.shape[1], experts, begin, rows, slots, slot_weight, status)


# ---- gather and combine -------------------------------------------------------------------------

@operator("gather", "(Tensor x, Tensor[] plan, SymInt top_k, bool weighted, SymInt live) -> Tensor")
def _gather(x: torch.Tensor, plan: list[torch.Tensor], top_k: int, weighted: bool, live: int) -> torch.Tensor:
    return _run_gather(x, plan, top_k, weighted, live)


def _run_gather(x: torch.Tensor, plan: list[torch.Tensor], top_k: int, weighted: bool, live: int) -> torch.Tensor:
    """live: the number of rows, or -1 where only the device knows it."""
    shape = (x.shape[0] * top_k, x.shape[1])
    if x.is_cpu and plan[0].is_cpu:
        live = int(plan[0][-1])
    rows = (torch.zeros if live < 0 else torch.empty)(shape, dtype=x.dtype, device=x.device)
    args = _c.GatherArgs(x=view(x, "x"), plan=_plan_struct(plan, x.shape[0], top_k), weighted=int(weighted),
                         rows=view(rows, "rows"))
    library().call("gather", args, stream_of(x))
    if 0 <= live < shape[0]:
        rows[live:].zero_()
    return rows


@_gather.register_fake
def _(x: torch.Tensor, plan: list[torch.Tensor], top_k: int, weighted: bool, live: int) -> torch.Tensor:
    return x.new_empty((x.shape[0] * top_k, x.shape[1]))


@operator("combine",
          "(Tensor rows, Tensor[] plan, SymInt tokens, SymInt top_k, bool weighted, SymInt live) -> Tensor")
def _combine(rows: torch.Tensor, plan: list[torch.Tensor], tokens: int, top_k: int, weighted: bool,
             live: int) -> torch.Tensor:  # live: for the gradient
    return _run_combine(rows, plan, tokens, top_k, weighted, live)


def _run_combine(rows: torch.Tensor, plan: list[torch.Tensor], tokens: int, top_k: int, weighted: bool,
                 _live: int) -> torch.Tensor:
    y = torch.empty((tokens, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    args = _c.CombineArgs(rows=_c.Quantized(view(rows, "rows")), plan=_plan_struct(plan, tokens, top_k),
                          weighted=int(weighted), y=view(y, "y"))
    library().call("combine", args, stream_of(rows))
    return y


@_combine.register_fake
def _(rows: torch.Tensor, plan: list[torch.Tensor], tokens: int, top_k: int, weighted: bool, live: int) -> torch.Tensor:
    return rows.new_empty((tokens, rows.shape[1]))


@operator("slot_weight_gradient", "(Tensor left, Tensor right, Tensor[] plan, SymInt tokens, SymInt top_k) -> Tensor")
def _slot_weight_gradient(left: torch.Tensor, right: torch.Tensor, plan: list[torch.Tensor], tokens: int,
                          top_k: int) -> torch.Tensor:
    return _run_slot_weight_gradient(left, right, plan, tokens, top_k)


def _run_slot_weight_gradient(left: torch.Tensor, right: torch.Tensor, plan: list[torch.Tensor], tokens: int,
                              top_k: int) -> torch.Tensor:
    grad = left.new_empty((tokens, top_k), dtype=torch.float32)
    args = _c.SlotWeightGradientArgs(left=view(left, "left"), right=view(right, "right"),
                                     plan=_plan_struct(plan, tokens, top_k), d_weights=view(grad, "d_weights"))
    library().call("slot_weight_gradient", args, stream_of(left))
    return grad.view(-1)


@_slot_weight_gradient.register_fake
def _(left: torch.Tensor, right: torch.Tensor, plan: list[torch.Tensor], tokens: int, top_k: int) -> torch.Tensor:
    return left.new_empty((plan[2].shape[0],), dtype=torch.float32)


def _gather_context(ctx, inputs, output) -> None:
    x, plan, ctx.top_k, ctx.weighted, ctx.live = inputs
    ctx.save_for_backward(x, *plan)


def _combine_context(ctx, inputs, output) -> None:
    rows, plan, ctx.tokens, ctx.top_k, ctx.weighted, ctx.live = inputs
    ctx.save_for_backward(rows, *plan)


def _gather_gradient(ctx, d_rows: torch.Tensor):
    x, *plan = ctx.saved_tensors
    dx = torch.ops.moe64.combine(d_rows, plan, x.shape[0], ctx.top_k, ctx.weighted, ctx.live)
    weight = None
    if ctx.weighted:
        plain = torch.ops.moe64.gather(x, plan, ctx.top_k, False, ctx.live)
        weight = torch.ops.moe64.slot_weight_gradient(d_rows, plain, plan, x.shape[0], ctx.top_k)
    return dx, [None, None, None, weight, None], None, None, None


def _combine_gradient(ctx, dy: torch.Tensor):
    rows, *plan = ctx.saved_tensors
    d_rows = torch.ops.moe64.gather(dy, plan, ctx.top_k, ctx.weighted, ctx.live)
    weight = None
    if ctx.weighted:
        plain = torch.ops.moe64.gather(dy, plan, ctx.top_k, False, ctx.live)
        weight = torch.ops.moe64.slot_weight_gradient(rows, plain, plan, ctx.tokens, ctx.top_k)
    return d_rows, [None, None, None, weight, None], None, None, None, None


_gather.register_autograd(_gather_gradient, setup_context=_gather_context)
_combine.register_autograd(_combine_gradient, setup_context=_combine_context)


def _calls() -> tuple[Any, Any, Any]:
    """What moves rows in a backward: operators, which have gradients themselves, where a graph of it is recorded."""
    if torch.is_grad_enabled():
        return torch.ops.moe64.gather, torch.ops.moe64.combine, torch.ops.moe64.slot_weight_gradient
    return _run_gather, _run_combine, _run_slot_weight_gradient


class _EagerGather(torch.autograd.Function):
    """The operator gather and its gradient without PyTorch's dispatch of operators."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, top_k: int, weighted: bool, live: int, *plan: torch.Tensor) -> torch.Tensor:
        ctx.tokens, ctx.top_k, ctx.weighted, ctx.live = x.shape[0], top_k, weighted, live
        ctx.save_for_backward(*plan, *([x] if weighted else []))
        return _run_gather(x, list(plan), top_k, weighted, live)

    @staticmethod
    def backward(ctx, d_rows: torch.Tensor):  # type: ignore[override]
        plan, rest = list(ctx.saved_tensors[:5]), ctx.saved_tensors[5:]
        gathered, combined, slot_weight_gradient = _calls()
        dx = combined(d_rows, plan, ctx.tokens, ctx.top_k, ctx.weighted, ctx.live) if ctx.needs_input_grad[0] else None
        weight = None
        if ctx.weighted and ctx.needs_input_grad[7]:
            plain = gathered(rest[0], plan, ctx.top_k, False, ctx.live)
            weight = slot_weight_gradient(d_rows, plain, plan, ctx.tokens, ctx.top_k)
        return dx, None, None, None, None, None, None, weight, None


class _EagerCombine(torch.autograd.Function):
    """The operator combine and its gradient, likewise."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, tokens: int, top_k: int, weighted: bool, live: int,
                *plan: torch.Tensor) -> torch.Tensor:
        ctx.tokens, ctx.top_k, ctx.weighted, ctx.live = tokens, top_k, weighted, live
        ctx.save_for_backward(*plan, *([rows] if weighted else []))
        return _run_combine(rows, list(plan), tokens, top_k, weighted, live)

    @staticmethod
    def backward(ctx, dy: torch.Tensor):  # type: ignore[override]
        plan, rest = list(ctx.saved_tensors[:5]), ctx.saved_tensors[5:]
        gathered, _, slot_weight_gradient = _calls()
        d_rows = gathered(dy, plan, ctx.top_k, ctx.weighted, ctx.live) if ctx.needs_input_grad[0] else None
        weight = None
        if ctx.weighted and ctx.needs_input_grad[8]:
            plain = gathered(dy, plan, ctx.top_k, False, ctx.live)
            weight = slot_weight_gradient(rest[0], plain, plan, ctx.tokens, ctx.top_k)
        return d_rows, None, None, None, None, None, None, None, weight, None


def _known(plan: RoutingPlan) -> int:
    return -1 if plan.live is None else plan.live


def gather(x: torch.Tensor, plan: RoutingPlan, *, weighted: bool = False) -> torch.Tensor:
    """rows[r] = x[token of row r], times the slot's weight if `weighted`: [tokens * top_k, hidden].

    Plain types and bytes; codes are refused, because their scales would have to move along. Rows past the last one are
    zero. Differentiable: its gradient is combine.

        >>> p = moe64.plan(torch.tensor([[1, 0], [0, -1]]), experts=2)
        >>> moe64.gather(torch.tensor([[1.0], [2.0]]), p).flatten().tolist()
        [1.0, 2.0, 1.0, 0.0]
    """
    if x.dim() != 2 or x.shape[0] != plan.tokens:
        raise ShapeMismatchError(f"[gather] x is {list(x.shape)}, expected [{plan.tokens}, hidden]")
    refuse_transforms("gather", x=x, slot_weight=plan.slot_weight)
    if alone(x):
        return _EagerGather.apply(x, plan.top_k, weighted, _known(plan), *plan.arrays())
    return torch.ops.moe64.gather(x, plan.arrays(), plan.top_k, weighted, _known(plan))


def combine(rows: torch.Tensor, plan: RoutingPlan, *, weighted: bool = True) -> torch.Tensor:
    """y[token] = sum over k of the slot's row, times its weight if `weighted`: float32 sums in slot order, one rounding.

    A slot without a row adds nothing; a token without rows becomes zero. Differentiable: its gradient is gather.

        >>> p = moe64.plan(torch.tensor([[1, 0], [0, -1]]), experts=2, weights=torch.full((2, 2), 0.5))
        >>> moe64.combine(torch.tensor([[1.0], [2.0], [3.0], [9.0]]), p).flatten().tolist()
        [2.0, 1.0]
    """
    if rows.dim() != 2 or rows.shape[0] != plan.tokens * plan.top_k:
        raise ShapeMismatchError(f"[combine] rows is {list(rows.shape)}, expected [{plan.tokens * plan.top_k}, hidden]")
    refuse_transforms("combine", rows=rows, slot_weight=plan.slot_weight)
    if alone(rows):
        return _EagerCombine.apply(rows, plan.tokens, plan.top_k, weighted, _known(plan), *plan.arrays())
    return torch.ops.moe64.combine(rows, plan.arrays(), plan.tokens, plan.top_k, weighted, _known(plan))
