"""A layer as torch operators see it: its tensors, each at a place of its own, and a typed description of what they mean.

Every field of `Operands` and `Description` is one argument of the operators, of the same name and in the same order, so that
a compiled graph holds the words and extents themselves: a graph that was compiled for other arguments does not match the
schema and is refused when it is called.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .errors import GradientError, InvalidArgumentError
from .formats import ExpertWeights, Quantized


class Format(NamedTuple):
    """How one stack of matrices is stored; as arguments of an operator FORMAT_SCHEMA."""

    dtype: str        # what bytes stand for; "": the tensor's own type
    scale_dtype: str
    layout: str       # the kind of a Granularity
    block_rows: int
    block_cols: int
    global_divides: bool


FORMAT_SCHEMA = "str dtype, str scale_dtype, str layout, SymInt block_rows, SymInt block_cols, bool global_divides"
PLAIN = Format("", "", "none", 0, 0, False)


def format_of(q: Quantized) -> Format:
    layout = q.layout
    return Format(q.dtype or "", q.scale_dtype or "", layout.kind, layout.block_rows, layout.block_cols, q.global_divides)


def frozen(operation: str, name: str, q: Quantized) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]":
    """Codes and their scales, of which nothing has a gradient."""
    tensors = (q.values, q.scales, q.global_scale)
    if torch.is_grad_enabled():
        for what, tensor in zip(("", ", its scale,", ", its global scale,"), tensors):
            if tensor is not None and tensor.requires_grad:
                raise GradientError(f"[{operation}] {name}{what} requires a gradient, but quantised weights have none: freeze "
                                    "it with requires_grad_(False), or train LoRA; without gradients torch.no_grad() does")
    return tensors


class Operands(NamedTuple):
    """The tensors of a layer; None where it has none. `Any` is a tensor here, its Memory in `_handles`."""

    gate_up: Any               # [experts, parts * inter, hidden], or gate [experts, inter, hidden] of a pair
    gate_up_scales: Any        # the grid of its layout
    gate_up_global_scale: Any  # [experts] float32, or [experts, 2]: of gate and of up
    gate_up_bias: Any          # [experts, parts * inter], or [experts, inter]: of gate
    gate_up_lora_a: Any        # [experts, rank, hidden]
    gate_up_lora_b: Any        # [experts, parts * inter, rank]
    up: Any                    # [experts, inter, hidden] of a pair
    up_scales: Any
    up_global_scale: Any
    up_bias: Any
    down: Any                  # [experts, hidden, inter]
    down_scales: Any
    down_global_scale: Any
    down_bias: Any             # [experts, hidden]
    down_lora_a: Any           # [experts, rank, inter]
    down_lora_b: Any           # [experts, hidden, rank]


class Description(NamedTuple):
    """What an ExpertWeights says and no tensor does. Strings are the words of the Python API; a compiled graph may leave
    integers open."""

    gate_up_dtype: str            # the fields of a Format
    gate_up_scale_dtype: str
    gate_up_layout: str
    gate_up_block_rows: int
    gate_up_block_cols: int
    gate_up_global_divides: bool
    gate_up_lora_scaling: float
    down_dtype: str
    down_scale_dtype: str
    down_layout: str
    down_block_rows: int
    down_block_cols: int
    down_global_divides: bool
    down_lora_scaling: float
    interleaved: bool
    activation: str
    alpha: float
    limit: float
    mode: str
    scheme: str
    weight_on: str
    experts_total: int
    first_expert: int
    implementation: str           # "": the library's choice


# Both as arguments of an operator.
SCHEMA = (
    "Tensor gate_up, Tensor? gate_up_scales, Tensor? gate_up_global_scale, Tensor? gate_up_bias, Tensor? gate_up_lora_a, "
    "Tensor? gate_up_lora_b, Tensor? up, Tensor? up_scales, Tensor? up_global_scale, Tensor? up_bias, Tensor down, "
    "Tensor? down_scales, Tensor? down_global_scale, Tensor? down_bias, Tensor? down_lora_a, Tensor? down_lora_b, "
    "str gate_up_dtype, str gate_up_scale_dtype, str gate_up_layout, SymInt gate_up_block_rows, SymInt gate_up_block_cols, "
    "bool gate_up_global_divides, float gate_up_lora_scaling, str down_dtype, str down_scale_dtype, str down_layout, "
    "SymInt down_block_rows, SymInt down_block_cols, bool down_global_divides, float down_lora_scaling, bool interleaved, "
    "str activation, float alpha, float limit, str mode, str scheme, str weight_on, SymInt experts_total, "
    "SymInt first_expert, str implementation")
OPERANDS = len(Operands._fields)


def from_arguments(arguments: tuple) -> tuple[Operands, Description]:
    """What an operator got for SCHEMA."""
    return Operands(*arguments[:OPERANDS]), Description(*arguments[OPERANDS:])


_Stack = tuple[Any, Any, Any]  # values, scales, global scale
_ABSENT: _Stack = (None, None, None)


def _matrix(given: object, name: str) -> tuple[_Stack, Format]:
    """The tensors of one stack of matrices, and its format."""
    if isinstance(given, Quantized):
        return frozen("experts", name, given), format_of(given)
    if isinstance(given, torch.Tensor):
        return (given, None, None), PLAIN
    raise InvalidArgumentError(f"[experts] {name} is a {type(given).__name__}, neither a tensor nor a Quantized")


def describe(weights: ExpertWeights) -> tuple[Operands, Description]:
    """The tensors of a layer and what they mean. torch.compile traces this function: it looks nothing up."""
    first, second = weights.gate_up, weights.down
    gate_up, up = first.weights if isinstance(first.weights, (tuple, list)) else (first.weights, None)
    bias, up_bias = first.bias if isinstance(first.bias, (tuple, list)) else (first.bias, None)
    gate_up_tensors, gate_up_format = _matrix(gate_up, "gate_up")
    down_tensors, down_format = _matrix(second.weights, "down")
    up_tensors = _ABSENT
    if up is not None:
        up_tensors, up_format = _matrix(up, "up")
        if up_format != gate_up_format:
            raise InvalidArgumentError("[experts] gate and up are stored differently")
    elif up_bias is not None:
        raise InvalidArgumentError("[experts] gate_up is one stack, and its bias a pair: they have one form")
    a, b, scaling = (None, None, 0.0) if first.lora is None else (first.lora.a, first.lora.b, first.lora.scaling)
    down_a, down_b, down_scaling = ((None, None, 0.0) if second.lora is None
                                    else (second.lora.a, second.lora.b, second.lora.scaling))
    act = weights.activation
    return (Operands(*gate_up_tensors, bias, a, b, *up_tensors, up_bias, *down_tensors, second.bias, down_a, down_b),
            Description(*gate_up_format, scaling, *down_format, down_scaling, weights.interleaved, act.kind, act.alpha,
                        act.limit, weights.mode, weights.scheme, weights.weight_on, weights.experts_total,
                        weights.first_expert, weights.implementation or ""))
