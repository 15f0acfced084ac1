"""PEFT's LoRA on expert weights (`target_parameters`), computed beside the frozen base instead of added to it.

PEFT adds the product of both factors to the whole stack of experts before each call; on FP8 codes that sum would ignore
the scales. While the experts of a model run as "moe64" their adapters are handed over as two thin factors instead:

    config = LoraConfig(r=16, lora_alpha=16, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    model = get_peft_model(model, config)     # after import moe64.transformers

Saving and loading stay PEFT's. Its own product on quantised codes (another implementation, or merging) raises.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import nn

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
             ([out, experts, rank]). The file does not say which it is.

        >>> moe64.lora.factors_of(torch.randn(8 * 4, 64), torch.randn(32, 4 * 8), experts=8, scaling=1.0).b.shape
        torch.Size([8, 32, 4])
    """
    if layout not in ("peft", "unsloth"):
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


def set_layout(model: nn.Module, layout: str) -> int:
    """States how B of a model's adapters is laid out over experts, "peft" (the default) or "unsloth"; answers of how many.

    Adapters that unsloth trained say nothing about it in their files. PEFT itself (merging, other experts
    implementations) reads every B as its own: that is refused for adapters in the other layout.

        >>> model = PeftModel.from_pretrained(model, "trained-by-unsloth")
        >>> moe64.lora.set_layout(model, "unsloth")
    """
    if layout not in ("peft", "unsloth"):
        raise InvalidArgumentError(f"[lora] layout is '{layout}', neither peft nor unsloth")
    wrappers = [m for m in model.modules() if type(m).__name__ == "ParamWrapper" and hasattr(m, "parameter_name")]
    for wrapper in wrappers:
        wrapper._moe64_layout = layout  # type: ignore[assignment]
    return len(wrappers)


def _layout_of(wrapper: Any) -> str:
    return getattr(wrapper, "_moe64_layout", "peft")


def active_factors(module: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Lora]:
    """The factors that PEFT has switched on for this call of an experts module, by parameter name, in `dtype`.

        >>> moe64.lora.active_factors(experts)    # outside of a call of the model there are none
        {}
    """
    handed = getattr(_active, "modules", {}).get(id(module), {})
    return {name: _converted(wrapper, _combined(wrapper, adapters), dtype) for name, (wrapper, adapters) in handed.items()}


def _converted(wrapper: Any, given: Lora, dtype: torch.dtype | None) -> Lora:
    """The factors in one type, each expert's matrix contiguous: fast products need that, and PEFT's B has the expert
    fastest. Without gradients they are copied into the same memory every time, so that the layer's handle is kept."""
    made = []
    for place, factor in (("a", given.a), ("b", given.b)):
        if factor.is_contiguous() and factor.dtype == (dtype or factor.dtype):
            made.append(factor)
        elif torch.compiler.is_compiling() or (torch.is_grad_enabled() and factor.requires_grad):
            made.append(factor.to(dtype or factor.dtype).contiguous())
        else:
            made.append(_room_of(wrapper, place, factor, dtype or factor.dtype).copy_(factor.detach()))
    return Lora(made[0], made[1], given.scaling)


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


def _is_ours(base: nn.Module) -> bool:
    config = getattr(base, "config", None)
    if getattr(config, "_experts_implementation", None) == "moe64":
        return True
    return type(base).__name__ == "CodeExperts" and type(base).__module__ == "moe64.codes"


def _is_codes(parameter: torch.Tensor) -> bool:
    return not parameter.dtype.is_floating_point or parameter.element_size() == 1


def _require_numbers(wrapper: Any, adapter_name: str) -> None:
    parameter = wrapper.get_param()
    if _is_codes(parameter):
        raise UnsupportedError(
            f"[lora] PEFT would add adapter '{adapter_name}' to the {parameter.dtype} codes of {wrapper.parameter_name} "
            "without their scale: run the experts as experts_implementation=\"moe64\"; to merge, load a bf16 copy "
            "(moe64 convert --to bf16)")


def _require_peft_layout(wrapper: Any) -> None:
    if _layout_of(wrapper) != "peft":
        raise UnsupportedError(f"[lora] the adapter of {wrapper.parameter_name} has the layout '{_layout_of(wrapper)}', which "
                               "PEFT would read as its own: run the experts as experts_implementation=\"moe64\"")


def _combined(wrapper: Any, adapters: list[str]) -> Lora:
    """The factors of all active adapters; several are stacked along the rank."""
    parts = []
    for name in adapters:
        a, b = wrapper.lora_A[name].weight, wrapper.lora_B[name].weight
        if a.element_size() == 1:
            raise DtypeMismatchError(f"[lora] adapter '{name}' is {a.dtype}: keep PEFT's autocast_adapter_dtype=True")
        parts.append(factors_of(a, b, wrapper.num_experts, wrapper.scaling[name], _layout_of(wrapper)))
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

    activate, delta = ParamWrapper._activate_lora, ParamWrapper.get_delta_weight
    move = ParamWrapper._move_adapter_to_device_of_base_layer
    factors: Any = getattr(ParamWrapper, "get_delta_factors", None)

    @contextmanager
    def _activate_lora(self: Any, active_adapters: list[str]) -> Iterator[None]:
        base = self.get_base_layer()
        adapters = [name for name in active_adapters or [] if name in self.lora_A]
        if not adapters or self.parameter_name not in _TARGETS or not _is_ours(base):
            with activate(self, active_adapters):
                yield
            return
        modules = _active.__dict__.setdefault("modules", {})
        handed = modules.setdefault(id(base), {})
        handed[self.parameter_name] = (self, adapters)
        try:
            yield
        finally:
            del handed[self.parameter_name]
            if not handed:
                modules.pop(id(base), None)

    def get_delta_weight(self: Any, adapter_name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        _require_numbers(self, adapter_name)
        _require_peft_layout(self)
        return delta(self, adapter_name, *args, **kwargs)

    def get_delta_factors(self: Any, adapter_name: str) -> Any:
        _require_numbers(self, adapter_name)
        _require_peft_layout(self)
        return factors(self, adapter_name)

    def _move_adapter_to_device_of_base_layer(self: Any, adapter_name: str, device: Any = None) -> None:
        parameter = self.get_param()
        if not _is_codes(parameter):
            return move(self, adapter_name, device)
        for table in (self.lora_A, self.lora_B):  # to the device of the codes, never to their type
            if adapter_name in table and table[adapter_name].weight.device.type != "meta":
                table[adapter_name] = table[adapter_name].to(parameter.device)
        return None

    for function in (_activate_lora, get_delta_weight, _move_adapter_to_device_of_base_layer):
        setattr(ParamWrapper, function.__name__, function)
    if factors is not None:  # PEFT >= 0.20
        setattr(ParamWrapper, "get_delta_factors", get_delta_factors)
    _installed = True
    return True
