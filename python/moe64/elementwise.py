"""quantize, dequantize and activate: the operations that multiply no matrices and move no rows."""

from __future__ import annotations

from typing import Any

import torch

from . import _c
from ._description import FORMAT_SCHEMA, Format, format_of, frozen
from ._handles import matrix_of
from ._library import library
from ._torch import FLOATS, TORCH_DTYPES, code_of, memory_of, operator, refuse_transforms, stream_of, view
from .errors import DtypeMismatchError, InvalidArgumentError, MissingScaleError, ShapeMismatchError, UnsupportedError
from .formats import Activation, Granularity, Quantized

__all__ = ["activate", "dequantize", "quantize"]


# ---- quantize -----------------------------------------------------------------------------------

def _quantized_like(x: torch.Tensor, layout: Granularity, dtype: str, scale_dtype: str
                    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    packed = dtype in ("int4", "fp4")
    grid = layout.grid(x.shape[-2], x.shape[-1])
    values = x.new_empty((*x.shape[:-1], x.shape[-1] // 2 if packed else x.shape[-1]), dtype=TORCH_DTYPES[dtype])
    scales = x.new_empty((*x.shape[:-2], *grid), dtype=TORCH_DTYPES[scale_dtype])
    count = (x.shape[0] if x.dim() == 3 else 1) if (dtype, scale_dtype) == ("fp4", "e4m3") else 0
    return values, scales, x.new_empty((count,), dtype=torch.float32)


@operator("quantize", "(Tensor x, str layout, SymInt block_rows, SymInt block_cols, str dtype, str scale_dtype) -> "
          "(Tensor, Tensor, Tensor)")
def _quantize(x: torch.Tensor, layout: str, block_rows: int, block_cols: int, dtype: str,
              scale_dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return run_quantize(x, Granularity(layout, block_rows, block_cols), dtype, scale_dtype)


def run_quantize(x: torch.Tensor, granularity: Granularity, dtype: str,
                 scale_dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and global scales, without PyTorch's dispatch of operators."""
    values, scales, scale = _quantized_like(x, granularity, dtype, scale_dtype)
    args = _c.QuantizeArgs(x=view(x, "x"), layout=granularity.to_c(),
                           values=view(values, "values", dtype), scales=view(scales, "scales", scale_dtype))
    if scale.numel():
        args.global_.values = view(scale, "global_scale")
    library().call("quantize", args, stream_of(x))
    return values, scales, scale


@_quantize.register_fake
def _(x: torch.Tensor, layout: str, block_rows: int, block_cols: int, dtype: str,
      scale_dtype: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _quantized_like(x, Granularity(layout, block_rows, block_cols), dtype, scale_dtype)


def quantize(x: torch.Tensor, layout: "str | Granularity", dtype: str = "e4m3", scale_dtype: str = "f32") -> Quantized:
    """Rounds x [experts, rows, cols] or [rows, cols] to codes and scales: scale = largest |x| / largest code.

    A block of zeros gets scale 1; one that holds NaN or infinity reads back as NaN. dtype: e4m3, e5m2, int8, int4, fp4;
    scale_dtype: f32, bf16, f16, e8m0 (bytes), e4m3 (fp4 only, with a global scale).

        >>> q = moe64.quantize(torch.randn(256, 512), "block:128x128")
        >>> q.values.dtype, q.scales.shape
        (torch.float8_e4m3fn, torch.Size([2, 4]))
    """
    layout = Granularity.parse(layout)
    if dtype not in ("e4m3", "e5m2", "int8", "int4", "fp4"):
        raise InvalidArgumentError(f"[quantize] dtype is '{dtype}', none of e4m3, e5m2, int8, int4, fp4")
    if scale_dtype not in ("f32", "bf16", "f16", "e8m0", "e4m3"):
        raise InvalidArgumentError(f"[quantize] scale_dtype is '{scale_dtype}', none of f32, bf16, f16, e8m0, e4m3")
    if x.dim() not in (2, 3):
        raise ShapeMismatchError(f"[quantize] x is {list(x.shape)}, expected [rows, cols] or [experts, rows, cols]")
    if dtype in ("int4", "fp4") and x.shape[-1] % 2:
        raise UnsupportedError(f"[quantize] x has {x.shape[-1]} columns, which do not fill whole bytes of {dtype}")
    refuse_transforms("quantize", x=x)
    values, scales, scale = torch.ops.moe64.quantize(x.detach(), layout.kind, layout.block_rows, layout.block_cols, dtype,
                                                         scale_dtype)
    return Quantized(values, scales, layout, scale if scale.numel() else None, False,
                     dtype if values.dtype == torch.uint8 else None,
                     scale_dtype if scales.dtype == torch.uint8 else None)


# ---- dequantize ---------------------------------------------------------------------------------

@operator("dequantize",
          f"(Tensor values, Tensor scales, Tensor? global_scale, ScalarType out_dtype, {FORMAT_SCHEMA}) -> Tensor")
def _dequantize(values: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, out_dtype: torch.dtype,
                *form: Any) -> torch.Tensor:
    code = code_of(values.dtype, Format(*form).dtype or None, "values")
    cols = values.shape[-1] * (2 if code in (_c.INT4, _c.FP4) else 1)
    out = torch.empty((*values.shape[:-1], cols), dtype=out_dtype, device=values.device)
    args = _c.DequantizeArgs(out=view(out, "out"))
    args.q = matrix_of("values", Format(*form), *(t if t is None else memory_of(t) for t in (values, scales, global_scale)))
    library().call("dequantize", args, stream_of(values))
    return out


@_dequantize.register_fake
def _(values: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None, out_dtype: torch.dtype,
      *form: Any) -> torch.Tensor:
    cols = values.shape[-1] * (2 if Format(*form).dtype in ("int4", "fp4") else 1)
    return values.new_empty((*values.shape[:-1], cols), dtype=out_dtype)


def dequantize(values: "torch.Tensor | Quantized", scales: torch.Tensor | None = None,
               layout: "str | Granularity | None" = None, *, dtype: torch.dtype = torch.bfloat16,
               **how: object) -> torch.Tensor:
    """Codes to values: one float32 product with the scale, rounded once to `dtype`.

    Takes a Quantized, or what one is made of: values, scales, layout and by name global_scale, global_divides,
    scale_dtype and values_dtype (what uint8 values stand for).

        >>> moe64.dequantize(codes, scales, "block:128x128", dtype=torch.float32)
    """
    if isinstance(values, Quantized):
        q = values
    else:
        if scales is None:
            raise MissingScaleError(f"[dequantize] {values.dtype} values without the scale that gives them meaning")
        if layout is None:
            raise InvalidArgumentError("[dequantize] layout is missing: how many values share a scale is never guessed")
        q = Quantized(values, scales, layout, dtype=how.pop("values_dtype", None), **how)  # type: ignore[arg-type]
    if dtype not in FLOATS:
        raise DtypeMismatchError(f"[dequantize] dtype is {dtype}, not float32, bfloat16 or float16")
    refuse_transforms("dequantize", scales=q.scales, global_scale=q.global_scale)
    return torch.ops.moe64.dequantize(*frozen("dequantize", "values", q), dtype, *format_of(q))


# ---- activate -----------------------------------------------------------------------------------

@operator("activate", "(Tensor gate, Tensor? up, str kind, float alpha, float limit) -> Tensor")
def _activate(gate: torch.Tensor, up: torch.Tensor | None, kind: str, alpha: float, limit: float) -> torch.Tensor:
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    args = _c.ActivateArgs(activation=Activation(kind, alpha, limit).to_c(), gate=view(gate, "gate"),
                           up=view(up, "up"), out=view(out, "out"))
    library().call("activate", args, stream_of(gate))
    return out


@_activate.register_fake
def _(gate: torch.Tensor, up: torch.Tensor | None, kind: str, alpha: float, limit: float) -> torch.Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


@operator("activate_backward",
          "(Tensor gate, Tensor? up, Tensor d_out, str kind, float alpha, float limit) -> (Tensor, Tensor)")
def _activate_backward(gate: torch.Tensor, up: torch.Tensor | None, d_out: torch.Tensor, kind: str, alpha: float,
                       limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    d_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    d_up = torch.empty(gate.shape if up is not None else (0,), dtype=gate.dtype, device=gate.device)
    args = _c.ActivateBackwardArgs(activation=Activation(kind, alpha, limit).to_c(), gate=view(gate, "gate"),
                                   up=view(up, "up"), d_out=view(d_out, "d_out"), d_gate=view(d_gate, "d_gate"))
    if up is not None:
        args.d_up = view(d_up, "d_up")
    library().call("activate_backward", args, stream_of(gate))
    return d_gate, d_up


@_activate_backward.register_fake
def _(gate: torch.Tensor, up: torch.Tensor | None, d_out: torch.Tensor, kind: str, alpha: float,
      limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    return made, torch.empty(gate.shape if up is not None else (0,), dtype=gate.dtype, device=gate.device)


def _activate_context(ctx, inputs, output) -> None:
    gate, up, ctx.kind, ctx.alpha, ctx.limit = inputs
    ctx.gated = up is not None
    ctx.save_for_backward(gate, *([up] if ctx.gated else []))


def _activate_gradient(ctx, d_out: torch.Tensor):
    gate, *rest = ctx.saved_tensors
    d_gate, d_up = torch.ops.moe64.activate_backward(gate, rest[0] if ctx.gated else None, d_out, ctx.kind, ctx.alpha,
                                                     ctx.limit)
    return d_gate, d_up if ctx.gated else None, None, None, None


_activate.register_autograd(_activate_gradient, setup_context=_activate_context)


def activate(gate: torch.Tensor, up: torch.Tensor | None = None,
             activation: "str | Activation" = "silu_glu") -> torch.Tensor:
    """activation(gate, up) of [rows, inter] tensors, computed in float32 and rounded once; differentiable.

        >>> moe64.activate(gate, up, moe64.Activation("gptoss_glu", alpha=1.702, limit=7.0))
        >>> moe64.activate(x, activation="relu2")
    """
    act = Activation.parse(activation)
    if act.gated != (up is not None):
        raise InvalidArgumentError(f"[activate] {act.kind} takes {'gate and up' if act.gated else 'one input'}")
    refuse_transforms("activate", gate=gate, up=up)
    return torch.ops.moe64.activate(gate, up, act.kind, float(act.alpha), float(act.limit))
