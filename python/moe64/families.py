"""What is known of the experts classes of Transformers: their gates, how they are called, and which are not served.

A gate is known when it is the function of a class in the table below *and* does on trial what the table says, reading
nothing of its module but what the table names. Every other gate is the module's own to compute.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PreTrainedModel
from transformers.activations import ACT2FN, GELUActivation
from transformers.integrations import finegrained_fp8, moe

from . import dense
from .errors import InvalidArgumentError
from .formats import Activation

NAME = "moe64"


@dataclass(frozen=True)
class _Gate:
    """What a gate function reads of its module, by attribute, and what it computes from it."""

    act_fn: bool = False                  # reads act_fn; the others have SiLU written out
    plain: bool = False                   # act_fn(gate) * up, where no limit is set
    limit: str = ""                       # silu(min(gate, limit)) * clamp(up, limit)
    oai: "tuple[str, str] | None" = None  # alpha and limit of gpt-oss' clamped SwiGLU
    unset: tuple[str, ...] = ()           # what must be None: otherwise the function computes something else
    interleaved: bool = False


# Class whose _apply_gate it is; the first two are not in models of their own.
_GATES = {
    "default": _Gate(act_fn=True, plain=True),
    "fp8": _Gate(act_fn=True, plain=True, limit="limit", oai=("swiglu_alpha", "swiglu_limit"),
                 unset=("gate_softcap", "up_softcap")),
    "gpt_oss.GptOssExperts": _Gate(oai=("alpha", "limit"), interleaved=True),
    "openai_privacy_filter.OpenAIPrivacyFilterExperts": _Gate(oai=("alpha", "limit")),
    "minimax_m3_vl.MiniMaxM3VLExperts": _Gate(oai=("swiglu_alpha", "swiglu_limit")),
    "deepseek_v4.DeepseekV4Experts": _Gate(act_fn=True, limit="limit"),
    "glm5_next.Glm5NextTextExperts": _Gate(limit="swiglu_limit"),
    "hy_v4.HYV4Experts": _Gate(limit="swiglu_limit"),
}
_FUNCTIONS: "dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]]" = {
    "silu": nn.SiLU, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh")}
# Experts whose forward is called as decorated ones are, and does the same, but which lack the decorator.
_CALLED_ALIKE = ("step3p7.Step3p7Experts",)
# Experts that are called with a copy of all tokens for each expert, times the router's scores.
_SORTED = ("llama4.Llama4TextExperts",)


def _class(where: str) -> "type | None":
    """A class of Transformers that this version may lack; its module is imported only if somebody else did."""
    module, _, name = where.partition(".")
    return getattr(sys.modules.get(f"transformers.models.{module}.modeling_{module}"), name, None)


@lru_cache(maxsize=256)
def _owner_of(function: Callable) -> str:
    if function is moe._default_apply_gate:
        return "default"
    if function is finegrained_fp8.FP8Experts._apply_gate:
        return "fp8"
    return next((where for where in _GATES if getattr(_class(where), "_apply_gate", None) is function), "")


@torch.compiler.assume_constant_result
def _gate_of(kind: type) -> str:
    """The row of the table that a class has its gate from, or ""."""
    function = getattr(kind, "_apply_gate", None)
    return "" if function is None else _owner_of(function)


class _Unread(Exception):
    """A gate on trial read what its row does not name."""


class _Stand:
    """Stands for a module while its gate is tried: what is not given is not None, it is an end."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        raise _Unread(name)


def _expected(kind: str, alpha: float, limit: float, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if kind == "gptoss_glu":
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1)
    if kind == "clamped_silu_glu":
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(gate) * up.clamp(-limit, limit)
    return _FUNCTIONS[kind.removesuffix("_glu")]()(gate) * up


@lru_cache(maxsize=256)
def _tried(function: Callable, where: str, name: str, alpha: float, limit: float) -> bool:
    row = _GATES[where]
    given: dict[str, Any] = dict.fromkeys(row.unset)
    if name == "gptoss_glu":
        assert row.oai is not None
        given.update(zip(row.oai, (alpha, limit)))
    else:
        if row.oai is not None:
            given[row.oai[0]] = None
        if row.limit:
            given[row.limit] = limit if name == "clamped_silu_glu" else None
        if row.act_fn:
            given["act_fn"] = _FUNCTIONS["silu" if name == "clamped_silu_glu" else name.removesuffix("_glu")]()
    with torch.no_grad(), _disable_current_modes():
        steps = torch.linspace(-4, 4, 33, dtype=torch.float64, device="cpu")
        steps = torch.cat((steps, steps * min(limit, 1e4))) if name in ("gptoss_glu", "clamped_silu_glu") else steps * 3
        gate, up = (grid.reshape(-1) for grid in torch.meshgrid(steps, steps.flip(0), indexing="ij"))
        gate, up = torch.stack((gate, up)), torch.stack((up, gate))  # two rows
        both = torch.stack((gate, up), -1).flatten(-2) if row.interleaved else torch.cat((gate, up), -1)
        try:
            found = function(_Stand(given), both)
            return torch.allclose(found, _expected(name, alpha, limit, gate, up), rtol=1e-9, atol=1e-12)
        except Exception:  # whatever a function that is not the one that is known may raise
            return False


@torch.compiler.assume_constant_result
def _computes(kind: type, where: str, name: str, alpha: float, limit: float) -> bool:
    """Whether the gate of a class gives `name` when the attributes of its row say so, on trial values."""
    return _tried(kind._apply_gate, where, name, alpha, limit)  # type: ignore[attr-defined]


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# The modules of functions that are known, each with the forward that it has when this is imported.
_MODULES: "dict[Any, str]" = {type(ACT2FN["silu"]): "silu", nn.SiLU: "silu", GELUActivation: "gelu", nn.GELU: "",
                            type(ACT2FN["gelu_pytorch_tanh"]): "gelu_tanh", type(ACT2FN["relu2"]): "relu2"}
_FORWARDS = {kind: kind.forward for kind in _MODULES}


def function_of(act_fn: object) -> "str | None":
    """silu, gelu, gelu_tanh or relu2, if it is known to be exactly that and nobody listens to its calls."""
    if act_fn is nn.functional.silu:
        return "silu"
    kind: Any = type(act_fn)
    if kind not in _MODULES or kind.forward is not _FORWARDS[kind]:
        return None
    own = act_fn.__dict__
    if "forward" in own or any(own[hooks] for hooks in _HOOKS):
        return None
    if kind is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(own["approximate"])
    return _MODULES[kind]


def _limit_of(module: Any, name: str) -> "float | None":
    """A clamp that is positive."""
    limit = getattr(module, name, None)
    return float(limit) if isinstance(limit, (int, float)) and 0 < limit < math.inf else None


def _stated(module: Any, row: _Gate) -> "Activation | None":
    """The activation that the attributes of a module state, as its row reads them."""
    if any(getattr(module, name, None) is not None for name in row.unset):
        return None
    if row.oai is not None:
        alpha = getattr(module, row.oai[0], None)
        if alpha is not None:
            if getattr(module, row.oai[1], None) is None:
                raise InvalidArgumentError(f"[transformers] {type(module).__name__} has {row.oai[0]} {alpha} and "
                                           f"{row.oai[1]} None: this gate clamps, and its limit is not stated")
            limit = _limit_of(module, row.oai[1])
            known = isinstance(alpha, (int, float)) and math.isfinite(alpha) and limit is not None
            return Activation("gptoss_glu", float(alpha), limit) if known else None  # type: ignore[arg-type]
    function = function_of(getattr(module, "act_fn", None)) if row.act_fn else "silu"
    if row.limit and getattr(module, row.limit, None) is not None:
        limit = _limit_of(module, row.limit)
        return Activation("clamped_silu_glu", limit=limit) if limit is not None and function == "silu" else None
    return Activation(f"{function}_glu") if row.plain and function in ("silu", "gelu", "gelu_tanh") else None


def activation_of(module: Any) -> "Activation | None":
    """The activation of an experts module, or None when only the module itself can compute it."""
    if getattr(module, "has_post_expert_norm", False):
        return None
    if not getattr(module, "has_gate", True):
        function = function_of(getattr(module, "act_fn", None))
        return Activation(function) if function in ("silu", "gelu", "relu2") else None
    where = _gate_of(type(module))
    if where == "" or "_apply_gate" in module.__dict__:
        return None
    act = _stated(module, _GATES[where])
    if act is None or not _computes(type(module), where, act.kind, act.alpha, act.limit):
        return None
    return act


# ---- how experts are called ---------------------------------------------------------------------

class _Probe(nn.Module):
    def forward(self) -> None:
        """Only decorated, never called."""


_DECORATED_INIT = moe.use_experts_implementation(_Probe).__init__.__code__  # type: ignore[misc]


@lru_cache(maxsize=256)
def _has_another_forward(kind: type) -> bool:
    """Whether a class derived from a decorated one has a forward of its own, which asks for no implementation."""
    for base in kind.__mro__:
        if getattr(base.__dict__.get("__init__"), "__code__", None) is _DECORATED_INIT:
            return False
        if "forward" in base.__dict__:
            return any(getattr(other.__dict__.get("__init__"), "__code__", None) is _DECORATED_INIT for other in kind.__mro__)
    return False


def is_decorated(module: nn.Module) -> bool:
    """Whether a module asks for an experts implementation: @use_experts_implementation sets these flags."""
    kind: Any = type(module)
    return hasattr(module, "is_transposed") and hasattr(module, "has_bias") and not _has_another_forward(kind)


def call_of(module: nn.Module) -> "str | None":
    """How a module is called: "slots" (tokens, ids, weights), "sorted" (tokens of each expert, weighted), or None when
    moe64 does not know what its forward does."""
    if is_decorated(module) or any(type(module) is _class(where) for where in _CALLED_ALIKE):
        return "slots"
    if any(type(module) is _class(where) for where in _SORTED) and function_of(getattr(module, "act_fn", None)) == "silu":
        return "sorted"
    return None


_told: set[type] = set()


def _is_called_experts(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Experts")


def _holds_experts_of_its_own(module: nn.Module) -> bool:
    """A mixture of experts that has no module of experts: Doge's are embeddings, VitPose's a list of layers."""
    return type(module).__name__.endswith(("MoE", "Moe", "MoeBlock")) and not any(map(_is_called_experts, module.modules()))


def tell_unserved(model: nn.Module) -> None:
    """Warns, once for each class, of experts that no experts implementation reaches."""
    for module in model.modules():
        kind = type(module)
        routed = _is_called_experts(module) and not kind.__name__.endswith("SharedExperts")
        if not (routed or _holds_experts_of_its_own(module)) or kind.__module__.startswith("moe64."):
            continue
        if is_decorated(module) or kind in _told:
            continue
        _told.add(kind)
        warnings.warn(f"[transformers] {kind.__name__} of {type(model).__name__} asks for no experts implementation (it "
                      f"lacks @use_experts_implementation, or has another forward): its own forward runs, \"{NAME}\" changes "
                      "nothing there",
                      stacklevel=4)


def _compute_alike(one: Any, other: Any) -> bool:
    """Whether what two modules do between their products is the same on trial, where neither is known."""
    rows = torch.linspace(-8, 8, 64, device="cpu").view(2, 32)
    try:
        left, right = (module._apply_gate(rows) if getattr(module, "has_gate", True) else module.act_fn(rows)
                       for module in (one, other))
        return torch.allclose(left.float(), right.float(), rtol=1e-5, atol=1e-6)
    except Exception:  # whatever a gate may raise that needs rows of its own extent
        return False


def tell_what_was_left_out(before: "dict[str, nn.Module]", model: nn.Module) -> None:
    """Warns where Transformers put FP8Experts, which has only the gates that it knows, in place of a class that computes
    something else."""
    for name, module in model.named_modules():
        own = before.get(name)
        if not isinstance(module, finegrained_fp8.FP8Experts) or own is None or isinstance(own, finegrained_fp8.FP8Experts):
            continue
        if getattr(getattr(module, "config", None), "_experts_implementation", None) != NAME:
            continue
        here, there = activation_of(module), activation_of(own)
        differs = ""
        if getattr(own, "has_post_expert_norm", False):
            differs = "leaves out the norm behind the experts"
        elif call_of(own) != "slots":
            differs = "is not called as the class is"
        elif here != there:
            kinds = [act.kind if act is not None else "a gate of its own" for act in (here, there)]
            differs = f"computes {kinds[0]}, where the class has {kinds[1]}"
        elif here is None and not _compute_alike(module, own):
            differs = "computes another gate than the class"
        if differs:
            warnings.warn(f"[transformers] FP8Experts in place of {type(own).__name__} {differs}: "
                          "moe64.transformers.from_pretrained does as the class does", stacklevel=3)


def is_asked_for(model: Any) -> bool:
    """Whether a model, or a part of it that has a config of its own, runs its experts as "moe64"."""
    parts = [getattr(model.config, name, None) for name in getattr(model.config, "sub_configs", ())]
    return any(getattr(config, "_experts_implementation", None) == NAME for config in (model.config, *parts))


def install(silent: Callable[[], bool]) -> None:
    """Makes models that are built for, or set to, "moe64" tell which of their experts it does not reach; `silent` answers
    whether somebody else will tell."""
    if hasattr(PreTrainedModel.post_init, "_moe64"):
        return
    post_init, set_implementation = PreTrainedModel.post_init, PreTrainedModel.set_experts_implementation

    @wraps(post_init)
    def _post_init(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = post_init(self, *args, **kwargs)
        if getattr(self.config, "_experts_implementation", None) == NAME and not silent():
            tell_unserved(self)
        return answer

    @wraps(set_implementation)
    def _set_experts_implementation(self: Any, experts_implementation: Any, *args: Any, **kwargs: Any) -> Any:
        answer = set_implementation(self, experts_implementation, *args, **kwargs)
        asked = experts_implementation.values() if isinstance(experts_implementation, dict) else [experts_implementation]
        (dense.serve if is_asked_for(self) else dense.leave)(self)
        if NAME in asked:
            tell_unserved(self)
        return answer

    _post_init._moe64 = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = _post_init  # type: ignore[method-assign]
    PreTrainedModel.set_experts_implementation = _set_experts_implementation  # type: ignore[method-assign]
