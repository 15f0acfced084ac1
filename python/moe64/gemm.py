"""grouped_gemm: every row times the matrix of its expert, from plain or quantised weights."""

from __future__ import annotations

from typing import Any

import torch

from . import _c
from ._description import FORMAT_SCHEMA, PLAIN, Format, format_of, frozen
from ._handles import matrix_of
from ._library import library
from ._torch import bytes_on, memory_of, operator, refuse_transforms, stream_of, view, workspace
from .errors import ShapeMismatchError
from .formats import Quantized
from .routing import RoutingPlan

__all__ = ["grouped_gemm"]


@operator("grouped_gemm",
          "(Tensor x, Tensor values, Tensor? scales, Tensor? global_scale, Tensor? bias, Tensor "
          f"expert_begin, bool transpose, {FORMAT_SCHEMA}) -> Tensor")
def _grouped_gemm(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor | None, global_scale: torch.Tensor | None,
                  bias: torch.Tensor | None, expert_begin: torch.Tensor, transpose: bool, *form: Any) -> torch.Tensor:
    packed = 2 if Format(*form).dtype in ("int4", "fp4") else 1
    y = torch.zeros((x.shape[0], values.shape[2] * packed if transpose else values.shape[1]), dtype=x.dtype,
                    device=x.device)
    matrix = matrix_of("weights", Format(*form), *(t if t is None else memory_of(t) for t in (values, scales, global_scale)))
    scratch = bytes_on(_c.GROUPED_GEMM_SCRATCH_BYTES, x.device) if x.is_cuda else None  # no CPU kernel uses it
    lib = library()
    stack = lib.make("weights_single", matrix)
    try:
        args = _c.GroupedGemmArgs(x=_c.Quantized(view(x, "x")), weights=stack,
                                  expert_begin=view(expert_begin, "expert_begin"), transpose=int(transpose),
                                  y=view(y, "y"), scratch=workspace(scratch))
        args.bias[0] = view(bias, "bias")
        args.low_rank.scaling = 1.0
        lib.call("grouped_gemm", args, stream_of(x))
    finally:
        lib.weights_destroy(stack)
    return y


@_grouped_gemm.register_fake
def _(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor | None, global_scale: torch.Tensor | None,
      bias: torch.Tensor | None, expert_begin: torch.Tensor, transpose: bool, *form: Any) -> torch.Tensor:
    packed = 2 if Format(*form).dtype in ("int4", "fp4") else 1
    return x.new_empty((x.shape[0], values.shape[2] * packed if transpose else values.shape[1]))


@operator("grouped_gemm_wgrad",
          "(Tensor dy, Tensor x, Tensor expert_begin, Tensor weights, Tensor? bias) -> (Tensor, Tensor)")
def _wgrad(dy: torch.Tensor, x: torch.Tensor, expert_begin: torch.Tensor, weights: torch.Tensor,
           bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    d_weights = torch.empty_like(weights)
    d_bias = weights.new_empty((0,)) if bias is None else torch.empty_like(bias)
    args = _c.GroupedGemmWgradArgs(dy=view(dy, "dy"), x=view(x, "x"), expert_begin=view(expert_begin, "expert_begin"),
                                   scaling=1.0, parts=1)
    args.d_weights[0] = view(d_weights, "d_weights")
    if bias is not None:
        args.d_bias[0] = view(d_bias, "d_bias")
    library().call("grouped_gemm_wgrad", args, stream_of(x))
    return d_weights, d_bias


@_wgrad.register_fake
def _(dy: torch.Tensor, x: torch.Tensor, expert_begin: torch.Tensor, weights: torch.Tensor,
      bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(weights), weights.new_empty((0,)) if bias is None else torch.empty_like(bias)


def _context(ctx, inputs, output) -> None:
    x, values, scales, global_scale, bias, expert_begin, ctx.transpose, *ctx.form = inputs
    ctx.optional = [scales is not None, global_scale is not None, bias is not None]
    ctx.save_for_backward(x, values, expert_begin, *(t for t in (scales, global_scale, bias) if t is not None))


def _gradient(ctx, dy: torch.Tensor):
    x, values, expert_begin, *rest = ctx.saved_tensors
    scales, global_scale, bias = (rest.pop(0) if there else None for there in ctx.optional)
    dx = d_values = d_bias = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.moe64.grouped_gemm(dy, values, scales, global_scale, None, expert_begin, not ctx.transpose,
                                          *ctx.form)
    if ctx.needs_input_grad[1] or (bias is not None and ctx.needs_input_grad[4]):
        left, right = (x, dy) if ctx.transpose else (dy, x)
        like = values if scales is None else values.new_empty(values.shape, dtype=dy.dtype)
        d_values, d_bias = torch.ops.moe64.grouped_gemm_wgrad(left, right, expert_begin, like, bias)
    return (dx, d_values if ctx.needs_input_grad[1] else None, None, None,
            d_bias if bias is not None and ctx.needs_input_grad[4] else None, None, None, *[None] * len(ctx.form))


_grouped_gemm.register_autograd(_gradient, setup_context=_context)


def grouped_gemm(x: torch.Tensor, weights: "torch.Tensor | Quantized", plan: "RoutingPlan | torch.Tensor", *,
                 bias: torch.Tensor | None = None, transpose: bool = False) -> torch.Tensor:
    """y[r] = x[r] W(e)^T + bias(e) for every row r of expert e; with transpose y[r] = x[r] W(e).

    x        [rows, in] float32, bfloat16, float16
    weights  [experts, out, in] plain or Quantized; quantised ones are dequantised inside the product
    plan     a RoutingPlan, or its expert_begin [experts + 1] int64
    bias     [experts, out], not with transpose

    Rows past expert_begin[experts] are zero. Gradients of x, plain weights and bias.

        >>> p = moe64.plan(ids, experts)
        >>> y = moe64.grouped_gemm(moe64.gather(x, p), weights, p)
    """
    begin = plan.expert_begin if isinstance(plan, RoutingPlan) else plan
    if isinstance(weights, Quantized):
        form, tensors = format_of(weights), frozen("grouped_gemm", "weights", weights)
    else:
        form, tensors = PLAIN, (weights, None, None)
    if tensors[0].dim() != 3 or x.dim() != 2:
        raise ShapeMismatchError(f"[grouped_gemm] x is {list(x.shape)} and weights {list(tensors[0].shape)}, expected "
                                 "[rows, in] and [experts, out, in]")
    refuse_transforms("grouped_gemm", x=x, weights=tensors[0], scales=tensors[1], global_scale=tensors[2], bias=bias)
    return torch.ops.moe64.grouped_gemm(x, *tensors, bias, begin, transpose, *form)
