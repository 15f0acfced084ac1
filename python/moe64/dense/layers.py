"""FP8Linear and FP8GroupedLinear of Transformers with moe64's product."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from transformers.integrations import finegrained_fp8

from .._description import Format
from .._torch import FLOATS, keeping_types
from ..errors import DtypeMismatchError, GradientError, InvalidArgumentError, ShapeMismatchError, UnsupportedError
from .product import mode_of, product, stack_of

class Served:
    """What both classes do in place of the kernels of FP8Linear; parameters, names and what is saved stay Transformers'."""

    weight: nn.Parameter
    bias: "nn.Parameter | None"
    in_features: int
    out_features: int
    scale_names = ("weight_scale_inv", "activation_scale")  # of the weight, and of x where that is static

    def _apply(self, fn, recurse: bool = True):  # noqa: ANN001, ANN202
        """Codes and scales go to other devices, but never to another type."""
        kept = list(self.coded().values())
        return super()._apply(keeping_types(fn, kept), recurse)  # type: ignore[misc]

    def coded(self) -> dict[str, nn.Parameter]:
        """Codes and scales, where the weight is codes."""
        if self.weight.element_size() > 1:
            return {}
        found: Any = {name: self._parameters.get(name) for name in ("weight", *self.scale_names)}  # type: ignore[attr-defined]
        return {name: parameter for name, parameter in found.items() if parameter is not None}

    def names_of_codes(self) -> list[str]:
        """As modules of experts have it: what DistributedDataParallel leaves alone."""
        return list(self.coded())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.weight.element_size() > 1:  # a matrix that the checkpoint has in 16 bits
            return super().forward(input)  # type: ignore[misc]
        x = self._typed(input)
        return self._multiplied(x.reshape(-1, x.shape[-1]), 1).reshape(*input.shape[:-1], self.out_features)

    def _stored(self, groups: int) -> tuple[torch.Tensor, torch.Tensor, Format]:
        """Codes [groups, out, in], the grid of their scales, and how both are to be read."""
        weight, scales = self.weight, self._scales()
        rows = weight.shape[0] // groups
        values = weight.view(groups, rows, weight.shape[1])
        if weight.dtype == torch.int8:  # two FP4 codes in a byte
            return values, scales.view(groups, rows, -1), Format("fp4", "", "group", 0, 32, False)
        block: Any = self.block_size  # type: ignore[attr-defined]
        if block is None:
            if scales.numel() != 1:
                raise ShapeMismatchError(f"[dense] weight_scale_inv is {list(scales.shape)}, expected one value: the config "
                                         "states no weight_block_size")
            return values, scales.reshape(1, 1, 1).expand(groups, 1, 1), Format("", "", "tensor", 0, 0, False)
        if groups > 1 and rows % block[0]:
            raise ShapeMismatchError(f"[dense] a group has {rows} of {weight.shape[0]} rows, no multiple of the block of "
                                     f"{block[0]}: a block would scale rows of two groups")
        if scales.dim() != 2 or scales.shape[0] % groups:
            raise ShapeMismatchError(f"[dense] weight_scale_inv is {list(scales.shape)}, expected the grid of blocks of "
                                     f"{list(block)} of a weight {list(weight.shape)}")
        scales = scales.view(groups, scales.shape[0] // groups, scales.shape[1])
        return values, scales, Format("", "", "block", int(block[0]), int(block[1]), False)

    def _scales(self) -> torch.Tensor:
        name = self.scale_names[0]
        scales: torch.Tensor = getattr(self, name)
        if torch.is_grad_enabled() and (self.weight.requires_grad or scales.requires_grad):
            raise GradientError(f"[dense] weight or {name} of {type(self).__name__} requires a gradient, but quantised weights "
                                "have none: freeze them with requires_grad_(False), or train LoRA")
        return scales

    def _multiplied(self, x: torch.Tensor, groups: int) -> torch.Tensor:
        """x [groups * rows, in]"""
        width = self.in_features
        if x.shape[-1] != width:
            raise ShapeMismatchError(f"[dense] x has {x.shape[-1]} columns, {type(self).__name__} takes {width}")
        values, scales, form = self._stored(groups)
        scheme: str = self.activation_scheme  # type: ignore[attr-defined]
        if scheme == "static":
            x = on_static_grid(x, getattr(self, self.scale_names[1], None), type(self).__name__)
        bias = None if self.bias is None else self.bias.view(groups, -1)
        return product(x, values, scales, bias, "auto" if scheme == "dynamic" else "w8a16", form)

    def _typed(self, x: torch.Tensor) -> torch.Tensor:
        """As torch.nn.functional.linear takes x under autocast."""
        if x.dtype not in FLOATS:
            raise DtypeMismatchError(f"[dense] x is {x.dtype}, not float32, bfloat16 or float16")
        return x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x


def on_static_grid(x: torch.Tensor, scale: torch.Tensor | None, name: str) -> torch.Tensor:
    """x as values that a static activation scale times e4m3 can hold; gradients pass straight through."""
    if scale is None or scale.numel() != 1:
        raise UnsupportedError(f"[dense] {name} has activation_scheme 'static' and "
                               f"{'no activation_scale' if scale is None else f'activation_scale {list(scale.shape)}'}")
    given = scale.detach().float().reshape(())
    codes = (x.detach().float() / given).clamp(-448, 448).to(torch.float8_e4m3fn)
    return x + ((codes.float() * given).to(x.dtype) - x.detach())


class CodeLinear(Served, finegrained_fp8.FP8Linear):
    """FP8Linear whose product is moe64's: codes [out, in] with one scale or a grid of blocks, x of any leading dimensions.

        >>> layer = transformers.integrations.finegrained_fp8.FP8Linear(64, 32, block_size=(16, 16))
        >>> named = moe64.transformers.serve(torch.nn.Sequential(layer))
        >>> type(layer).__name__, layer(torch.randn(2, 5, 64)).shape
        ('CodeLinear', torch.Size([2, 5, 32]))
    """


_GROUPED: Any = getattr(finegrained_fp8, "FP8GroupedLinear", finegrained_fp8.FP8Linear)  # there from Transformers 5.8 on


class CodeGroupedLinear(Served, _GROUPED):
    """FP8GroupedLinear, a block-diagonal matrix: x [..., groups, in] to [..., groups, out / groups].

        >>> y = model.model.layers[0].self_attn.o_a_proj(torch.randn(2, 5, 8, 64))
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.element_size() > 1:
            return super().forward(x)
        groups = self.n_groups
        if x.dim() < 2 or x.shape[-2] != groups:
            raise ShapeMismatchError(f"[dense] x is {list(x.shape)}, expected [..., {groups}, {self.in_features}]")
        first = self._typed(x).movedim(-2, 0)
        y = self._multiplied(first.reshape(-1, first.shape[-1]), groups)
        return y.reshape(*first.shape[:-1], self.out_features // groups).movedim(0, -2)


_served: "dict[type, type]" = {_GROUPED: CodeGroupedLinear, finegrained_fp8.FP8Linear: CodeLinear}
_own = {served: own for own, served in _served.items()}


def serve(model: nn.Module) -> list[str]:
    """Makes moe64 run the FP8Linear layers of a model; answers their names. Done where experts run as "moe64".

        >>> model = torch.nn.Sequential(transformers.integrations.finegrained_fp8.FP8Linear(64, 32, block_size=(16, 16)))
        >>> moe64.transformers.serve(model)
        ['0']

    Codes and scales are frozen: they have no gradients. Layers stay what they are for Transformers and PEFT, and are saved as
    before; `leave(model)` gives them back.
    """
    return _exchange(model, _served)


def leave(model: nn.Module) -> list[str]:
    """Gives the layers that `serve` took back to the kernels of Transformers; answers their names.

        >>> moe64.transformers.leave(torch.nn.Sequential())
        []
    """
    return _exchange(model, _own)


def _exchange(model: nn.Module, classes: "dict[type, type]") -> list[str]:
    names = []
    for name, module in model.named_modules():
        other = classes.get(type(module))
        if other is None:
            continue
        module.__class__ = other
        if isinstance(module, Served):
            freeze(module)
        if "_old_forward" in module.__dict__:  # accelerate's hooks call what was there before them
            module._old_forward = types.MethodType(other.forward, module)  # type: ignore[attr-defined]
        names.append(name)
    return names


def freeze(layer: Served) -> None:
    for parameter in layer.coded().values():
        if parameter.requires_grad:
            parameter.requires_grad_(False)


def explain(layer: nn.Module, dtype: torch.dtype = torch.bfloat16) -> tuple[str, str]:
    """The mode that a served layer multiplies x of a type in, and why.

        >>> moe64.dense.explain(model.model.layers[0].self_attn.q_proj)
        ('w8a16', 'no CPU multiplies 8-bit floats')
    """
    if not isinstance(layer, Served):
        raise InvalidArgumentError(f"[dense] {type(layer).__name__} is no layer that moe64 serves")
    if layer.weight.element_size() > 1:
        return "native", f"the weight is {layer.weight.dtype} and needs no scale"
    if layer.activation_scheme != "dynamic":  # type: ignore[attr-defined]
        return "w8a16", "the layer states no dynamic quantisation of activations"
    with torch.no_grad():
        values, scales, form = layer._stored(getattr(layer, "n_groups", 1))
        return mode_of(stack_of(values, scales, form), dtype, values, form)
