"""moe64 as an experts implementation of Transformers (>= 5.7): importing this module registers it.

    import moe64.transformers
    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="moe64")

It serves every class with `@use_experts_implementation`: concatenated and interleaved gate_up, transposed weights,
biases, experts without a gate, norms behind the experts, fine-grained FP8 and FP4 experts, the sentinel `num_experts`
of expert parallelism, and any device of a `device_map`. Gate functions that are not known are called, never assumed.

On machines where Transformers would expand a quantised checkpoint to bf16 (CPUs, older GPUs, compressed-tensors
experts), `keep_codes(model, path)` puts the codes of the checkpoint back in place of the expanded stacks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.activations import ACT2FN, GELUActivation
from transformers.integrations import finegrained_fp8, moe

from . import lora
from ._torch import keeping_types
from .checkpoint import inspect, load_experts
from .errors import DtypeMismatchError, InvalidArgumentError, LibraryError, ShapeMismatchError, UnsupportedError
from .formats import Activation, ExpertWeights, Lora, Projection, Quantized
from .gemm import grouped_gemm
from .layer import experts
from .routing import combine, gather, plan

__all__ = ["CodeExperts", "experts_forward", "keep_codes", "register", "weights_of"]

NAME = "moe64"
_OLDEST = (5, 7)


def _class(module: str, name: str) -> type | None:
    """A class of Transformers that this version may lack; the module is imported only if somebody else did."""
    return getattr(sys.modules.get(f"transformers.models.{module}.modeling_{module}"), name, None)


def _gate_of(module: nn.Module) -> str:
    """Which gate function the class of a module has: default, fp8, gptoss, halves, clamped or unknown."""
    function = getattr(type(module), "_apply_gate", None)
    if function is moe._default_apply_gate:
        return "default"
    if function is finegrained_fp8.FP8Experts._apply_gate:
        return "fp8"
    if isinstance(module, CodeExperts):
        return "codes"
    for kind, where, name in (("gptoss", "gpt_oss", "GptOssExperts"), ("halves", "minimax_m3_vl", "MiniMaxM3VLExperts"),
                              ("clamped", "deepseek_v4", "DeepseekV4Experts")):
        known = _class(where, name)
        if known is not None and function is getattr(known, "_apply_gate", None):
            return kind
    return "unknown"


def _function_of(act_fn: object) -> str | None:
    """silu, gelu, gelu_tanh or relu2, if it is known to be exactly that."""
    kind = type(act_fn)
    if kind in (nn.SiLU, type(ACT2FN["silu"])) or act_fn is nn.functional.silu:
        return "silu"
    if kind is GELUActivation or (kind is nn.GELU and act_fn.approximate == "none"):  # type: ignore[attr-defined]
        return "gelu"
    if kind is type(ACT2FN["gelu_pytorch_tanh"]) or (kind is nn.GELU and act_fn.approximate == "tanh"):  # type: ignore[attr-defined]
        return "gelu_tanh"
    return "relu2" if kind is type(ACT2FN["relu2"]) else None


def activation_of(module: Any) -> Activation | None:
    """The activation of an experts module, or None when only the module itself can compute it."""
    if getattr(module, "has_post_expert_norm", False):
        return None
    function = _function_of(getattr(module, "act_fn", None))
    if not getattr(module, "has_gate", True):
        return Activation(function) if function in ("silu", "gelu", "relu2") else None
    gate = _gate_of(module)
    alpha: Any = getattr(module, "swiglu_alpha", None)
    limit: Any = getattr(module, "swiglu_limit", None)
    if gate == "codes":
        return module.activation
    if gate == "gptoss":
        return Activation("gptoss_glu", float(module.alpha), float(module.limit))
    if gate == "halves" or (gate == "fp8" and alpha is not None):
        return Activation("gptoss_glu", float(alpha), float(limit))
    limit = getattr(module, "limit", None)
    if gate == "clamped" or (gate == "fp8" and limit is not None):
        return Activation("clamped_silu_glu", limit=float(limit)) if function == "silu" else None
    if gate in ("default", "fp8"):
        return Activation(f"{function}_glu") if function in ("silu", "gelu", "gelu_tanh") else None
    return None


def _matrix(module: nn.Module, name: str, fused: bool) -> "torch.Tensor | Quantized":
    """A weight [experts, out, in] with its scales."""
    values = getattr(module, name)
    if getattr(module, "is_transposed", False):
        values = values.transpose(1, 2)
    if isinstance(module, CodeExperts):
        return module.matrix(name)
    scales = getattr(module, name + "_scale_inv", None)
    if values.is_floating_point() and values.element_size() > 1:
        if scales is not None:
            raise DtypeMismatchError(f"[transformers] {name} of {type(module).__name__} is {values.dtype} beside a "
                                     f"{name}_scale_inv: its codes were converted without their scale, as by .to(dtype)")
        return values
    if scales is None:
        raise UnsupportedError(f"[transformers] {name} of {type(module).__name__} is {values.dtype} and there is no "
                               f"{name}_scale_inv: moe64 never reads codes without their scale")
    if values.dtype == torch.int8:
        return Quantized(values, scales, "group:32", dtype="fp4")
    block = getattr(module, "block_size", None)
    if block is None:
        return Quantized(values, scales, "tensor")
    if fused and values.shape[1] // 2 % block[0]:
        # One grid over both halves and two grids that restart have different meanings; here it is the former.
        raise ShapeMismatchError(f"[transformers] {name} has {values.shape[1] // 2} rows per half, no multiple of the "
                                 f"block of {block[0]}: Transformers lays one grid over gate and up, and a block across "
                                 "the middle would scale both. moe64.load_experts reads such checkpoints")
    return Quantized(values, scales, f"block:{block[0]}x{block[1]}")


def weights_of(module: nn.Module, factors: dict[str, Lora] | None = None) -> ExpertWeights:
    """The weights of an experts module of Transformers as moe64 sees them, without copying."""
    act = activation_of(module) or Activation("silu_glu" if getattr(module, "has_gate", True) else "silu")
    factors = factors or {}
    first = "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"
    made = []
    for name in (first, "down_proj"):
        bias = getattr(module, name + "_bias", None) if getattr(module, "has_bias", False) else None
        made.append(Projection(_matrix(module, name, fused=name == "gate_up_proj"), bias, factors.get(name)))
    if isinstance(module, CodeExperts):
        return ExpertWeights(made[0], made[1], act, **module.how)
    return ExpertWeights(made[0], made[1], act, interleaved=not getattr(module, "is_concatenated", True),
                         scheme="dynamic" if getattr(module, "activation_scheme", None) == "dynamic" else "unstated")


def experts_forward(module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                    top_k_weights: torch.Tensor, *more: object) -> torch.Tensor:
    """What Transformers calls: the output of `module` with the shape and type of hidden_states."""
    if more:
        raise InvalidArgumentError(f"[transformers] {type(module).__name__} passes {len(more)} more arguments than hidden "
                                   "states, ids and weights: moe64 does not know what they mean")
    factors = {name: Lora(given.a.to(hidden_states.dtype), given.b.to(hidden_states.dtype), given.scaling)
               for name, given in lora.active_factors(module).items()}  # as PEFT does: one type in the products
    weights = weights_of(module, factors)
    if top_k_weights.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        top_k_weights = top_k_weights.float()
    if activation_of(module) is not None:
        return experts(hidden_states, top_k_index, top_k_weights, weights)
    return _with_own_gate(module, hidden_states, top_k_index, top_k_weights, weights)


def _linear(rows: torch.Tensor, projection: Projection, begin: torch.Tensor) -> torch.Tensor:
    out = grouped_gemm(rows, projection.weights, begin, bias=projection.bias)
    if projection.lora is not None:
        low = grouped_gemm(rows, projection.lora.a, begin)
        out = out + grouped_gemm(low, projection.lora.b, begin) * projection.lora.scaling
    return out


def _with_own_gate(module: Any, x: torch.Tensor, ids: torch.Tensor, top_k_weights: torch.Tensor,
                   weights: ExpertWeights) -> torch.Tensor:
    """The layer as a list of operations with the module's own gate, and norm, in their places."""
    flat = x.reshape(-1, x.shape[-1])
    ids, top_k_weights = ids.reshape(flat.shape[0], -1), top_k_weights.reshape(flat.shape[0], -1)
    if isinstance(weights.gate_up.weights, Quantized) and str(weights.gate_up.weights.layout) == "tensor":
        raise UnsupportedError(f"[transformers] {type(module).__name__} has a gate that moe64 does not know and one scale "
                               "per half of gate_up")
    p = plan(ids, module.down_proj.shape[0], top_k_weights)
    inner = _linear(gather(flat, p), weights.gate_up, p.expert_begin)
    inner = module._apply_gate(inner) if getattr(module, "has_gate", True) else module.act_fn(inner)
    rows = _linear(inner, weights.down, p.expert_begin)
    if getattr(module, "has_post_expert_norm", False):
        rows = module.post_expert_norm(rows)
    return combine(rows, p).reshape(x.shape)


class CodeExperts(nn.Module):
    """Experts whose weights are the codes of a checkpoint: what keep_codes puts in the place of expanded stacks.

    Its parameters have the names that PEFT's target_parameters expect, gate_up_proj (or up_proj) and down_proj, and are
    frozen; the scales lie beside them as buffers.
    """

    has_gate: bool
    is_transposed = False
    is_concatenated = True
    down_proj: torch.Tensor

    def __init__(self, weights: ExpertWeights, config: object = None) -> None:
        super().__init__()
        self.config, self.activation = config, weights.activation
        self.num_experts = 0
        self.has_gate = weights.activation.gated
        self._formats: dict[str, dict] = {}
        self.how: dict[str, Any] = {"scheme": weights.scheme, "weight_on": weights.weight_on}
        self.has_bias = weights.down.bias is not None or weights.gate_up.bias is not None
        for name, projection in (("gate_up_proj" if self.has_gate else "up_proj", weights.gate_up),
                                 ("down_proj", weights.down)):
            self._hold(name, projection)
        self.num_experts = self.down_proj.shape[0]

    def _hold(self, name: str, projection: Projection) -> None:
        matrix = projection.weights
        if isinstance(matrix, Quantized):
            self._formats[name] = {"layout": matrix.layout, "global_divides": matrix.global_divides,
                                   "dtype": matrix.dtype, "scale_dtype": matrix.scale_dtype}
            self.register_buffer(name + "_scales", matrix.scales)
            self.register_buffer(name + "_global_scale", matrix.global_scale)
            matrix = matrix.values
        self.register_parameter(name, nn.Parameter(matrix, requires_grad=False))
        self.register_parameter(name + "_bias", None if projection.bias is None
                                else nn.Parameter(projection.bias, requires_grad=False))

    def _apply(self, fn, recurse: bool = True):  # noqa: ANN001, ANN202
        """Codes and scales go to other devices, but never to another type."""
        kept = [getattr(self, name + suffix) for name in self._formats for suffix in ("", "_scales", "_global_scale")]
        return super()._apply(keeping_types(fn, kept), recurse)

    def matrix(self, name: str) -> "torch.Tensor | Quantized":
        if name not in self._formats:
            return getattr(self, name)
        return Quantized(getattr(self, name), getattr(self, name + "_scales"),
                         global_scale=getattr(self, name + "_global_scale"), **self._formats[name])

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                top_k_weights: torch.Tensor) -> torch.Tensor:
        return experts_forward(self, hidden_states, top_k_index, top_k_weights)


def keep_codes(model: nn.Module, path: "str | os.PathLike[str]") -> list[str]:
    """Replaces the experts of a model that was loaded from `path` by the codes of the checkpoint; answers their names.

    For checkpoints that Transformers expands to bf16 while it loads them. After it the experts take the memory that they
    have in the file. Layers are matched by the number in their name.

        >>> model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        >>> moe64.transformers.keep_codes(model, path)
    """
    have = {layer["layer"] for layer in inspect(path)["layers"] if layer["sound"] and not layer["mtp"]}
    replaced = []
    for name, module in list(model.named_modules()):
        numbers = [int(word) for word in name.split(".") if word.isdigit()]
        if not name.endswith(".experts") or len(numbers) != 1 or numbers[0] not in have:
            continue
        found = load_experts(path, numbers[0], fused=True)
        for ours, theirs in ((found.gate_up, "gate_up_proj"), (found.down, "down_proj")):
            shape = (getattr(module, theirs) if hasattr(module, theirs) else module.up_proj).shape  # type: ignore[union-attr]
            values = ours.weights.values if isinstance(ours.weights, Quantized) else ours.weights
            if shape[0] != values.shape[0]:
                raise ShapeMismatchError(f"[keep_codes] {name} has {shape[0]} experts, layer {numbers[0]} of {path} has "
                                         f"{values.shape[0]}")
        device = next(module.parameters()).device
        model.set_submodule(name, CodeExperts(found, getattr(module, "config", None)).to(device))
        replaced.append(name)
    if not replaced:
        raise InvalidArgumentError(f"[keep_codes] no experts module of the model has a layer in {path}")
    return replaced


def register() -> None:
    """Adds "moe64" to both experts interfaces; done by the import of this module."""
    found = tuple(int(word) for word in hf.__version__.split(".")[:2])
    if found < _OLDEST:
        raise LibraryError(f"[transformers] version {hf.__version__} takes no experts implementation of others: 5.7 or "
                           "later is needed")
    moe.ExpertsInterface.register(NAME, experts_forward)
    finegrained_fp8.FP8ExpertsInterface.register(NAME, experts_forward)
    lora.install()


register()
