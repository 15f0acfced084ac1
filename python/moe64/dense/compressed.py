"""Dense FP8 layers of compressed-tensors checkpoints, which Transformers expands when it loads them or at the first forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .._description import Format
from ..errors import ShapeMismatchError
from ..formats import Granularity
from .layers import Served

_LAYOUTS = {"channel": "row", "tensor": "tensor", "block": "block"}


class CompressedLinear(Served, nn.Linear):
    """A linear layer whose weight stays e4m3 with the scales of its scheme, one for each row, block or matrix."""

    scale_names = ("weight_scale", "input_scale")

    def __init__(self, like: nn.Linear, scheme: Any) -> None:
        super().__init__(like.in_features, like.out_features, bias=like.bias is not None, device="meta")
        weights, inputs = scheme.weights, scheme.input_activations
        rows, cols = weights.block_structure or (0, 0)
        self.layout = Granularity(_LAYOUTS[str(weights.strategy)], int(rows), int(cols))
        self.activation_scheme = "none" if inputs is None else "dynamic" if inputs.dynamic else "static"
        grid = self.layout.grid(like.out_features, like.in_features)
        if self.layout.kind == "tensor":
            grid = (1,)  # type: ignore[assignment]
        codes = torch.empty((like.out_features, like.in_features), dtype=torch.float8_e4m3fn, device="meta")
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(grid, dtype=torch.float32, device="meta"), requires_grad=False)
        if self.activation_scheme == "static":
            self.input_scale = nn.Parameter(torch.empty((1,), dtype=torch.float32, device="meta"), requires_grad=False)
        if like.bias is not None:
            self.bias = like.bias

    def _stored(self, groups: int) -> tuple[torch.Tensor, torch.Tensor, Format]:
        scales, layout = self._scales(), self.layout
        grid = layout.grid(self.out_features, self.in_features)
        if scales.numel() != grid[0] * grid[1]:
            raise ShapeMismatchError(f"[dense] weight_scale is {list(scales.shape)}, expected {list(grid)}: the scheme states "
                                     f"{layout} for a weight {list(self.weight.shape)}")
        return (self.weight[None], scales.reshape(1, *grid),
                Format("", "", layout.kind, layout.block_rows, layout.block_cols, False))


def _is_served(scheme: Any) -> bool:
    """Symmetric e4m3 weights; activations that are not quantised, or are as FP8Linear's."""
    weights, inputs = scheme.weights, scheme.input_activations
    if weights is None or scheme.output_activations is not None or str(weights.strategy) not in _LAYOUTS:
        return False
    if weights.type != "float" or weights.num_bits != 8 or not weights.symmetric or weights.actorder is not None:
        return False
    if inputs is None:
        return True
    known = inputs.dynamic is True or (inputs.dynamic is False and str(inputs.strategy) == "tensor")
    return inputs.type == "float" and inputs.num_bits == 8 and inputs.symmetric and known


def serve(quantizer: Any, model: nn.Module) -> list[str]:
    """Puts a CompressedLinear in the place of each layer that compressed-tensors has prepared to hold FP8 codes; answers their
    names. A config that asks for expansion, or for the kernels of Transformers, is left to it."""
    config, compressor = quantizer.quantization_config, getattr(quantizer, "compressor", None)
    if compressor is None or getattr(config, "dequantize", True) or getattr(config, "use_optimized_inference", False):
        return []
    if not getattr(config, "is_quantization_compressed", False):
        return []
    names = []
    for name, module in list(model.named_modules()):
        scheme = getattr(module, "quantization_scheme", None)
        if type(module) is nn.Linear and scheme is not None and _is_served(scheme):
            model.set_submodule(name, CompressedLinear(module, scheme))
            names.append(name)
    if not any(hasattr(module, "quantization_scheme") for module in model.modules()):
        compressor.remove_decompression_hook(model)  # nothing is left for it
    return names
