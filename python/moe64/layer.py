"""The whole expert layer: moe64.experts, its torch operators, and their gradients."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, NamedTuple, Sequence

import torch

from . import _c
from ._description import OPERANDS, SCHEMA, Description, Operands, describe, from_arguments
from ._handles import Layer, layer_of, layer_without_memory, per_part
from ._library import library
from ._torch import (
    CPU, FLOATS, _CODES, alone, are_transforms_active, autocast_type, bytes_on, device_of, memory_of, operator,
    refuse_transforms, stream_of, view, view_of, workspace,
)
from .errors import DtypeMismatchError, GradientError, InvalidArgumentError, ShapeMismatchError
from .formats import ExpertWeights, Lora, Projection

__all__ = ["experts", "explain"]


# What forward keeps for backward grows by the same for every so many more tokens: a multiple of all alignments.
_STEP = 64


def _room_for_saved(layer: Layer, tokens: int, top_k: int, dtype: torch.dtype, device: _c.Device) -> int:
    """At least moe64_saved_bytes, of a number of tokens that may be symbolic: as asked of the library for none and for one
    step, with the last step whole. The library refuses less than it needs."""
    none, one = (layer.saved_bytes(count, int(top_k), _CODES[dtype], device) for count in (0, _STEP))
    return none + (tokens + _STEP - 1) // _STEP * (one - none)


class _Prepared(NamedTuple):
    """Forward's arguments for tensors of one form, but for their addresses, and the memory that the library asks for."""

    args: _c.ForwardArgs
    scratch_bytes: int
    saved_bytes: int


def _prepared(layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, keep: bool,
              capacity: int) -> _Prepared:
    key = (x.shape, x.stride(), x.dtype, ids.shape, ids.stride(), ids.dtype, keep, capacity, x.device,
           ids.device, None if weights is None else (weights.stride(), weights.dtype, weights.device))
    found = layer.prepared.get(key)
    if found is None:
        device, (tokens, top_k), io = device_of(x), ids.shape, _CODES[x.dtype]
        scratch = library().ask("forward_bytes", layer.handle, _c.LayerShape(tokens, top_k, io), keep, device)
        saved = layer.saved_bytes(tokens, top_k, io, device) if keep else 0
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        args = _c.ForwardArgs(x=view(x, "x"), expert_ids=view(ids, "top_k_index"),
                              weights=view(weights, "top_k_weights"), capacity=capacity, y=view(y, "y"))
        args.scratch.device = args.saved.device = device
        args.scratch.bytes = scratch
        if len(layer.prepared) >= 64:  # one per shape: serving sees many
            layer.prepared.clear()
        found = layer.prepared[key] = _Prepared(args, scratch, saved)
    return found


def _run_forward(layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int,
                 keep: bool, room: int | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """y and, with `keep`, what backward needs: as many bytes as the library asks for, or `room`."""
    prepared = _prepared(layer, x, ids, weights, keep, capacity)
    args = _c.ForwardArgs.from_buffer_copy(prepared.args)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    scratch = x.new_empty(prepared.scratch_bytes, dtype=torch.uint8)
    saved = None
    args.x.data, args.expert_ids.data, args.y.data = x.data_ptr(), ids.data_ptr(), y.data_ptr()
    args.scratch.data = scratch.data_ptr()
    if weights is not None:
        args.weights.data = weights.data_ptr()
    if keep:
        saved = bytes_on(prepared.saved_bytes if room is None else room, x.device)
        args.saved.data, args.saved.bytes = saved.data_ptr(), saved.numel()
    library().call("forward", layer.handle, args, stream_of(x))
    return y, saved


@operator("experts_forward",
          f"(Tensor x, Tensor ids, Tensor? weights, SymInt capacity, bool keep, {SCHEMA}) -> (Tensor, Tensor)")
def _forward(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int, keep: bool,
             *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    layer = layer_of(*from_arguments(arguments))
    room = _room_for_saved(layer, x.shape[0], ids.shape[1], x.dtype, device_of(x)) if keep else None
    y, saved = _run_forward(layer, x, ids, weights, capacity, keep, room)
    return y, bytes_on(0, x.device) if saved is None else saved


@_forward.register_fake
def _(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int, keep: bool,
      *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    room = 0
    if keep:
        room = _room_for_saved(layer_without_memory(*from_arguments(arguments)), x.shape[0], ids.shape[1], x.dtype, CPU)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty((room,), dtype=torch.uint8)


@operator("experts_backward",
          f"(Tensor x, Tensor dy, Tensor saved, SymInt top_k, int[] wanted, {SCHEMA}) -> Tensor[]")
def _backward(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, top_k: int, wanted: list[int],
              *arguments: Any) -> list[torch.Tensor]:
    return _run_backward(x, dy, saved, top_k, wanted, *from_arguments(arguments))


@_backward.register_fake
def _(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, top_k: int, wanted: list[int],
      *arguments: Any) -> list[torch.Tensor]:
    return _gradients(x, top_k, wanted, Operands(*arguments[:OPERANDS]))


_X, _WEIGHTS = -2, -1  # in `wanted`, which else has places of Operands


def _wanted(x: bool, weights: bool, operands: Sequence[bool]) -> list[int]:
    return [_X] * x + [_WEIGHTS] * weights + [place for place, need in enumerate(operands) if need]


def _gradients(x: torch.Tensor, top_k: int, wanted: list[int], operands: Operands) -> list[torch.Tensor]:
    made = []
    for place in wanted:
        if place == _X:
            made.append(torch.empty(x.shape, dtype=x.dtype, device=x.device))
        elif place == _WEIGHTS:
            made.append(x.new_empty((x.shape[0], top_k), dtype=torch.float32))
        else:
            made.append(torch.empty_like(operands[place]))
    return made


def _run_backward(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, top_k: int, wanted: list[int],
                  operands: Operands, description: Description) -> list[torch.Tensor]:
    """Gradients of what `wanted` names."""
    lib, layer = library(), layer_of(operands, description)
    grads = _gradients(x, top_k, wanted, operands)
    asked, into = _c.LayerGradients(), [None] * OPERANDS
    for place, grad in zip(wanted, grads):
        if place == _X:
            asked.x = view(grad, "dx")
        elif place == _WEIGHTS:
            asked.weights = view(grad, "d_weights")
        else:
            into[place] = memory_of(grad)  # type: ignore[call-overload]
    _ask_for(asked, Operands(*into), description, pair=operands.up is not None)
    shape = _c.LayerShape(x.shape[0], top_k, _CODES[x.dtype])
    scratch = bytes_on(lib.ask("backward_bytes", layer.handle, shape, asked, device_of(x)), x.device)
    args = _c.BackwardArgs(x=view(x, "x"), dy=view(dy, "dy"), top_k=top_k, saved=workspace(saved),
                           scratch=workspace(scratch), gradients=ctypes.pointer(asked))
    lib.call("backward", layer.handle, args, stream_of(x))
    return grads


def _ask_for(asked: _c.LayerGradients, into: Operands, description: Description, pair: bool) -> None:
    """Where the gradients of operands shall be, part by part."""
    for field, suffix in (("weights", ""), ("bias", "_bias"), ("lora_b", "_lora_b")):
        found = {"gate_up": per_part(into, description, suffix, pair), "down": (getattr(into, "down" + suffix),)}
        for name, parts in found.items():
            for part, memory in enumerate(parts):
                if memory is not None:
                    getattr(getattr(asked, name), field)[part] = view_of(memory, f"the gradient of {name}{suffix}")
    asked.gate_up.lora_a = view_of(into.gate_up_lora_a, "the gradient of gate_up_lora_a")
    asked.down.lora_a = view_of(into.down_lora_a, "the gradient of down_lora_a")


def _setup_context(ctx, inputs, output) -> None:
    x, ids, weights, _capacity, ctx.keep, *arguments = inputs
    operands, ctx.description = from_arguments(arguments)
    ctx.top_k, ctx.weights_dtype = ids.shape[1], None if weights is None else weights.dtype
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, output[1], *operands)


def _gradient_of_forward(ctx, dy: torch.Tensor, _: torch.Tensor | None):
    x, saved, *operands = ctx.saved_tensors
    if not ctx.keep:
        raise GradientError("[experts] backward after a forward that kept nothing: call moe64.experts with gradients on")
    needs = ctx.needs_input_grad
    wanted = _wanted(needs[0], needs[2], needs[5:5 + OPERANDS])
    made = torch.ops.moe64.experts_backward(x, dy.to(x.dtype), saved, ctx.top_k, wanted, *operands, *ctx.description)
    found = dict(zip(wanted, made))
    return (found.get(_X), None, _as(found.get(_WEIGHTS), ctx.weights_dtype), None, None,
            *map(found.get, range(OPERANDS)), *[None] * len(ctx.description))


def _as(gradient: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return gradient if gradient is None else gradient.to(dtype)


_forward.register_autograd(_gradient_of_forward, setup_context=_setup_context)


_IDS = (torch.int32, torch.int64)


def _check_call(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None) -> None:
    if x.dim() < 1 or ids.dim() < 1:
        raise ShapeMismatchError(f"[experts] x is {list(x.shape)} and top_k_index {list(ids.shape)}, expected "
                                 "[..., hidden] and [..., top_k]")
    if x.dtype not in FLOATS:
        raise DtypeMismatchError(f"[experts] x is {x.dtype}, not float32, bfloat16 or float16")
    if ids.dtype not in _IDS:
        raise DtypeMismatchError(f"[experts] top_k_index is {ids.dtype}, not int32 or int64")
    if weights is not None and weights.shape != ids.shape:
        raise ShapeMismatchError(f"[experts] top_k_weights is {list(weights.shape)}, top_k_index {list(ids.shape)}")


def experts(x: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor | None, weights: ExpertWeights, *,
            capacity: int = -1) -> torch.Tensor:
    """One expert layer: y[t] = sum over k of weight(t, k) * down(activation(gate_up(x[t]))) of expert index(t, k).

    x              [..., hidden] float32, bfloat16 or float16
    top_k_index    [..., top_k] int32 or int64 with as many tokens as x; -1 and the number of experts mean "no expert"
    top_k_weights  the same shape, float32, bfloat16 or float16; None: every weight is 1
    weights        an ExpertWeights
    capacity       most rows per expert, later slots are dropped; -1: no limit

    The result has the shape and type of x; within torch.autocast x, plain weights and LoRA are multiplied in its type.
    Gradients: x, top_k_weights, biases, LoRA, and plain weights; quantised weights have none, and asking for one raises
    GradientError. Tensors may have any strides.

        >>> weights = moe64.ExpertWeights(torch.randn(4, 2 * 16, 32), torch.randn(4, 32, 16))
        >>> y = moe64.experts(torch.randn(5, 32), torch.randint(0, 4, (5, 2)), torch.rand(5, 2), weights)
    """
    if not isinstance(weights, ExpertWeights):
        raise InvalidArgumentError(f"[experts] weights is a {type(weights).__name__}, not an ExpertWeights")
    _check_call(x, top_k_index, top_k_weights)
    dtype = autocast_type(x)
    if dtype is not None:
        cast = in_type(weights, dtype)
        if x.dtype != dtype or cast is not weights:
            return experts(x.to(dtype), top_k_index, top_k_weights, cast, capacity=capacity).to(x.dtype)
    operands, description = describe(weights)
    if are_transforms_active():
        refuse_transforms("experts", x=x, top_k_weights=top_k_weights, **operands._asdict())
    x2 = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    ids = top_k_index if top_k_index.dim() == 2 else top_k_index.reshape(-1, top_k_index.shape[-1])
    factors = top_k_weights if top_k_weights is None or top_k_weights.dim() == 2 else top_k_weights.reshape(ids.shape)
    if x2.shape[0] != ids.shape[0]:
        raise ShapeMismatchError(f"[experts] x {list(x.shape)} has {x2.shape[0]} tokens, top_k_index "
                                 f"{list(top_k_index.shape)} has {ids.shape[0]}")
    keep = torch.is_grad_enabled() and _needs_gradient(x2, factors, operands)
    if not alone(x2):
        y, _ = torch.ops.moe64.experts_forward(x2, ids, factors, capacity, keep, *operands, *description)
    elif keep:
        y = _Eager.apply(x2, ids, factors, capacity, description, *operands)
    else:
        y, _ = _run_forward(layer_of(operands, description), x2, ids, factors, capacity, keep=False)
    return y if x2 is x else y.view(x.shape)


def in_type(weights: ExpertWeights, dtype: torch.dtype) -> ExpertWeights:
    """With plain matrices and factors of LoRA in one type, as autocast has them; codes and biases as they are."""
    def matrix(given: Any) -> Any:
        if isinstance(given, (tuple, list)):
            made = tuple(map(matrix, given))
            return given if all(one is other for one, other in zip(made, given)) else made
        return given.to(dtype) if isinstance(given, torch.Tensor) and given.dtype in FLOATS else given

    def projection(given: Projection) -> Projection:
        lora, values = given.lora, matrix(given.weights)
        if lora is not None and not lora.a.dtype == lora.b.dtype == dtype:
            lora = Lora(lora.a.to(dtype), lora.b.to(dtype), lora.scaling)
        return given if values is given.weights and lora is given.lora else Projection(values, given.bias, lora)

    gate_up, down = projection(weights.gate_up), projection(weights.down)
    if gate_up is weights.gate_up and down is weights.down:
        return weights
    return replace(weights, gate_up=gate_up, down=down)


def _needs_gradient(x: torch.Tensor, factors: torch.Tensor | None, operands: Operands) -> bool:
    if x.requires_grad or (factors is not None and factors.requires_grad):
        return True
    for tensor in operands:
        if tensor is not None and tensor.requires_grad:
            return True
    return False


class _FirstDerivative(torch.autograd.Function):
    """Gradients, the first `count` of `tensors`, and what they depend on: a derivative of them is refused, where PyTorch's
    once_differentiable takes them for constants unless the gradient that came in is differentiated itself."""

    @staticmethod
    def forward(ctx, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors[:count]

    @staticmethod
    def backward(ctx, *_: torch.Tensor):  # type: ignore[override]
        raise GradientError("[experts] there is no second derivative: create_graph=True gives gradients that cannot be "
                            "differentiated again")


class _Eager(torch.autograd.Function):
    """experts_forward and its gradient without PyTorch's dispatch of operators."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int,
                description: Description, *operands: torch.Tensor | None) -> torch.Tensor:
        ctx.description, ctx.top_k, ctx.weights_dtype = description, ids.shape[1], None if weights is None else weights.dtype
        y, saved = _run_forward(layer_of(Operands(*operands), description), x, ids, weights, capacity, keep=True)
        ctx.save_for_backward(x, saved, *operands)
        return y

    @staticmethod
    def backward(ctx, dy: torch.Tensor):  # type: ignore[override]
        x, saved, *operands = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted = _wanted(needs[0], needs[2], needs[5:])
        with torch.no_grad():
            made = _run_backward(x, dy.to(x.dtype), saved, ctx.top_k, wanted, Operands(*operands), ctx.description)
        if torch.is_grad_enabled():
            sources = [one for one in (dy, x, *operands) if one is not None and one.requires_grad]
            made = list(_FirstDerivative.apply(len(made), *made, *sources))
        found = dict(zip(wanted, made))
        return (found.get(_X), None, _as(found.get(_WEIGHTS), ctx.weights_dtype), None, None,
                *map(found.get, range(OPERANDS)))


def explain(weights: ExpertWeights, device: torch.device | str = "cpu",
            dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """The mode that a layer runs in on a device with x of this type, and why.

        >>> moe64.explain(weights)
        ('w8a16', 'the checkpoint states no quantisation of activations')
    """
    if dtype not in FLOATS:
        raise DtypeMismatchError(f"[explain] dtype is {dtype}, not float32, bfloat16 or float16")
    layer = layer_of(*describe(weights))
    where = torch.device(device)
    if where.type == "cuda" and where.index is None and torch.cuda.is_available():
        where = torch.device("cuda", torch.cuda.current_device())
    c_device = CPU if where.type == "cpu" else _c.Device(_c.CUDA, 0, where.index or 0)
    mode, reason = ctypes.c_uint8(), ctypes.create_string_buffer(1024)
    library().call("resolve_mode", layer.handle, _CODES[dtype], c_device, mode, reason, len(reason))
    return list(_c.MODES)[mode.value], reason.value.decode()
