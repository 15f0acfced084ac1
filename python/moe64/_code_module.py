"""What modules that hold codes have in common: codes and scales follow the module to other devices, but never to another type,
and never leave the process that has read them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import _processes
from ._torch import keeping_types
from .formats import PACKED, Granularity, Quantized

_SUFFIXES = ("", "_scales", "_global_scale")
# What PyTorch takes for numbers: FSDP2 would cast it to the type of its mixed precision, and gloo cannot send it.
_NAMES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
if hasattr(torch, "float8_e8m0fnu"):  # torch >= 2.7
    _NAMES[torch.float8_e8m0fnu] = "e8m0"


class CodeModule(nn.Module):
    """A module with stacks of matrices as Quantized: `name`, `name_scales` and `name_global_scale`, parameters or buffers."""

    _formats: dict[str, dict[str, Any]]  # of a stack, by its name: what its tensors do not say
    has_interleaved_adapters = False  # whether gate and up alternate in adapters' B where they do not in these codes

    def _hold_codes(self, name: str, given: Quantized, as_parameter: bool) -> None:
        """As a frozen parameter codes are bytes, whatever their type was."""
        held = as_bytes(given) if as_parameter else given
        self._formats[name] = format_of(held)
        if as_parameter:
            self.register_parameter(name, nn.Parameter(held.values, requires_grad=False))
        else:
            self.register_buffer(name, held.values)
        self.register_buffer(name + "_scales", held.scales)
        self.register_buffer(name + "_global_scale", held.global_scale)

    def matrix(self, name: str) -> "torch.Tensor | Quantized":
        """A stack with all that gives its codes a meaning."""
        if name not in self._formats:
            return getattr(self, name)
        return Quantized(getattr(self, name), getattr(self, name + "_scales"),
                         global_scale=getattr(self, name + "_global_scale"), **self._formats[name])

    def extents(self, name: str) -> tuple[int, ...]:
        """Those of a stack of matrices as values: packed codes are half as wide."""
        *extents, cols = getattr(self, name).shape
        return *extents, cols * (2 if self._formats.get(name, {}).get("dtype") in PACKED else 1)

    def names_of_codes(self) -> list[str]:
        """The names of all codes and scales."""
        return [name + suffix for name in self._formats for suffix in _SUFFIXES
                if getattr(self, name + suffix) is not None]

    def _apply(self, fn, recurse: bool = True):  # noqa: ANN001, ANN202
        """.to(torch.bfloat16) leaves codes and scales."""
        return super()._apply(keeping_types(fn, [getattr(self, name) for name in self.names_of_codes()]), recurse)


def format_of(given: Quantized) -> dict[str, Any]:
    """What the tensors of a stack do not say."""
    return {"layout": Granularity.parse(given.layout), "global_divides": given.global_divides, "dtype": given.dtype,
            "scale_dtype": given.scale_dtype}


def as_bytes(given: Quantized) -> Quantized:
    """The same codes and scales as bytes whose meaning is stated, where PyTorch has a type for them."""
    def stated(tensor: torch.Tensor, word: Any) -> tuple[torch.Tensor, Any]:
        return (tensor.view(torch.uint8), _NAMES[tensor.dtype]) if tensor.dtype in _NAMES else (tensor, word)

    values, dtype = stated(given.values, given.dtype)
    scales, scale_dtype = stated(given.scales, given.scale_dtype)
    return Quantized(values, scales, given.layout, given.global_scale, given.global_divides, dtype, scale_dtype)


_processes.install()
