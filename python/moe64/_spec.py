"""A layer as torch operators see it: a list of tensors and one line of text that says what each of them is.

Operators take tensors, numbers and text, so everything about an ExpertWeights that is not a tensor becomes a line of
`key=value`; the library's handle of the layer is made from both, once for the same memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import lru_cache
from operator import is_

import torch

from . import _c
from ._library import library
from ._torch import view
from .errors import GradientError, InvalidArgumentError, ShapeMismatchError, UnsupportedError
from .formats import Activation, ExpertWeights, Granularity, Projection, Quantized


def _format_of(q: object) -> str:
    if not isinstance(q, Quantized):
        return "-"
    return f"{q.dtype or '-'}/{q.scale_dtype or '-'}/{q.layout.text}/{'divide' if q.global_divides else 'multiply'}"


def _take(roles: list[str], tensors: list[torch.Tensor], role: str, tensor: torch.Tensor | None,
          codes: bool = False) -> None:
    if tensor is not None:
        if codes and tensor.requires_grad and torch.is_grad_enabled():
            raise GradientError(f"[experts] {role} requires a gradient, but quantised weights have none: freeze it with "
                                "requires_grad_(False), or train LoRA beside it")
        roles.append(role)
        tensors.append(tensor)


def _take_matrix(roles: list[str], tensors: list[torch.Tensor], role: str, given: object) -> str:
    """Adds the tensors of one matrix stack; answers its format."""
    if isinstance(given, Quantized):
        _take(roles, tensors, role, given.values, codes=True)
        _take(roles, tensors, role + ".scales", given.scales, codes=True)
        _take(roles, tensors, role + ".global", given.global_scale, codes=True)
    elif isinstance(given, torch.Tensor):
        _take(roles, tensors, role, given)
    else:
        raise InvalidArgumentError(f"[experts] {role} is a {type(given).__name__}, neither a tensor nor a Quantized")
    return _format_of(given)


def flatten(weights: ExpertWeights) -> tuple[list[torch.Tensor], str, list[float], list[int]]:
    """The tensors of a layer, the line that names them, and its numbers: [alpha, limit, scaling of LoRA at gate_up, at
    down] and [experts_total, first_expert]. Numbers stay out of the line because a compiled graph may leave them open.

    This function is traced by torch.compile: no caches, no parsing.
    """
    roles: list[str] = []
    tensors: list[torch.Tensor] = []
    formats = []
    scalings = []
    for name in ("gate_up", "down"):
        projection: Projection = getattr(weights, name)
        pair = isinstance(projection.weights, (tuple, list))
        if pair and name == "gate_up":
            gate, up = projection.weights
            formats.append(_take_matrix(roles, tensors, "gate_up", gate))
            if _take_matrix(roles, tensors, "up", up) != formats[-1]:
                raise InvalidArgumentError("[experts] gate and up are stored differently")
        else:
            formats.append(_take_matrix(roles, tensors, name, projection.weights))
        if isinstance(projection.bias, (tuple, list)):
            _take(roles, tensors, name + ".bias", projection.bias[0])
            _take(roles, tensors, "up.bias", projection.bias[1])
        else:
            _take(roles, tensors, name + ".bias", projection.bias)
        lora = projection.lora
        scalings.append(lora.scaling if lora is not None else 0.0)
        if lora is not None:
            _take(roles, tensors, name + ".a", lora.a)
            _take(roles, tensors, name + ".b", lora.b)
    act = weights.activation
    assert isinstance(act, Activation)
    line = (f"roles={','.join(roles)} gate_up={formats[0]} down={formats[1]} "
            f"layout={'interleaved' if weights.interleaved else 'concatenated'} act={act.kind} mode={weights.mode} "
            f"scheme={weights.scheme} on={weights.weight_on} impl={weights.implementation or ''}")
    return tensors, line, [act.alpha, act.limit, *scalings], [weights.experts_total, weights.first_expert]


class Spec:
    """The line, parsed."""

    def __init__(self, line: str) -> None:
        pairs = dict(word.split("=", 1) for word in line.split(" "))
        self.roles = tuple(pairs["roles"].split(","))
        self.index = {role: i for i, role in enumerate(self.roles)}
        self.formats = {"gate_up": pairs["gate_up"], "down": pairs["down"]}
        self.interleaved = pairs["layout"] == "interleaved"
        self.activation = pairs["act"]
        self.mode = self._known(_c.MODES, "mode", pairs["mode"])
        self.scheme = self._known(_c.SCHEMES, "scheme", pairs["scheme"])
        self.weight_on = self._known(_c.PLACEMENTS, "weight_on", pairs["on"])
        self.implementation = pairs["impl"].encode() or None

    @staticmethod
    def _known(table: dict[str, int], what: str, word: str) -> int:
        if word not in table:
            raise InvalidArgumentError(f"[experts] {what} is '{word}', none of {', '.join(table)}")
        return table[word]

    @property
    def gated(self) -> bool:
        return self.activation not in _c.UNGATED

    def fused(self) -> bool:
        return self.gated and "up" not in self.index

    def gate_up_rows(self, operands: list[torch.Tensor]) -> int:
        rows = operands[self.index["gate_up"]].shape[1]
        return rows if "up" not in self.index else 2 * rows


parse = lru_cache(maxsize=1024)(Spec)


def halves(tensor: torch.Tensor, interleaved: bool, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Dimension 1 of a fused tensor split into its gate and its up part."""
    rows = tensor.shape[1]
    if rows % 2:
        raise ShapeMismatchError(f"[experts] {what} has {rows} rows, which do not split into gate and up: scale grids "
                                 "of a fused projection restart at the up half")
    if interleaved:
        return tensor[:, 0::2], tensor[:, 1::2]
    return tensor[:, : rows // 2], tensor[:, rows // 2:]


def sources(weights: ExpertWeights) -> list[object]:
    """Everything that flatten looks at, for the question whether something was exchanged since."""
    found: list[object] = [weights.activation, weights.interleaved, weights.mode, weights.scheme, weights.weight_on,
                           weights.implementation, weights.experts_total, weights.first_expert]
    for projection in (weights.gate_up, weights.down):
        found += (projection.weights, projection.bias, projection.lora)
        for matrix in projection.weights if isinstance(projection.weights, (tuple, list)) else (projection.weights,):
            if isinstance(matrix, Quantized):
                found += (matrix.values, matrix.scales, matrix.global_scale, matrix.layout, matrix.dtype,
                          matrix.scale_dtype, matrix.global_divides)
            else:
                found.append(matrix)
        if isinstance(projection.bias, (tuple, list)):
            found += projection.bias
        if projection.lora is not None:
            found += (projection.lora.a, projection.lora.b, projection.lora.scaling)
    return found


class Remembered:
    """What layer_of found for some ExpertWeights, and how to see that it still holds: the same objects at the same
    addresses, with tensors that nobody changed in place (their form may have changed with it)."""

    def __init__(self, weights: ExpertWeights, operands: list[torch.Tensor], layer: "Layer") -> None:
        self.sources, self.layer, self.operands = sources(weights), layer, operands
        self.places = [(tensor.data_ptr(), tensor._version) for tensor in operands]

    def holds(self, weights: ExpertWeights) -> bool:
        now = sources(weights)
        return (len(now) == len(self.sources) and all(map(is_, now, self.sources))
                and [(tensor.data_ptr(), tensor._version) for tensor in self.operands] == self.places)


class Layer:
    """A handle of the library's layer over the memory of some tensors, which it does not keep alive."""

    handle: int | None = None

    def __init__(self, spec: Spec, operands: list[torch.Tensor], numbers: list[float], extents: list[int]) -> None:
        self._library = library()
        self._spec, self._by_role = spec, dict(zip(spec.roles, operands))
        self._stacks: list[int] = []
        self.templates: dict[tuple, tuple] = {}
        try:
            alpha, limit, *scalings = numbers
            self._scaling = dict(zip(("gate_up", "down"), scalings))
            desc = _c.LayerDesc(activation=Activation(spec.activation, alpha, limit).to_c(), mode=spec.mode,
                                scheme=spec.scheme, weight_on=spec.weight_on, experts_total=extents[0],
                                first_expert=extents[1], implementation=spec.implementation)
            desc.gate_up, desc.down = self._projection("gate_up"), self._projection("down")
            self.handle = self._library.make("layer_create", desc)
        finally:
            for stack in self._stacks:
                self._library.weights_destroy(stack)
            del self._by_role

    def __del__(self) -> None:
        if self.handle is not None:
            self._library.layer_destroy(self.handle)

    def _parts(self, role: str) -> list[_c.Quantized]:
        """The matrices of a projection: gate and up, or one."""
        spec, have = self._spec, self._by_role
        found: list[list] = [
            [have[name], have.get(name + ".scales"), have.get(name + ".global")]
            for name in ([role, "up"] if role == "gate_up" and "up" in have else [role])
        ]
        form = spec.formats[role]
        dtype, scale_dtype, layout, applied = form.split("/") if form != "-" else ("-", "-", "none", "multiply")
        if role == "gate_up" and spec.fused():
            values, scales, scale = found[0]
            if layout.startswith("block") and spec.interleaved:
                raise UnsupportedError(f"[experts] gate_up is interleaved and has scales of {layout}: a block would "
                                       "cover rows of gate and of up")
            both: list[tuple] = [halves(values, spec.interleaved, "gate_up")]
            both.append(halves(scales, spec.interleaved, "the scales of gate_up") if scales is not None
                        else (None, None))
            both.append((scale, scale) if scale is None or scale.dim() == 1
                        else (scale[:, 0], scale[:, 1]))
            found = [list(part) for part in zip(*both)]
        result = []
        for values, scales, scale in found:
            q = _c.Quantized(view(values, role, None if dtype == "-" else dtype),
                             view(scales, role + ".scales", None if scale_dtype == "-" else scale_dtype))
            q.global_ = _c.GlobalScale(view(scale, role + ".global"), int(applied == "divide"))
            q.layout = Granularity.parse(layout).to_c()
            result.append(q)
        return result

    def _stack(self, parts: list[_c.Quantized]) -> int:
        if len(parts) == 2:
            made = self._library.make("weights_gate_up", parts[0], parts[1])
        else:
            made = self._library.make("weights_single", parts[0])
        self._stacks.append(made)
        return made

    def _projection(self, role: str) -> _c.Projection:
        have = self._by_role
        projection = _c.Projection(weights=self._stack(self._parts(role)))
        for part, tensor in enumerate(self._per_part(role, ".bias")):
            projection.bias[part] = view(tensor, role + ".bias")
        if role + ".a" in have:
            factors = [_c.Quantized(view(tensor, role + ".b")) for tensor in self._per_part(role, ".b")]
            projection.lora = _c.LoraAdapter(self._stack([_c.Quantized(view(have[role + ".a"], role + ".a"))]),
                                             self._stack(factors), self._scaling[role])
        return projection

    def _per_part(self, role: str, suffix: str) -> list[torch.Tensor]:
        return per_part(self._spec, role, suffix, self._by_role)


def per_part(spec: Spec, role: str, suffix: str, have: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """gate_up, its bias or its LoRA B as one tensor per part, or down's; empty when it is not there."""
    tensor = have.get(role + suffix)
    if tensor is None:
        return []
    if role == "down" or not spec.gated:
        return [tensor]
    if suffix != ".b" and "up" in spec.index:
        other = have.get("up" + suffix)
        return [tensor, other] if other is not None else [tensor]
    return list(halves(tensor, spec.interleaved, role + suffix))


_layers: "OrderedDict[tuple, Layer]" = OrderedDict()
_layers_lock = threading.Lock()
_KEPT = 1024  # handles: a few hundred bytes each


def layer_of(operands: list[torch.Tensor], line: str, numbers: list[float], extents: list[int]) -> Layer:
    """The handle for this memory, made at the first call. It holds addresses only: a later tensor with the same
    address, shape, strides and type is the same layer."""
    key = (line, *numbers, *extents, *((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in operands))
    with _layers_lock:
        found = _layers.get(key)
        if found is not None:
            _layers.move_to_end(key)
            return found
    made = Layer(parse(line), operands, numbers, extents)
    with _layers_lock:
        _layers[key] = made
        while len(_layers) > _KEPT:
            _layers.popitem(last=False)
    return made
