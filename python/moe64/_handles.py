"""Handles of the library's layers, each made once of its description and of where its tensors lie.

There is one cache. Its key is all that a handle is made of, and the handle is made of nothing else; so an entry is never
wrong, and the oldest goes when there are too many. Handles hold addresses, not tensors: a later tensor at the same address,
of the same shape, strides and type, is the same operand.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from . import _c
from ._description import Description, Format, Operands
from ._library import library
from ._torch import CPU, Memory, view_of
from .errors import InvalidArgumentError, ShapeMismatchError, UnsupportedError
from .formats import PACKED, Granularity


def _code(table: dict[str, int], what: str, word: str) -> int:
    if word not in table:
        raise InvalidArgumentError(f"[experts] {what} is '{word}', none of {', '.join(table)}")
    return table[word]


def halves(memory: Memory, interleaved: bool, what: str) -> tuple[Memory, Memory]:
    """Dimension 1 of a fused tensor split into its gate and its up part."""
    if len(memory.shape) < 2 or memory.shape[1] % 2:
        raise ShapeMismatchError(f"[experts] {what} is {list(memory.shape)}, expected an even number of rows in dimension 1 "
                                 "for gate and up: scale grids of a fused projection restart at the up half")
    rows, step = memory.shape[1], memory.stride[1]
    shape = (memory.shape[0], rows // 2, *memory.shape[2:])
    stride = (memory.stride[0], 2 * step, *memory.stride[2:]) if interleaved else memory.stride
    up = memory.address + (step if interleaved else rows // 2 * step) * memory.dtype.itemsize
    return memory._replace(shape=shape, stride=stride), memory._replace(address=up, shape=shape, stride=stride)


def _columns(scales: Memory) -> tuple[Memory, Memory]:
    """The global scales of gate and of up."""
    gate = scales._replace(shape=scales.shape[:1], stride=scales.stride[:1])
    return gate, gate._replace(address=scales.address + scales.stride[1] * scales.dtype.itemsize)


def per_part(of: Operands, description: Description, field: str, pair: bool) -> "tuple[Memory | None, ...]":
    """gate_up, its scales, bias, or LoRA B as one memory for each of its parts: gate and up, or one.

    pair   gate and up are stored apart; factors of LoRA never are
    """
    first = getattr(of, "gate_up" + field)
    if pair and field != "_lora_b":
        return first, getattr(of, "up" + field)
    if description.activation in _c.UNGATED:
        return (first,)
    if first is None:
        return None, None
    if field == "_global_scale":
        return (first, first) if len(first.shape) == 1 else _columns(first)
    return halves(first, description.interleaved, "gate_up" + field)


def matrix_of(name: str, form: Format, values: Memory | None, scales: Memory | None, scale: Memory | None) -> _c.Quantized:
    """One stack of matrices with all that gives its codes a meaning, as the C ABI sees it."""
    q = _c.Quantized(view_of(values, name, form.dtype or None), view_of(scales, name + "_scales", form.scale_dtype or None))
    q.global_ = _c.GlobalScale(view_of(scale, name + "_global_scale"), int(form.global_divides))
    q.layout = Granularity(form.layout, form.block_rows, form.block_cols).to_c()
    return q


def _require_a_gate_where_there_are_two_parts(d: Description, of: Operands) -> None:
    """silu here is the function alone; many configs call the gated one so."""
    if d.activation not in _c.UNGATED:
        return
    cols = of.down.shape[-1] * (2 if d.down_dtype in PACKED else 1)
    if of.up is None and of.gate_up.shape[1] != 2 * cols:
        return
    gated = {"silu": "silu_glu", "gelu": "gelu_glu or gelu_tanh_glu"}.get(d.activation, "one of those that end in _glu")
    rows = "are a pair" if of.up is not None else f"have {of.gate_up.shape[1]} rows where down has {cols} cols"
    raise ShapeMismatchError(f"[experts] activation is '{d.activation}', which has no gate, but gate and up {rows}: the gated "
                             f"activation is {gated}")


class Layer:
    """A handle of the library's layer over the memory of some tensors, which it does not keep alive."""

    handle: int | None = None

    def __init__(self, description: Description, operands: Operands) -> None:
        self._library = library()
        self._stacks: list[int] = []
        self.prepared: dict[tuple, Any] = {}  # arguments of forward by their form; addresses are those of a call
        try:
            self.handle = self._library.make("layer_create", self._describe(description, operands))
        finally:
            for stack in self._stacks:
                self._library.weights_destroy(stack)

    def __del__(self) -> None:
        if self.handle is not None:
            self._library.layer_destroy(self.handle)

    def saved_bytes(self, tokens: int, top_k: int, dtype: int, device: _c.Device = CPU) -> int:
        return self._library.ask("saved_bytes", self.handle, _c.LayerShape(tokens, top_k, dtype), device)

    def _describe(self, d: Description, of: Operands) -> _c.LayerDesc:
        pair = of.up is not None
        if d.interleaved and d.gate_up_layout == "block" and not pair and d.activation not in _c.UNGATED:
            raise UnsupportedError(f"[experts] gate_up is interleaved and has scales of block:{d.gate_up_block_rows}x"
                                   f"{d.gate_up_block_cols}: a block would cover rows of gate and of up")
        _require_a_gate_where_there_are_two_parts(d, of)
        activation = _c.ActivationSpec(kind=_code(_c.ACTIVATIONS, "activation", d.activation), alpha=d.alpha, limit=d.limit)
        desc = _c.LayerDesc(activation=activation, mode=_code(_c.MODES, "mode", d.mode),
                            scheme=_code(_c.SCHEMES, "scheme", d.scheme),
                            weight_on=_code(_c.PLACEMENTS, "weight_on", d.weight_on), experts_total=d.experts_total,
                            first_expert=d.first_expert, implementation=d.implementation.encode() or None)
        values, scales, globals_, bias, factors = (
            per_part(of, d, field, pair) for field in ("", "_scales", "_global_scale", "_bias", "_lora_b"))
        form = Format(*(getattr(d, "gate_up_" + field) for field in Format._fields))
        parts = [matrix_of("gate_up", form, *part) for part in zip(values, scales, globals_)]
        desc.gate_up = self._projection("gate_up", parts, bias)
        desc.gate_up.lora = self._lora("gate_up", of.gate_up_lora_a, factors, d.gate_up_lora_scaling)
        form = Format(*(getattr(d, "down_" + field) for field in Format._fields))
        down = matrix_of("down", form, of.down, of.down_scales, of.down_global_scale)
        desc.down = self._projection("down", [down], (of.down_bias,))
        desc.down.lora = self._lora("down", of.down_lora_a, (of.down_lora_b,), d.down_lora_scaling)
        return desc

    def _stack(self, parts: list[_c.Quantized]) -> int:
        made = self._library.make("weights_gate_up" if len(parts) == 2 else "weights_single", *parts)
        self._stacks.append(made)
        return made

    def _projection(self, name: str, parts: list[_c.Quantized], bias: "tuple[Memory | None, ...]") -> _c.Projection:
        projection = _c.Projection(weights=self._stack(parts))
        for part, memory in enumerate(bias):
            projection.bias[part] = view_of(memory, name + "_bias")
        return projection

    def _lora(self, name: str, a: Memory | None, b: "tuple[Memory | None, ...]", scaling: float) -> _c.LoraAdapter:
        if a is None:
            return _c.LoraAdapter()
        return _c.LoraAdapter(self._stack([_c.Quantized(view_of(a, name + "_lora_a"))]),
                              self._stack([_c.Quantized(view_of(part, name + "_lora_b")) for part in b]), scaling)


_layers: dict[tuple, Layer] = {}
_layers_lock = threading.Lock()  # of additions; a lookup needs none
_KEPT = 1024  # handles: a few hundred bytes each


def layer_of(operands: Operands, description: Description) -> Layer:
    """The handle for these tensors, made at the first call."""
    key = (description, *[None if t is None else (t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in operands])
    found = _layers.get(key)
    if found is None:
        found = Layer(description, Operands(*(None if memory is None else Memory(*memory) for memory in key[1:])))
        with _layers_lock:
            _layers[key] = found
            while len(_layers) > _KEPT:
                del _layers[next(iter(_layers))]
    return found


_NOWHERE = 4096  # an address that nobody reads


def layer_without_memory(operands: Operands, description: Description) -> Layer:
    """A layer of the same extents to ask for sizes, for tensors that a compiler traces. It makes their extents constants of
    the graph; as on the CPU, so that a graph for a device can be traced where there is none."""
    def constant(value: Any) -> Any:
        return int(value) if isinstance(value, torch.SymInt) else value

    def nowhere(tensor: torch.Tensor | None) -> Memory | None:
        return tensor if tensor is None else Memory(_NOWHERE, tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())),
                                                    tensor.dtype, torch.device("cpu"))

    return Layer(Description(*map(constant, description)), Operands(*map(nowhere, operands)))
