"""The whole expert layer: moe64.experts, its torch operators, and their gradients."""

from __future__ import annotations

import ctypes

import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from . import _c
from ._library import library
from ._spec import Layer, Remembered, flatten, layer_of, parse, per_part
from ._torch import CPU, _CODES, alone, bytes_on, device_of, operator, refuse_tangents, stream_of, view, workspace
from .errors import DtypeMismatchError, GradientError, InvalidArgumentError, ShapeMismatchError
from .formats import ExpertWeights

__all__ = ["experts", "explain"]


def _round(count: int) -> int:
    return (count + 63) // 64 * 64


def _saved_size(tokens: int, top_k: int, experts: int, rows: int, item: int) -> int:
    """moe64_saved_bytes as a formula, so that it also holds for symbolic extents: the plan, then the gate_up output."""
    slots = tokens * top_k
    plan = _round(8 * (experts + 1)) + 2 * _round(8 * slots) + _round(4 * slots) + _round(8 * _c.PLAN_STATUS_COUNT)
    return plan + _round(slots * rows * item)


def _saved_like(x: torch.Tensor, ids: torch.Tensor, operands: list[torch.Tensor], line: str) -> int:
    spec = parse(line)
    return _saved_size(x.shape[0], ids.shape[1], operands[spec.index["down"]].shape[0], spec.gate_up_rows(operands),
                       x.element_size())


def _template(layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, keep: bool,
              capacity: int) -> tuple[_c.ForwardArgs, int]:
    """The arguments of forward for tensors of this form, and its scratch bytes; addresses are filled in per call."""
    key = (x.shape, x.stride(), x.dtype, ids.shape, ids.stride(), ids.dtype, keep, capacity, x.device,
           ids.device, None if weights is None else (weights.stride(), weights.dtype, weights.device))
    found = layer.templates.get(key)
    if found is None:
        shape = _c.LayerShape(x.shape[0], ids.shape[1], _CODES[x.dtype])
        scratch = library().ask("forward_bytes", layer.handle, shape, keep, device_of(x))
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        args = _c.ForwardArgs(x=view(x, "x"), expert_ids=view(ids, "top_k_index"),
                              weights=view(weights, "top_k_weights"), capacity=capacity, y=view(y, "y"))
        args.scratch.device = args.saved.device = device_of(x)
        args.scratch.bytes = scratch
        if len(layer.templates) >= 64:  # one per shape: serving sees many
            layer.templates.clear()
        found = layer.templates[key] = (args, scratch)
    return found


def _run_forward(layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int,
                 saved_bytes: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    keep = saved_bytes is not None
    template, scratch_bytes = _template(layer, x, ids, weights, keep, capacity)
    args = _c.ForwardArgs.from_buffer_copy(template)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    scratch = x.new_empty(scratch_bytes, dtype=torch.uint8)
    saved = None
    args.x.data, args.expert_ids.data, args.y.data = x.data_ptr(), ids.data_ptr(), y.data_ptr()
    args.scratch.data = scratch.data_ptr()
    if weights is not None:
        args.weights.data = weights.data_ptr()
    if saved_bytes is not None:
        saved = bytes_on(saved_bytes, x.device)
        args.saved = workspace(saved)
    library().call("forward", layer.handle, args, stream_of(x))
    return y, saved


@operator("experts_forward",
          "(Tensor x, Tensor ids, Tensor? weights, Tensor[] operands, str line, float[] numbers, SymInt[] "
          "extents, SymInt capacity, bool keep) -> (Tensor, Tensor)")
def _forward(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, operands: list[torch.Tensor], line: str,
             numbers: list[float], extents: list[int], capacity: int, keep: bool) -> tuple[torch.Tensor, torch.Tensor]:
    saved_bytes = _saved_like(x, ids, operands, line) if keep else None
    y, saved = _run_forward(layer_of(operands, line, numbers, extents), x, ids, weights, capacity, saved_bytes)
    return y, bytes_on(0, x.device) if saved is None else saved


@_forward.register_fake
def _(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, operands: list[torch.Tensor], line: str,
      numbers: list[float], extents: list[int], capacity: int, keep: bool) -> tuple[torch.Tensor, torch.Tensor]:
    size = _saved_like(x, ids, operands, line) if keep else 0
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty((size,), dtype=torch.uint8)



@operator("experts_backward",
          "(Tensor x, Tensor dy, Tensor saved, Tensor[] operands, str line, float[] numbers, SymInt[] "
          "extents, SymInt top_k, SymInt[] wanted) -> Tensor[]")
def _backward(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, operands: list[torch.Tensor], line: str,
              numbers: list[float], extents: list[int], top_k: int, wanted: list[int]) -> list[torch.Tensor]:
    return _run_backward(x, dy, saved, operands, line, numbers, extents, top_k, wanted)


def _run_backward(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, operands: list[torch.Tensor], line: str,
                  numbers: list[float], extents: list[int], top_k: int, wanted: list[int]) -> list[torch.Tensor]:
    """Gradients of what `wanted` names: -2 is x, -1 the routing weights, others the place of an operand."""
    lib, spec, layer = library(), parse(line), layer_of(operands, line, numbers, extents)
    grads = _gradients(x, operands, top_k, wanted)
    have = {spec.roles[i]: grad for i, grad in zip(wanted, grads) if i >= 0}
    asked = _c.LayerGradients()
    for i, grad in zip(wanted, grads):
        if i == -2:
            asked.x = view(grad, "dx")
        elif i == -1:
            asked.weights = view(grad, "d_weights")
    for role in ("gate_up", "down"):
        into = getattr(asked, role)
        for field, suffix in (("weights", ""), ("bias", ".bias"), ("lora_b", ".b")):
            for part, tensor in enumerate(_gradient_parts(spec, role, suffix, have)):
                getattr(into, field)[part] = view(tensor, f"the gradient of {role}{suffix}")
        into.lora_a = view(have.get(role + ".a"), f"the gradient of {role}.a")
    shape = _c.LayerShape(x.shape[0], top_k, _CODES[x.dtype])
    scratch = bytes_on(lib.ask("backward_bytes", layer.handle, shape, asked, device_of(x)), x.device)
    args = _c.BackwardArgs(x=view(x, "x"), dy=view(dy, "dy"), top_k=top_k, saved=workspace(saved),
                           scratch=workspace(scratch), gradients=ctypes.pointer(asked))
    lib.call("backward", layer.handle, args, stream_of(x))
    return grads


def _gradient_parts(spec, role: str, suffix: str, have: dict[str, torch.Tensor]) -> list[torch.Tensor | None]:
    if role == "gate_up" and suffix != ".b" and "up" in spec.index:  # either half may be wanted alone
        return [have.get("gate_up" + suffix), have.get("up" + suffix)]
    return list(per_part(spec, role, suffix, have))


def _gradients(x: torch.Tensor, operands: list[torch.Tensor], top_k: int, wanted: list[int]) -> list[torch.Tensor]:
    made = []
    for i in wanted:
        if i == -2:
            made.append(torch.empty(x.shape, dtype=x.dtype, device=x.device))
        elif i == -1:
            made.append(x.new_empty((x.shape[0], top_k), dtype=torch.float32))
        else:
            made.append(torch.empty_like(operands[i]))
    return made


@_backward.register_fake
def _(x: torch.Tensor, dy: torch.Tensor, saved: torch.Tensor, operands: list[torch.Tensor], line: str,
      numbers: list[float], extents: list[int], top_k: int, wanted: list[int]) -> list[torch.Tensor]:
    return _gradients(x, operands, top_k, wanted)


def _setup_context(ctx, inputs, output) -> None:
    x, ids, weights, operands, line, numbers, extents, _capacity, keep = inputs
    ctx.how, ctx.top_k, ctx.keep = (line, numbers, extents), ids.shape[1], keep
    ctx.weights_dtype = None if weights is None else weights.dtype
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, output[1], *operands)


def _gradient_of_forward(ctx, dy: torch.Tensor, _: torch.Tensor | None):
    x, saved, *operands = ctx.saved_tensors
    if not ctx.keep:
        raise GradientError("[experts] backward after a forward that kept nothing: call moe64.experts with gradients on")
    needs = ctx.needs_input_grad
    wanted = [-2] * bool(needs[0]) + [-1] * bool(needs[2]) + [i for i, need in enumerate(needs[3]) if need]
    made = torch.ops.moe64.experts_backward(x, dy.to(x.dtype), saved, operands, *ctx.how, ctx.top_k, wanted)
    found = dict(zip(wanted, made))
    d_weights = found.get(-1)
    if d_weights is not None:
        d_weights = d_weights.to(ctx.weights_dtype)
    return found.get(-2), None, d_weights, [found.get(i) for i in range(len(operands))], *[None] * 5


_forward.register_autograd(_gradient_of_forward, setup_context=_setup_context)


def _check_call(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None) -> None:
    if x.dim() < 1 or ids.dim() < 1:
        raise ShapeMismatchError(f"[experts] x is {list(x.shape)} and top_k_index {list(ids.shape)}, expected "
                                 "[..., hidden] and [..., top_k]")
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise DtypeMismatchError(f"[experts] x is {x.dtype}, not float32, bfloat16 or float16")
    if ids.dtype not in (torch.int32, torch.int64):
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

    The result has the shape and type of x. Gradients: x, top_k_weights, biases, LoRA, and plain weights; quantised
    weights have none, and asking for one raises GradientError. Tensors may have any strides.

        >>> weights = moe64.ExpertWeights(torch.randn(4, 2 * 16, 32), torch.randn(4, 32, 16))
        >>> y = moe64.experts(torch.randn(5, 32), torch.randint(0, 4, (5, 2)), torch.rand(5, 2), weights)
    """
    if not isinstance(weights, ExpertWeights):
        raise InvalidArgumentError(f"[experts] weights is a {type(weights).__name__}, not an ExpertWeights")
    _check_call(x, top_k_index, top_k_weights)
    if forward_ad._current_level >= 0:
        refuse_tangents("experts", x=x, top_k_weights=top_k_weights, **_named_operands(weights))
    x2 = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    ids = top_k_index if top_k_index.dim() == 2 else top_k_index.reshape(-1, top_k_index.shape[-1])
    factors = top_k_weights if top_k_weights is None or top_k_weights.dim() == 2 else top_k_weights.reshape(ids.shape)
    if x2.shape[0] != ids.shape[0]:
        raise ShapeMismatchError(f"[experts] x {list(x.shape)} has {x2.shape[0]} tokens, top_k_index "
                                 f"{list(top_k_index.shape)} has {ids.shape[0]}")
    if alone(x2):
        layer = _layer_without_gradient(x2, factors, weights)
        if layer is not None:
            y, _ = _run_forward(layer, x2, ids, factors, capacity, None)
        else:
            operands, *how = flatten(weights)
            y = _Eager.apply(x2, ids, factors, capacity, tuple(how), *operands)
        return y if x2 is x else y.view(x.shape)
    operands, line, numbers, extents = flatten(weights)
    keep = torch.is_grad_enabled() and _needs_gradient(x2, factors, operands)
    y, _ = torch.ops.moe64.experts_forward(x2, ids, factors, operands, line, numbers, extents, capacity, keep)
    return y.view(x.shape)


def _named_operands(weights: ExpertWeights) -> dict[str, torch.Tensor]:
    operands, line, *_ = flatten(weights)
    return {role.replace(".", "_"): tensor for role, tensor in zip(parse(line).roles, operands)}


class _Eager(torch.autograd.Function):
    """experts_forward and its gradient without PyTorch's dispatch of operators."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, capacity: int, how: tuple,
                *operands: torch.Tensor) -> torch.Tensor:
        given = list(operands)
        y, saved = _run_forward(layer_of(given, *how), x, ids, weights, capacity, _saved_like(x, ids, given, how[0]))
        ctx.how, ctx.top_k, ctx.weights_dtype = how, ids.shape[1], None if weights is None else weights.dtype
        ctx.save_for_backward(x, saved, *operands)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: torch.Tensor):  # type: ignore[override]
        x, saved, *operands = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted = [-2] * needs[0] + [-1] * needs[2] + [i for i, need in enumerate(needs[5:]) if need]
        line, numbers, extents = ctx.how
        made = _run_backward(x, dy.to(x.dtype), saved, operands, line, numbers, extents, ctx.top_k, wanted)
        found = dict(zip(wanted, made))
        d_weights = found.get(-1)
        if d_weights is not None:
            d_weights = d_weights.to(ctx.weights_dtype)
        return found.get(-2), None, d_weights, None, None, *map(found.get, range(len(operands)))


def _layer_without_gradient(x: torch.Tensor, factors: torch.Tensor | None, weights: ExpertWeights) -> Layer | None:
    """The layer of a call that nothing will be differentiated through, remembered in the weights; else None."""
    remembered: Remembered | None = weights.__dict__.get("_remembered")
    watched = torch.is_grad_enabled()
    if remembered is not None and remembered.holds(weights):
        return None if watched and _needs_gradient(x, factors, remembered.operands) else remembered.layer
    operands, line, numbers, extents = flatten(weights)
    if watched and _needs_gradient(x, factors, operands):
        return None
    layer = layer_of(operands, line, numbers, extents)
    if not any(tensor.is_inference() for tensor in operands):  # those have no versions
        weights.__dict__["_remembered"] = Remembered(weights, operands, layer)
    return layer


def _needs_gradient(x: torch.Tensor, factors: torch.Tensor | None, operands: list[torch.Tensor]) -> bool:
    return (x.requires_grad or (factors is not None and factors.requires_grad)
            or any(tensor.requires_grad for tensor in operands))


def explain(weights: ExpertWeights, device: torch.device | str = "cpu",
            dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """The mode that a layer runs in on a device with x of this type, and why.

        >>> moe64.explain(weights)
        ('w8a16', 'the checkpoint states no quantisation of activations')
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise DtypeMismatchError(f"[explain] dtype is {dtype}, not float32, bfloat16 or float16")
    layer = layer_of(*flatten(weights))
    where = torch.device(device)
    if where.type == "cuda" and where.index is None and torch.cuda.is_available():
        where = torch.device("cuda", torch.cuda.current_device())
    c_device = CPU if where.type == "cpu" else _c.Device(_c.CUDA, 0, where.index or 0)
    mode, reason = ctypes.c_uint8(), ctypes.create_string_buffer(1024)
    library().call("resolve_mode", layer.handle, _CODES[dtype], c_device, mode, reason, len(reason))
    return list(_c.MODES)[mode.value], reason.value.decode()
