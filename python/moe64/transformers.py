"""moe64 as an experts implementation of Transformers (>= 5.7): importing this module registers it.

    import moe64.transformers
    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="moe64")

It serves every class with `@use_experts_implementation`: concatenated and interleaved gate_up, transposed weights,
biases, experts without a gate, norms behind the experts, fine-grained FP8 and FP4 experts, the sentinel `num_experts`
of expert parallelism, and any device of a `device_map`. Gate functions that are not known are called, never assumed.

On machines where Transformers would expand a quantised checkpoint to bf16 (CPUs, older GPUs, compressed-tensors
experts), `moe64.transformers.from_pretrained(path)` loads it with the experts as they are stored; `keep_codes(model,
path)` puts the codes of the checkpoint in place of stacks that were expanded already. Dense FP8 layers are run too, see
`moe64.dense`.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers.integrations import finegrained_fp8, moe

from . import codes, dense, families, lora, saving
from ._processes import refuse_copies
from ._torch import alone, autocast_type, hooks_that_offload
from .codes import CodeExperts, from_pretrained, keep_codes
from .dense import CodeLinear, leave, serve
from .errors import DtypeMismatchError, InvalidArgumentError, LibraryError, ShapeMismatchError, UnsupportedError
from .formats import Activation, ExpertWeights, Lora, Projection, Quantized
from .gemm import grouped_gemm
from .layer import experts, in_type
from .routing import combine, gather, plan

__all__ = ["CodeExperts", "CodeLinear", "experts_forward", "from_pretrained", "keep_codes", "leave", "register", "serve",
           "weights_of"]

NAME = families.NAME
_OLDEST = (5, 7)


def activation_of(module: Any) -> Activation | None:
    """The activation of an experts module, or None when only the module itself can compute it.

        >>> moe64.transformers.activation_of(model.model.layers[3].mlp.experts).kind
        'silu_glu'
    """
    return module.activation if isinstance(module, CodeExperts) else families.activation_of(module)


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
            raise DtypeMismatchError(f"[transformers] {name} of {type(module).__name__} is {values.dtype} with a "
                                     f"{name}_scale_inv: its codes were converted without their scale, as by .to(dtype) or "
                                     "FSDP's mixed precision; moe64.transformers.from_pretrained keeps them")
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
    """The weights of an experts module of Transformers as moe64 sees them, without copying.

        >>> moe64.explain(moe64.transformers.weights_of(model.model.layers[3].mlp.experts))[0]
        'w8a16'
    """
    act = activation_of(module) or Activation("silu_glu" if getattr(module, "has_gate", True) else "silu")
    factors = factors or {}
    first = "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"
    made = []
    for name in (first, "down_proj"):
        bias = getattr(module, name + "_bias", None) if getattr(module, "has_bias", False) else None
        made.append(Projection(_matrix(module, name, fused=name == "gate_up_proj"), bias, factors.get(name)))
    return ExpertWeights(made[0], made[1], act, interleaved=not getattr(module, "is_concatenated", True),
                         scheme="dynamic" if getattr(module, "activation_scheme", None) == "dynamic" else "unstated",
                         weight_on=module.weight_on if isinstance(module, CodeExperts) else "output")


class _Seen:
    """What a module's weights were found to be, and all that it was found from: that the same objects lie at the same
    addresses shows that it still holds. It lies in the module, and copies of the module do not have it."""

    NAME = "_moe64_seen"

    def __init__(self, module: nn.Module, weights: ExpertWeights, fused: bool) -> None:
        self.weights, self.fused = weights, fused
        self.state, self.addresses = self._state(module), self._addresses(module)

    @staticmethod
    def _state(module: nn.Module) -> list[object]:
        own = [value for name, value in module.__dict__.items() if name != _Seen.NAME]
        function = families.function_of(getattr(module, "act_fn", None))  # hooks change what the same object computes
        return [type(module), getattr(type(module), "_apply_gate", None), function, *own, *module._parameters.values(),
                *module._buffers.values(), *module._modules.values()]

    @staticmethod
    def _addresses(module: nn.Module) -> list[int]:
        return [tensor.data_ptr() for table in (module._parameters, module._buffers) for tensor in table.values()
                if tensor is not None]

    def holds(self, module: nn.Module) -> bool:
        now = self._state(module)
        return (len(now) == len(self.state) and all(map(is_, now, self.state))
                and self._addresses(module) == self.addresses)

    def __reduce__(self) -> tuple[type, tuple]:
        return type(None), ()


def _described(module: nn.Module, x: torch.Tensor, factors: dict[str, Lora]) -> tuple[ExpertWeights, bool]:
    """The weights of a module, and whether the fused layer serves it; remembered where nothing is differentiated, and where
    no compiler, mode or transform may have put what has no address in the place of tensors."""
    keeps = not (factors or torch.is_grad_enabled()) and alone(x) and not hooks_that_offload(module)
    if keeps:
        seen = module.__dict__.get(_Seen.NAME)
        if seen is not None and seen.holds(module):
            return seen.weights, seen.fused
    weights = weights_of(module, factors)
    fused = activation_of(module) is not None and getattr(module, "activation_scheme", None) != "static"
    if keeps:
        module.__dict__[_Seen.NAME] = _Seen(module, weights, fused)
    return weights, fused


def experts_forward(module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                    top_k_weights: torch.Tensor, *more: object) -> torch.Tensor:
    """What Transformers calls: the output of `module` with the shape and type of hidden_states.

        >>> y = moe64.transformers.experts_forward(model.model.layers[3].mlp.experts, x, ids, torch.ones(ids.shape))
    """
    if more:
        raise InvalidArgumentError(f"[transformers] {type(module).__name__} passes {len(more)} more arguments than hidden "
                                   "states, ids and weights: moe64 does not know what they mean")
    if "_is_replica" in module.__dict__:
        refuse_copies(module)
    dtype = autocast_type(hidden_states)
    if dtype is not None and hidden_states.dtype != dtype:
        return experts_forward(module, hidden_states.to(dtype), top_k_index, top_k_weights).to(hidden_states.dtype)
    factors = lora.active_factors(module, hidden_states.dtype)  # as PEFT does: one type in the products
    weights, fused = _described(module, hidden_states, factors)
    if dtype is not None:
        weights = in_type(weights, dtype)
    if top_k_weights.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        top_k_weights = top_k_weights.float()
    if fused:
        return experts(hidden_states, top_k_index, top_k_weights, weights)
    return _with_own_gate(module, hidden_states, top_k_index, top_k_weights, weights)


def _restarts(fused: Quantized) -> bool:
    """Whether gate and up have scales of their own, and are no single matrix."""
    inter = fused.values.shape[1] // 2
    return (fused.global_scale is not None or (fused.layout.kind == "tensor" and fused.scales.shape[1] == 2)
            or (fused.layout.kind == "block" and inter % fused.layout.block_rows != 0))


def _halves(fused: Quantized) -> list[Quantized]:
    globals_ = (None, None) if fused.global_scale is None else fused.global_scale.unbind(1)
    return [Quantized(values, scales, fused.layout, scale, fused.global_divides, fused.dtype, fused.scale_dtype)
            for values, scales, scale in zip(fused.values.chunk(2, 1), fused.scales.chunk(2, 1), globals_)]


def _linear(rows: torch.Tensor, projection: Projection, begin: torch.Tensor, fused: bool = False) -> torch.Tensor:
    matrix = projection.weights
    if fused and isinstance(matrix, Quantized) and _restarts(matrix):
        parts = _halves(matrix)
        biases = (None, None) if projection.bias is None else projection.bias.chunk(2, 1)
        out = torch.cat([grouped_gemm(rows, part, begin, bias=bias) for part, bias in zip(parts, biases)], dim=-1)
    else:
        out = grouped_gemm(rows, matrix, begin, bias=projection.bias)
    if projection.lora is not None:
        low = grouped_gemm(rows, projection.lora.a, begin)
        out = out + grouped_gemm(low, projection.lora.b, begin) * projection.lora.scaling
    return out


def _on_static_grid(module: nn.Module, name: str, rows: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
    """Rows as values that their expert's static activation scale times e4m3 can hold; gradients pass straight through."""
    if getattr(module, "activation_scheme", None) != "static":
        return rows
    scale = getattr(module, name + "_activation_scale", None)
    if scale is None:
        raise UnsupportedError(f"[transformers] {type(module).__name__} has activation_scheme 'static' and no "
                               f"{name}_activation_scale")
    expert = torch.searchsorted(begin[1:], torch.arange(rows.shape[0], device=rows.device), right=True)
    scale = scale.detach().float()[expert.clamp(max=scale.shape[0] - 1), None]
    codes = (rows.detach().float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return rows + ((codes.float() * scale).to(rows.dtype) - rows.detach())


def _with_own_gate(module: Any, x: torch.Tensor, ids: torch.Tensor, top_k_weights: torch.Tensor,
                   weights: ExpertWeights) -> torch.Tensor:
    """The layer as a list of operations, with the module's own gate, norm and static scales in their places."""
    flat = x.reshape(-1, x.shape[-1])
    ids, top_k_weights = ids.reshape(-1, ids.shape[-1]), top_k_weights.reshape(-1, top_k_weights.shape[-1])
    p = plan(ids, module.down_proj.shape[0], top_k_weights)
    first = "gate_up_proj" if getattr(module, "has_gate", True) else "up_proj"
    inner = _linear(_on_static_grid(module, first, gather(flat, p), p.expert_begin), weights.gate_up, p.expert_begin,
                    fused=first == "gate_up_proj")
    inner = module._apply_gate(inner) if getattr(module, "has_gate", True) else module.act_fn(inner)
    inner = inner.to(flat.dtype)  # within autocast some functions answer in float32
    rows = _linear(_on_static_grid(module, "down_proj", inner, p.expert_begin), weights.down, p.expert_begin)
    if getattr(module, "has_post_expert_norm", False):
        rows = module.post_expert_norm(rows)
    return combine(rows, p).reshape(x.shape)


def register() -> None:
    """Adds "moe64" to both experts interfaces; done by the import of this module.

        >>> moe64.transformers.register()
    """
    found = tuple(int(word) for word in hf.__version__.split(".")[:2])
    if found < _OLDEST:
        raise LibraryError(f"[transformers] version {hf.__version__} takes no experts implementation of others: 5.7 or "
                           "later is needed")
    moe.ExpertsInterface.register(NAME, experts_forward)
    finegrained_fp8.FP8ExpertsInterface.register(NAME, experts_forward)
    families.install(silent=codes.is_loading)
    lora.install()
    dense.loading.install(codes.is_loading)
    saving.install()


register()
