"""The product of a dense layer: a grouped GEMM of one expert, or of as many as a block-diagonal matrix has groups."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .. import _c
from .._description import FORMAT_SCHEMA, Format
from .._handles import matrix_of
from .._library import library
from .._torch import alone, bytes_on, memory_of, operator, refuse_transforms, stream_of, view, workspace
from ..elementwise import run_quantize
from ..errors import UnsupportedError
from ..formats import Granularity

class _Stack:
    """A handle of the library over codes and scales, which it does not keep alive, and what was found out about them."""

    handle: int | None = None

    def __init__(self, values: torch.Tensor, scales: torch.Tensor, form: Format) -> None:
        self._library = library()
        matrix = matrix_of("weight", form, memory_of(values), memory_of(scales), None)
        self.handle = self._library.make("weights_single", matrix)
        self.modes: dict[torch.dtype, tuple[str, str]] = {}
        self.prepared: dict[tuple, tuple[_c.GroupedGemmArgs, torch.Tensor | None]] = {}

    def __del__(self) -> None:
        if self.handle is not None:
            self._library.weights_destroy(self.handle)


_stacks: dict[tuple, _Stack] = {}
_stacks_lock = threading.Lock()  # of additions; a lookup needs none
_KEPT = 4096


def stack_of(values: torch.Tensor, scales: torch.Tensor, form: Format) -> _Stack:
    key = (form, values.data_ptr(), values.shape, values.stride(), values.dtype, values.device, scales.data_ptr(), scales.shape,
           scales.stride(), scales.dtype)
    found = _stacks.get(key)
    if found is None:
        found = _Stack(values, scales, form)
        with _stacks_lock:
            _stacks[key] = found
            while len(_stacks) > _KEPT:
                del _stacks[next(iter(_stacks))]
    return found


def _multiply(stack: _Stack, x: torch.Tensor, groups: int, width: int, bias: torch.Tensor | None, transpose: bool,
              codes: _c.Quantized | None = None, implementation: bytes | None = None) -> torch.Tensor:
    """Rows of x, or their `codes`, as many for each group, times the matrix of their group. Arguments for tensors of one form
    are made once, but for the addresses."""
    key = (x.shape, x.stride(), x.dtype, transpose, None if bias is None else (bias.shape, bias.stride(), bias.dtype))
    found = stack.prepared.get(key)
    begin = None if found is None else found[1]
    if begin is None:
        step = x.shape[0] // groups
        begin = torch.arange(0, x.shape[0] + step, step, dtype=torch.int64, device=x.device)
    y = torch.empty((x.shape[0], width), dtype=x.dtype, device=x.device)
    if found is None:
        args = _c.GroupedGemmArgs(x=_c.Quantized(view(x, "x")), weights=stack.handle, transpose=int(transpose), y=view(y, "y"),
                                  expert_begin=view(begin, "expert_begin"))
        args.bias[0] = view(bias, "bias")
        args.low_rank.scaling = 1.0
        if len(stack.prepared) >= 64:  # one per shape: serving sees many
            stack.prepared.clear()
        found = stack.prepared[key] = (args, begin if x.is_cpu else None)  # on a GPU it may belong to a captured graph
    args = _c.GroupedGemmArgs.from_buffer_copy(found[0])
    if codes is None:
        args.x.values.data = x.data_ptr()
    else:
        args.x = codes
    args.y.data, args.expert_begin.data, args.implementation = y.data_ptr(), begin.data_ptr(), implementation
    if bias is not None:
        args.bias[0].data = bias.data_ptr()
    if x.is_cuda:  # no CPU kernel uses it
        scratch = bytes_on(_c.GROUPED_GEMM_SCRATCH_BYTES, x.device)
        args.scratch = workspace(scratch)
    library().call("grouped_gemm", args, stream_of(x))
    return y


def _codes_of(x: torch.Tensor, form: Format) -> tuple[_c.Quantized, tuple[torch.Tensor, ...]]:
    """x in e4m3 as w8a8 has it, and the tensors that must stay alive while it is used."""
    layout = Granularity("group", 0, 128) if form.layout in ("block", "group") else Granularity("row")
    values, scales, _ = run_quantize(x, layout, "e4m3", "f32")
    codes = _c.Quantized(view(values, "x"), view(scales, "x scales"))
    codes.layout = layout.to_c()
    return codes, (values, scales)


def mode_of(stack: _Stack, dtype: torch.dtype, values: torch.Tensor, form: Format) -> tuple[str, str]:
    """What "auto" is for rows of a type, and why: w8a8 where the kernel takes these weights, which it is asked once, with a
    row of zeros. The number of rows never matters."""
    if not values.is_cuda:
        return "w8a16", "no CPU multiplies 8-bit floats"
    found = stack.modes.get(dtype)
    if found is None:
        x = torch.zeros((values.shape[0], values.shape[2]), dtype=dtype, device=values.device)
        try:
            codes, alive = _codes_of(x, form)
            _multiply(stack, x, values.shape[0], values.shape[1], None, False, codes, b"sm90_w8a8")
            del alive
            found = ("w8a8", "the checkpoint states dynamic quantisation of activations")
        except UnsupportedError as error:
            found = ("w8a16", str(error))
        stack.modes[dtype] = found
    return found


def _width(values: torch.Tensor, transpose: bool, form: Format) -> int:
    packed = 2 if form.dtype in ("int4", "fp4") else 1
    return values.shape[2] * packed if transpose else values.shape[1]


def _run(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, transpose: bool, mode: str,
         form: Format) -> torch.Tensor:
    groups, width = values.shape[0], _width(values, transpose, form)
    if x.shape[0] == 0:
        return x.new_empty((0, width))
    if x.stride(1) != 1:  # as gradients of a sum are: fast kernels read rows
        x = x.contiguous()
    stack = stack_of(values, scales, form)
    if mode == "auto":
        mode, _ = mode_of(stack, x.dtype, values, form)
    if mode != "w8a8" or transpose:
        return _multiply(stack, x, groups, width, bias, transpose)
    codes, alive = _codes_of(x, form)
    y = _multiply(stack, x, groups, width, bias, transpose, codes)
    del alive
    return y


@operator("dense", "(Tensor x, Tensor values, Tensor scales, Tensor? bias, bool transpose, str mode, "
          f"{FORMAT_SCHEMA}) -> Tensor")
def _dense(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, transpose: bool, mode: str,
           *form: Any) -> torch.Tensor:
    return _run(x, values, scales, bias, transpose, mode, Format(*form))


@_dense.register_fake
def _(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, transpose: bool, mode: str,
      *form: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], _width(values, transpose, Format(*form))))


def _bias_gradient(dy: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    return dy.reshape(groups, dy.shape[0] // groups, dy.shape[1]).sum(1, dtype=torch.float32).to(dtype)


def _context(ctx, inputs, output) -> None:
    _, values, scales, bias, ctx.transpose, _, *ctx.form = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(values, scales)


def _gradient(ctx, dy: torch.Tensor):
    values, scales = ctx.saved_tensors
    dx = d_bias = None
    if ctx.needs_input_grad[0]:
        dx = torch.ops.moe64.dense(dy, values, scales, None, not ctx.transpose, "w8a16", *ctx.form)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[3]:
        d_bias = _bias_gradient(dy, values.shape[0], ctx.bias_dtype)
    return (dx, None, None, d_bias, None, None, *[None] * len(ctx.form))


_dense.register_autograd(_gradient, setup_context=_context)


class _Eager(torch.autograd.Function):
    """The operator and its gradient without PyTorch's dispatch of operators."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, mode: str,
                form: Format) -> torch.Tensor:
        ctx.form, ctx.bias_dtype = form, None if bias is None else bias.dtype
        ctx.save_for_backward(values, scales)
        return _run(x, values, scales, bias, False, mode, form)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: torch.Tensor):  # type: ignore[override]
        values, scales = ctx.saved_tensors
        dx = d_bias = None
        if ctx.needs_input_grad[0]:
            dx = _run(dy, values, scales, None, True, "w8a16", ctx.form)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[3]:
            d_bias = _bias_gradient(dy, values.shape[0], ctx.bias_dtype)
        return dx, None, None, d_bias, None, None


def product(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, mode: str,
             form: Format) -> torch.Tensor:
    """x [groups * rows, in] times values [groups, out, in] with their scales, plus bias [groups, out]."""
    refuse_transforms("dense", x=x, weight=values, scales=scales, bias=bias)
    if not alone(x):
        return torch.ops.moe64.dense(x, values, scales, bias, False, mode, *form)
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return _Eager.apply(x, values, scales, bias, mode, form)
    return _run(x, values, scales, bias, False, mode, form)
