"""Unsloth's FP8 functions: the same signatures, with grids checked, any block, any size and device, and bias kept.

    from moe64.compat.unsloth import weight_dequant, fp8_linear

Products with scales are taken in float32 and rounded once. A scale is always multiplied, whatever its name. What cannot
be told apart (a square weight with a row scale that might be a column scale) is refused instead of guessed.
"""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError, MissingScaleError, ShapeMismatchError, UnsupportedError
from ..formats import Granularity, Quantized
from ..gemm import grouped_gemm
from ..elementwise import dequantize, quantize

__all__ = ["act_quant", "fp8_linear", "weight_dequant", "weight_dequant_block"]

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _block(block_size: "int | tuple[int, int] | list[int]") -> tuple[int, int]:
    rows, cols = (block_size, block_size) if isinstance(block_size, int) else tuple(block_size)
    if rows < 1 or cols < 1:
        raise InvalidArgumentError(f"[unsloth] block_size is {block_size}")
    return rows, cols


def _as_scale(s: torch.Tensor) -> torch.Tensor:
    s = s.detach()
    return s if s.dtype in (torch.float32, torch.bfloat16, torch.float16) or s.element_size() == 1 else s.float()


def weight_dequant_block(x: torch.Tensor, s: torch.Tensor, block_size: "int | tuple[int, int]" = 128,
                         dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """x [rows, cols] times the scale of its block, s [ceil(rows / block), ceil(cols / block)].

    A grid of another shape is refused: it would read past its end, or scale by the wrong block.

        >>> unsloth.weight_dequant_block(codes, scales, 128, torch.float32).shape
        torch.Size([128, 256])
    """
    if x.dim() != 2 or s.dim() != 2:
        raise ShapeMismatchError(f"[weight_dequant_block] x is {list(x.shape)} and s {list(s.shape)}, expected two dimensions")
    layout = Granularity("block", *_block(block_size))
    grid = layout.grid(*x.shape)
    if tuple(s.shape) != grid:
        raise ShapeMismatchError(f"[weight_dequant_block] s is {list(s.shape)}, expected {list(grid)} for x "
                                 f"{list(x.shape)} in blocks of {layout.block_rows} x {layout.block_cols}")
    if x.dtype in _FP8 or x.dtype == torch.int8:
        return dequantize(x.detach(), _as_scale(s), layout, dtype=dtype)
    grown = s.float().repeat_interleave(layout.block_rows, 0)[: x.shape[0]]
    return (x.float() * grown.repeat_interleave(layout.block_cols, 1)[:, : x.shape[1]]).to(dtype)


def _row_or_tensor(x: torch.Tensor, s: torch.Tensor) -> str | None:
    """"tensor" or "row" when s is that and nothing else."""
    if s.numel() == 1:
        return "tensor"
    if s.dim() == 1 or (s.dim() == 2 and s.shape[1] == 1):
        if s.shape[0] == x.shape[0]:
            return "row"
    return None


def weight_dequant(x: torch.Tensor, s: torch.Tensor, dtype: torch.dtype = torch.bfloat16,
                   block_size: "int | tuple[int, int]" = 128) -> torch.Tensor:
    """x [rows, cols] with one scale, a scale per row ([rows] or [rows, 1]), or a grid of blocks.

    A [n, 1] scale is a row scale if n is the number of rows, and a grid of one column if n is the number of row blocks;
    where both would fit, with blocks of one row, they are the same. A transposed x (its columns scaled by s) is taken as
    such only if it is not square.

        >>> w = unsloth.weight_dequant(codes, torch.rand(128, 1))
    """
    if s is None:
        raise MissingScaleError(f"[weight_dequant] x is {x.dtype} and has no scale")
    kind = _row_or_tensor(x, s)
    if kind is not None:
        scale = _as_scale(s).reshape(1, 1) if kind == "tensor" else _as_scale(s).reshape(-1, 1)
        if x.dtype in _FP8 or x.dtype == torch.int8:
            return dequantize(x.detach(), scale, kind, dtype=dtype)
        return (x.float() * scale.float()).to(dtype)
    if s.dim() == 2 and tuple(s.shape) == Granularity("block", *_block(block_size)).grid(*x.shape):
        return weight_dequant_block(x, s, block_size, dtype)
    if s.dim() == 2 and s.shape[1] == 1 and s.shape[0] == x.shape[1]:
        return weight_dequant(x.t().contiguous(), s, dtype, block_size).t()
    raise ShapeMismatchError(f"[weight_dequant] s {list(s.shape)} is neither one scale, nor one per row, nor the grid of "
                             f"blocks of {block_size} of x {list(x.shape)}")


def act_quant(x: torch.Tensor, block_size: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of x [..., cols], one scale per `block_size` values along the last dimension, the last partial.

    scale = largest / 448, 1 for zeros; y = x / scale.

        >>> y, s = unsloth.act_quant(torch.randn(3, 200))
        >>> y.dtype, s.shape
        (torch.float8_e4m3fn, torch.Size([3, 2]))
    """
    flat = x.reshape(-1, x.shape[-1])
    q = quantize(flat.contiguous() if flat.stride(-1) != 1 else flat, Granularity("group", 0, block_size))
    return q.values.view(x.shape), q.scales.view(*x.shape[:-1], -1)


def _block_of(weight: torch.Tensor, weight_scale: torch.Tensor) -> tuple[int, int]:
    given = getattr(weight, "block_size", None) or getattr(weight_scale, "block_size", None) or (128, 128)
    return _block(given)


def fp8_linear(X: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor,  # noqa: N803
               bias: torch.Tensor | None = None) -> torch.Tensor:
    """X [..., in] times weight [out, in] of FP8 codes, plus bias, which is kept in every form.

    weight_scale   one value, one per row, or a grid of blocks; the block is weight.block_size, else that of the scale,
                   else 128 x 128. A grid that would fit transposed is refused: of a square weight nobody could tell
    The weight is dequantised inside the product; X and bias have gradients, the codes have none.

        >>> y = unsloth.fp8_linear(torch.randn(2, 256), codes, scales, bias=torch.zeros(128))
    """
    if weight_scale is None:
        raise MissingScaleError("[fp8_linear] weight_scale is missing: codes without it mean nothing")
    if weight.dtype not in _FP8:
        raise UnsupportedError(f"[fp8_linear] weight is {weight.dtype}, not FP8")
    block = _block_of(weight, weight_scale)
    layout = Granularity("block", *block)
    kind = _row_or_tensor(weight, weight_scale)
    scale = _as_scale(weight_scale)
    if kind is not None:
        layout, scale = Granularity(kind), scale.reshape(-1, 1)
    elif scale.dim() != 2 or tuple(scale.shape) != layout.grid(*weight.shape):
        turned = scale.dim() == 2 and tuple(scale.shape[::-1]) == layout.grid(*weight.shape)
        raise ShapeMismatchError(f"[fp8_linear] weight_scale is {list(weight_scale.shape)}, expected "
                                 f"{list(layout.grid(*weight.shape))} for weight {list(weight.shape)} in blocks of {block}"
                                 + (": if it belongs to the transposed weight, pass weight_scale.t()" if turned else ""))
    flat = X.reshape(-1, X.shape[-1])
    rows = torch.tensor([0, flat.shape[0]], dtype=torch.int64, device=X.device)
    stack = Quantized(weight.detach().unsqueeze(0), scale.unsqueeze(0), layout)
    y = grouped_gemm(flat, stack, rows, bias=None if bias is None else bias.unsqueeze(0))
    return y.view(*X.shape[:-1], weight.shape[0])
