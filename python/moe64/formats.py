"""The words of the Python API: how values are stored, and what an expert layer is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from . import _c
from .errors import InvalidArgumentError, MissingScaleError

_KINDS = {"none": _c.NONE, "tensor": _c.TENSOR, "row": _c.ROW, "block": _c.BLOCK, "group": _c.GROUP}
PACKED = ("int4", "fp4")  # two per byte


def _as_words(given: object) -> str:
    """A block that was given as a pair, in the words that are taken; else an example of them."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(extent, int) for extent in given):
        return f"block:{given[0]}x{given[1]}"
    return "block:128x128"


@dataclass(frozen=True)
class Granularity:
    """How many values share one scale: "none", "tensor", "row", "block:128x128", "group:32".

        >>> Granularity.parse("block:128x128").grid(130, 256)
        (2, 2)
    """

    kind: str = "none"
    block_rows: int = 0
    block_cols: int = 0
    text: str = field(init=False, default="", compare=False, repr=False)  # made once: torch.compile traces its users

    def __post_init__(self) -> None:
        text = self.kind
        extents = {"block": (self.block_rows, self.block_cols), "group": (self.block_cols,)}.get(self.kind, (1,))
        if any(isinstance(extent, int) and extent < 1 for extent in extents):  # those of a compiled graph may be open
            raise InvalidArgumentError(f"[granularity] {self.kind}:{'x'.join(map(str, extents))} has no extent of 1 or more")
        if self.kind == "block":
            text = f"block:{self.block_rows}x{self.block_cols}"
        elif self.kind == "group":
            text = f"group:{self.block_cols}"
        object.__setattr__(self, "text", text)

    @classmethod
    def parse(cls, text: "str | Granularity") -> "Granularity":
        if isinstance(text, Granularity):
            return text
        if not isinstance(text, str):
            raise InvalidArgumentError(f"[granularity] layout is {text!r}, a {type(text).__name__}: say it in words, as "
                                       f"\"{_as_words(text)}\"")
        match = re.fullmatch(r"(none|tensor|row)|block:(\d+)x(\d+)|group:(\d+)", text)
        if not match:
            raise InvalidArgumentError(f"[granularity] '{text}' is none of none, tensor, row, block:RxC, group:G")
        plain, rows, cols, group = match.groups()
        if plain:
            return cls(plain)
        return cls("block", int(rows), int(cols)) if rows else cls("group", 0, int(group))

    def __str__(self) -> str:
        return self.text

    def grid(self, rows: int, cols: int) -> tuple[int, int]:
        """Extents of the scales of a [rows, cols] matrix."""
        if self.kind == "tensor":
            return 1, 1
        if self.kind == "row":
            return rows, 1
        if self.kind == "group":
            return rows, -(-cols // self.block_cols)
        if self.kind == "block":
            return -(-rows // self.block_rows), -(-cols // self.block_cols)
        raise InvalidArgumentError("[granularity] plain values have no scales")

    def to_c(self) -> _c.Granularity:
        if self.kind not in _KINDS:
            raise InvalidArgumentError(f"[granularity] '{self.kind}' is none of {', '.join(_KINDS)}")
        return _c.Granularity(kind=_KINDS[self.kind], block_rows=self.block_rows, block_cols=self.block_cols)

    @classmethod
    def from_c(cls, given: _c.Granularity) -> "Granularity":
        return cls(list(_KINDS)[given.kind], given.block_rows, given.block_cols)


@dataclass
class Quantized:
    """A stack of matrices with everything that gives its codes meaning. Nothing is inferred from shapes.

    values         [experts, rows, cols] (or [rows, cols]) float8_e4m3fn, float8_e5m2, int8; uint8 or int8 bytes with
                   `dtype` saying what they are: "e4m3", "e5m2", or packed two per byte "int4", "fp4"
    scales         the grid of `layout` (of rows also without the last extent, 1); float32, bfloat16, float16,
                   float8_e8m0fnu, float8_e4m3fn; uint8 bytes with `scale_dtype` "e8m0" or "e4m3". A scale is always
                   multiplied.
    global_scale   [experts] float32, NVFP4's second level: multiplied, or divided by with global_divides

        >>> q = moe64.Quantized(codes, scales, "block:128x128")
    """

    values: torch.Tensor
    scales: torch.Tensor
    layout: Granularity  # or its text
    global_scale: torch.Tensor | None = None
    global_divides: bool = False
    dtype: str | None = None
    scale_dtype: str | None = None

    if TYPE_CHECKING:
        def __init__(self, values: torch.Tensor, scales: torch.Tensor, layout: "Granularity | str",
                     global_scale: torch.Tensor | None = None, global_divides: bool = False, dtype: str | None = None,
                     scale_dtype: str | None = None) -> None: ...

    def __post_init__(self) -> None:
        self.layout = Granularity.parse(self.layout)
        if self.scales is None:
            raise MissingScaleError(f"[quantized] {self.values.dtype} values without the scale that gives them meaning")
        if self.layout.kind == "row" and self.scales.dim() == self.values.dim() - 1:
            self.scales = self.scales.unsqueeze(-1)  # [experts, rows] is the same grid without its last extent

    @property
    def packed(self) -> bool:
        return self.dtype in PACKED

    @property
    def cols(self) -> int:
        return self.values.shape[-1] * (2 if self.packed else 1)


@dataclass
class Lora:
    """LoRA of a projection: + scaling * (x A^T) B^T.

    a        [experts, rank, in]
    b        [experts, out, rank]; of a gate_up projection gate rows before up rows, or interleaved like its base
    scaling  factor, alpha / rank of most configurations

        >>> lora = moe64.Lora(torch.randn(8, 4, 64), torch.zeros(8, 64, 4), scaling=2.0)
    """

    a: torch.Tensor
    b: torch.Tensor
    scaling: float = 1.0


@dataclass(frozen=True)
class Activation:
    """silu_glu, gelu_glu, gelu_tanh_glu, gptoss_glu, clamped_silu_glu, step_glu, or without a gate silu, gelu, relu2.

        >>> moe64.Activation("clamped_silu_glu", limit=10.0).gated
        True
    """

    kind: str = "silu_glu"
    alpha: float = 1.702
    limit: float = 7.0

    @classmethod
    def parse(cls, given: "str | Activation") -> "Activation":
        if not isinstance(given, (str, Activation)):
            raise InvalidArgumentError(f"[activation] activation is {given!r}, neither an Activation nor one of "
                                       f"{', '.join(_c.ACTIVATIONS)}: functions are not called. moe64.activate and "
                                       "moe64.grouped_gemm are the parts of a layer with a gate of its own")
        made = cls(given) if isinstance(given, str) else given
        if made.kind not in _c.ACTIVATIONS:
            raise InvalidArgumentError(f"[activation] '{made.kind}' is none of {', '.join(_c.ACTIVATIONS)}")
        return made

    @property
    def gated(self) -> bool:
        return self.kind not in _c.UNGATED

    @property
    def clamped(self) -> bool:
        return self.kind in _c.CLAMPED

    def to_c(self) -> _c.ActivationSpec:
        return _c.ActivationSpec(kind=_c.ACTIVATIONS[self.kind], alpha=self.alpha, limit=self.limit)


@dataclass
class Projection:
    """One projection of all experts: weights [experts, out, in], bias [experts, out], LoRA.

    Of a gated gate_up projection `weights` is one fused tensor or Quantized of [experts, 2 * inter, in], or a pair
    (gate, up) of [experts, inter, in]; `bias` follows the same form. The scale grid of a fused one restarts at the up
    half: 2 * ceil(inter / block_rows) rows.

        >>> projection = moe64.Projection(down, bias=torch.zeros(down.shape[:2]))
    """

    weights: Any
    bias: Any = None
    lora: Lora | None = None


@dataclass
class ExpertWeights:
    """The weights of one expert layer and how they are used.

        >>> weights = moe64.ExpertWeights(gate_up, down, activation="silu_glu")
        >>> weights = moe64.ExpertWeights(moe64.Quantized(codes, scales, "block:128x128"), down)

    gate_up, down    a tensor, a Quantized, or a Projection when there is a bias or LoRA
    activation       a name or an Activation with its parameters
    interleaved      rows of a fused gate_up are gate 0, up 0, gate 1, ... (gpt-oss); scales of rows and biases too
    mode             "auto", "w8a16", "w8a8" or "native"
    scheme           "dynamic" when the checkpoint states that activations are quantised on the fly
    weight_on        "output", or "input": the routing weight multiplies the expert's input (Llama-4)
    experts_total    0, or the number of all experts when the stacks hold the part that begins at first_expert
    """

    gate_up: Any
    down: Any
    activation: Activation = field(default_factory=Activation)  # or its name
    interleaved: bool = False
    mode: str = "auto"
    scheme: str = "unstated"
    weight_on: str = "output"
    experts_total: int = 0
    first_expert: int = 0
    implementation: str | None = None

    if TYPE_CHECKING:
        def __init__(self, gate_up: Any, down: Any, activation: "Activation | str" = ..., interleaved: bool = False,
                     mode: str = "auto", scheme: str = "unstated", weight_on: str = "output", experts_total: int = 0,
                     first_expert: int = 0, implementation: str | None = None) -> None: ...

    def __post_init__(self) -> None:
        self.activation = Activation.parse(self.activation)
        for name in ("gate_up", "down"):
            if not isinstance(getattr(self, name), Projection):
                setattr(self, name, Projection(getattr(self, name)))

    def with_lora(self, gate_up: Lora | None, down: Lora | None) -> "ExpertWeights":
        """The same weights with LoRA."""
        return replace(self, gate_up=replace(self.gate_up, lora=gate_up), down=replace(self.down, lora=down))
