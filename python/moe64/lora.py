"""PEFT's LoRA on expert weights (`target_parameters`), as low-rank products instead of a sum with the frozen base.

PEFT adds the product of both factors to the whole stack of experts before each call; on FP8 codes that sum would ignore
the scales. While the experts of a model run as "moe64" their adapters are handed over as two thin factors instead:

    config = LoraConfig(r=16, lora_alpha=16, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    model = get_peft_model(model, config)     # after import moe64.transformers

Saving and loading stay PEFT's, and what a file states about the layout of B is kept. Its own product on quantised codes
(another implementation, or merging) raises.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import nn

from . import _adapter_layout
from ._adapter_layout import LAYOUTS, is_pefts, layout_of
from ._code_module import CodeModule
from ._processes import holds_codes, runs_here
from .errors import DtypeMismatchError, InvalidArgumentError, ShapeMismatchError, UnsupportedError
from .formats import Lora

__all__ = ["active_factors", "factors_of", "install", "set_layout"]

_active = threading.local()
_installed = False
_TARGETS = ("gate_up_proj", "up_proj", "down_proj")


def factors_of(a: torch.Tensor, b: torch.Tensor, experts: int, scaling: float, layout: str = "peft") -> Lora:
    """Stored factors as [experts, rank, in] and [experts, out, rank].

    a, b     [experts * rank, in] and [out, rank * experts], as adapters are saved
    layout   of the second extent of b: "peft" has the expert fastest ([out, rank, experts]), "unsloth" the rank
             ([out, experts, rank])

        >>> moe64.lora.factors_of(torch.randn(8 * 4, 64), torch.randn(32, 4 * 8), experts=8, scaling=1.0).b.shape
        torch.Size([8, 32, 4])
    """
    if layout not in LAYOUTS:
        raise InvalidArgumentError(f"[lora] layout is '{layout}', neither peft nor unsloth")
    if a.shape[0] % experts or a.shape[0] != b.shape[1]:
        raise ShapeMismatchError(f"[lora] A is {list(a.shape)} and B {list(b.shape)}, which is no common rank of {experts} "
                                 "experts")
    rank = a.shape[0] // experts
    if layout == "peft":
        second = b.reshape(b.shape[0], rank, experts).permute(2, 0, 1)
    else:
        second = b.reshape(b.shape[0], experts, rank).permute(1, 0, 2)
    return Lora(a.reshape(experts, rank, a.shape[1]), second, scaling)


def set_layout(model: nn.Module, layout: str, adapter: str | None = None) -> int:
    """States how B of a model's adapters is laid out over experts, "peft" or "unsloth", where their files do not; answers of
    how many.

    adapter   the name of one adapter; None: all of them

    Files of unsloth from 2026.9.6 on state it, and what they state is read: saying otherwise here is refused. Older ones do
    not; they are read as "unsloth" for the families that were trained so, and refused for others until it is stated here.
    Everything else is PEFT's. PEFT itself (merging, other experts implementations) reads every B as its own: that is refused
    for adapters in the other layout. A saved adapter states its layout in the words of unsloth.

        >>> model = PeftModel.from_pretrained(model, "trained-by-unsloth")
        >>> moe64.lora.set_layout(model, "unsloth")
    """
    if layout not in LAYOUTS:
        raise InvalidArgumentError(f"[lora] layout is '{layout}', neither peft nor unsloth")
    return _adapter_layout.state(model, layout, adapter)


def active_factors(module: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Lora]:
    """The factors that PEFT has switched on for this call of an experts module, by parameter name, in `dtype`.

        >>> moe64.lora.active_factors(experts)    # outside of a call of the model there are none
        {}
    """
    given = getattr(_active, "modules", {}).get(id(module), {})
    handed = {name: (wrapper, adapters) for name, (wrapper, adapters, _) in given.items()}
    for name, pair in handed.items():
        given[name] = (*pair, True)
    around = getattr(_active, "calls", {}).get(id(module), [])
    for wrapper, parameter in around:
        adapters = _switched_on(wrapper)
        if adapters and wrapper.parameter_name in _TARGETS and wrapper.parameter_name not in handed:
            _require_no_sum(module, wrapper.parameter_name, parameter)
            handed[wrapper.parameter_name] = (wrapper, adapters)
    _require_all_seen(module, {wrapper.parameter_name for wrapper, _ in around} | handed.keys())
    return {name: _converted(wrapper, _combined(wrapper, adapters), dtype, _interleaves(module, name))
            for name, (wrapper, adapters) in handed.items()}


def _interleaves(module: Any, name: str) -> bool:
    """Whether codes have gate rows before up rows where their class, whose adapters these are, alternates them."""
    return name == "gate_up_proj" and isinstance(module, CodeModule) and module.has_interleaved_adapters


def _switched_on(wrapper: Any) -> list[str]:
    """What PEFT's forward would activate."""
    if wrapper.disable_adapters or wrapper.merged:
        return []
    return [name for name in wrapper.active_adapters if name in wrapper.lora_A]


def _require_no_sum(module: nn.Module, name: str, before: object) -> None:
    """A forward that is not PEFT's may have put the sum of base and adapter in the place of the base."""
    now = module._parameters.get(name)
    if now is not before and not isinstance(now, nn.Parameter):
        raise UnsupportedError(f"[lora] the forward around {name} of {type(module).__name__} is not PEFT's and has replaced it "
                               "during the call: whether its adapter is in it already cannot be known")


def _require_all_seen(module: nn.Module, seen: set[str]) -> None:
    """unsloth_zoo hands factors over as attributes of the module, and never switches PEFT's adapters on."""
    for name in (*_TARGETS, "gate_proj"):
        if name not in seen and module.__dict__.get("_unsloth_lora_" + name) is not None:
            raise UnsupportedError(f"[lora] unsloth hands factors of {name} to {type(module).__name__}, but no adapter of PEFT "
                                   "is called around it: moe64 would leave them out")


def _converted(wrapper: Any, given: Lora, dtype: torch.dtype | None, interleaved: bool) -> Lora:
    """The factors in one type, each expert's matrix contiguous: fast products need that, and PEFT's B has the expert
    fastest. Rows of B that are interleaved are put apart. While no gradients are recorded they are copied into the same memory
    every time, so that the layer's handle is kept; else the call may be remembered for its backward, with frozen factors too,
    and has copies of its own."""
    made = []
    b = given.b.unflatten(1, (-1, 2)).transpose(1, 2) if interleaved else given.b
    for place, factor in (("a", given.a), ("b", b)):
        if factor.is_contiguous() and factor.dtype == (dtype or factor.dtype):
            made.append(factor)
        elif torch.compiler.is_compiling() or torch.is_grad_enabled():
            made.append(factor.to(dtype or factor.dtype).contiguous())
        else:
            made.append(_room_of(wrapper, place, factor, dtype or factor.dtype).copy_(factor.detach()))
    return Lora(made[0], made[1].flatten(1, 2) if interleaved else made[1], given.scaling)


def _room_of(wrapper: Any, place: str, factor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rooms = _rooms().setdefault(wrapper, {})
    room = rooms.get(place)
    if room is None or (room.shape, room.dtype, room.device) != (factor.shape, dtype, factor.device):
        with torch.inference_mode(False):  # else later calls outside of that mode could not write it
            room = rooms[place] = torch.empty(factor.shape, dtype=dtype, device=factor.device)
    return room


def _rooms() -> "WeakKeyDictionary[Any, dict[str, torch.Tensor]]":
    """By thread: two threads never write one copy."""
    if not hasattr(_active, "rooms"):
        _active.rooms = WeakKeyDictionary()
    return _active.rooms


def is_ours(base: nn.Module) -> bool:
    """Whether moe64 runs this module."""
    return runs_here(base) or isinstance(base, CodeModule)


def _require_numbers(wrapper: Any, adapter_name: str) -> None:
    parameter = wrapper.get_param()
    if holds_codes(parameter):
        raise UnsupportedError(
            f"[lora] PEFT would add adapter '{adapter_name}' to the {parameter.dtype} codes of {wrapper.parameter_name} "
            "without their scale: run the experts as experts_implementation=\"moe64\"; to merge, `moe64 merge` "
            "writes a checkpoint with the adapter in its weights")


def _require_peft_layout(wrapper: Any, adapter_name: str) -> None:
    if not is_pefts(wrapper, adapter_name):
        raise UnsupportedError(f"[lora] adapter '{adapter_name}' of {wrapper.parameter_name} has the layout 'unsloth', which "
                               "PEFT would read as its own: run the experts as experts_implementation=\"moe64\"")


def _combined(wrapper: Any, adapters: list[str]) -> Lora:
    """The factors of all active adapters; several are stacked along the rank."""
    parts = []
    for name in adapters:
        a, b = wrapper.lora_A[name].weight, wrapper.lora_B[name].weight
        if a.element_size() == 1:
            raise DtypeMismatchError(f"[lora] adapter '{name}' is {a.dtype}: keep PEFT's autocast_adapter_dtype=True")
        parts.append(factors_of(a, b, wrapper.num_experts, wrapper.scaling[name], layout_of(wrapper, name)))
    if len(parts) == 1:
        return parts[0]
    return Lora(torch.cat([part.a * part.scaling for part in parts], dim=1),
                torch.cat([part.b for part in parts], dim=2), 1.0)


def install() -> bool:
    """Teaches PEFT's ParamWrapper about moe64's experts; answers whether PEFT is there. Done by moe64.transformers.

        >>> moe64.lora.install()
        True
    """
    global _installed
    if _installed:
        return True
    try:
        from peft.tuners.lora.layer import ParamWrapper
    except ImportError:
        return False

    call, activate, delta = ParamWrapper.__call__, ParamWrapper._activate_lora, ParamWrapper.get_delta_weight
    features = ParamWrapper._get_in_out_features
    move = ParamWrapper._move_adapter_to_device_of_base_layer
    factors: Any = getattr(ParamWrapper, "get_delta_factors", None)

    @contextmanager
    def _activate_lora(self: Any, active_adapters: list[str]) -> Iterator[None]:
        base = self.get_base_layer()
        adapters = [name for name in active_adapters or [] if name in self.lora_A]
        if not adapters or self.parameter_name not in _TARGETS or not is_ours(base):
            with activate(self, active_adapters):
                yield
            return
        modules = _active.__dict__.setdefault("modules", {})
        handed = modules.setdefault(id(base), {})
        handed[self.parameter_name] = (self, adapters, False)
        try:
            yield
            taken = handed[self.parameter_name][2]
        finally:
            del handed[self.parameter_name]
            if not handed:
                modules.pop(id(base), None)
        if not taken:
            raise UnsupportedError(f"[lora] another forward of {type(base).__name__} ran in the place of moe64's: adapters "
                                   f"{', '.join(adapters)} of {self.parameter_name} would be left out")

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Whatever replaces forward: while experts of moe64 run, the adapters around them are known."""
        base = self.get_base_layer()
        if not is_ours(base):
            return call(self, *args, **kwargs)
        calls = _active.__dict__.setdefault("calls", {})
        around = calls.setdefault(id(base), [])
        around.append((self, base._parameters.get(self.parameter_name)))
        try:
            return call(self, *args, **kwargs)
        finally:
            around.pop()
            if not around:
                calls.pop(id(base), None)

    def _get_in_out_features(self: Any, module: nn.Module) -> Any:
        """Of the values, in the order of the parameter's extents: PEFT sees the bytes of packed codes."""
        base = self.get_base_layer()
        if not isinstance(base, CodeModule) or self.parameter_name not in _TARGETS:
            return features(self, module)
        features(self, module)
        return base.extents(self.parameter_name)[1:]

    def get_delta_weight(self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        _require_numbers(self, adapter_name)
        _require_peft_layout(self, adapter_name)
        return delta(self, adapter_name, *args, **kwargs)

    def get_delta_factors(self: Any, adapter_name: str) -> Any:
        _require_numbers(self, adapter_name)
        _require_peft_layout(self, adapter_name)
        return factors(self, adapter_name)

    def _move_adapter_to_device_of_base_layer(self: Any, adapter_name: str, device: Any = None) -> None:
        parameter = self.get_param()
        if not holds_codes(parameter):
            return move(self, adapter_name, device)
        for table in (self.lora_A, self.lora_B):  # to the device of the codes, never to their type
            if adapter_name in table and table[adapter_name].weight.device.type != "meta":
                table[adapter_name] = table[adapter_name].to(parameter.device)
        return None

    for function in (__call__, _activate_lora, _get_in_out_features, get_delta_weight, _move_adapter_to_device_of_base_layer):
        setattr(ParamWrapper, function.__name__, function)
    if factors is not None:  # PEFT >= 0.20
        setattr(ParamWrapper, "get_delta_factors", get_delta_factors)
    _adapter_layout.install()
    _install_for_dense_layers()
    _installed = True
    return True


def _install_for_dense_layers() -> None:
    """Adapters of layers whose weight is codes: made in float32 and not in the type of the codes, and nothing of PEFT reads
    the codes as values, as merging and DoRA would."""
    from peft.tuners.lora.layer import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer

    move, merge, update = BaseTunerLayer._move_adapter_to_device_of_base_layer, Linear.merge, Linear.update_layer

    def codes_of(layer: Any) -> torch.Tensor | None:
        weight = getattr(layer.get_base_layer(), "weight", None)
        is_fp8 = isinstance(weight, torch.Tensor) and weight.dtype.is_floating_point and weight.element_size() == 1
        return weight if is_fp8 else None

    def _move_adapter_to_device_of_base_layer(self: Any, adapter_name: str, device: Any = None) -> None:
        codes = codes_of(self)
        if codes is None:
            return move(self, adapter_name, device)
        for name in (*self.adapter_layer_names, *self.other_param_names):
            table = getattr(self, name, None)
            if isinstance(table, (nn.ModuleDict, nn.ParameterDict)) and adapter_name in table:
                if not any(tensor.device.type == "meta" for tensor in _tensors_of(table[adapter_name])):
                    table[adapter_name] = table[adapter_name].to(device if device is not None else codes.device)
        return None

    def refuse(layer: Any, codes: torch.Tensor, what: str) -> None:
        base = type(layer.get_base_layer()).__name__
        raise UnsupportedError(f"[lora] {what} reads the {codes.dtype} codes of {base} as values, without their scale: "
                               "`moe64 merge` merges adapters, moe64 convert --to bf16 makes a copy of values")

    def checked_merge(self: Any, *args: Any, **kwargs: Any) -> None:
        codes = codes_of(self)
        if codes is not None:
            refuse(self, codes, "merging an adapter")
        return merge(self, *args, **kwargs)

    def update_layer(self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        codes = codes_of(self)
        if codes is not None and getattr(kwargs.get("config"), "use_dora", kwargs.get("use_dora")):
            refuse(self, codes, "DoRA")
        return update(self, adapter_name, *args, **kwargs)

    for owner, name, function in (
            (BaseTunerLayer, "_move_adapter_to_device_of_base_layer", _move_adapter_to_device_of_base_layer),
            (Linear, "merge", checked_merge), (Linear, "update_layer", update_layer)):
        setattr(owner, name, function)


def _tensors_of(held: Any) -> list[torch.Tensor]:
    return list(held.parameters()) if isinstance(held, nn.Module) else [held]
