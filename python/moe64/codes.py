"""Models of Transformers whose experts stay the codes of their checkpoint."""

from __future__ import annotations

import copy
import math
import os
import threading
import warnings
from typing import Any, Iterator

import torch
import transformers as hf
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.quantizers.base import HfQuantizer

from . import dense, families
from ._code_module import CodeModule
from .checkpoint import inspect, load_experts
from .errors import (
    InvalidArgumentError, IoFailureError, MalformedFileError, MissingScaleError, ShapeMismatchError, UnsupportedError,
)
from .formats import Activation, ExpertWeights, Projection, Quantized

__all__ = ["CodeExperts", "from_pretrained", "keep_codes"]


class CodeExperts(CodeModule):
    """Experts whose weights are the codes of a checkpoint: what from_pretrained and keep_codes put in place of expanded stacks.

    Its parameters have the names that PEFT's target_parameters expect, gate_up_proj (or up_proj) and down_proj, are frozen,
    and are bytes; their scales are buffers. It does what the class of `own`, the module in whose place it stands,
    does: a gate that is not known and a norm behind the experts stay that module's, and `activation` is None.

        >>> experts = moe64.transformers.CodeExperts(moe64.load_experts(path, layer=3, fused=True))
        >>> y = experts(x, ids, torch.ones(ids.shape))
    """

    has_gate: bool
    is_transposed = False
    is_concatenated = True
    down_proj: torch.Tensor

    def __init__(self, weights: ExpertWeights, config: object = None, own: "nn.Module | None" = None) -> None:
        super().__init__()
        self.config = config
        self.activation: Activation | None = weights.activation
        self.source: "tuple[str, int] | None" = None  # the checkpoint and its layer that the codes are of
        self._own: "tuple[nn.Module, ...]" = ()  # in a tuple: what is registered of it has its own name here
        self.has_post_expert_norm, self._sorted = False, False
        self.num_experts = 0
        self.has_gate = weights.activation.gated
        self._formats = {}
        self.activation_scheme, self.weight_on = weights.scheme, weights.weight_on
        self.has_bias = weights.down.bias is not None or weights.gate_up.bias is not None
        for name, projection in (("gate_up_proj" if self.has_gate else "up_proj", weights.gate_up),
                                 ("down_proj", weights.down)):
            self._hold(name, projection)
        self.num_experts = self.down_proj.shape[0]
        if isinstance(own, CodeExperts):
            own = own._own[0] if own._own else None
        if own is not None:
            self._do_as(own)

    def _do_as(self, own: nn.Module) -> None:
        """Takes over what a class of Transformers does around its matrix products, or refuses."""
        name = type(own).__name__
        self._sorted = _call_of(own) == "sorted"
        for what, has in (("has_gate", self.has_gate), ("has_bias", self.has_bias)):
            if getattr(own, what, what == "has_gate") != has:
                raise UnsupportedError(f"[transformers] {name} has {what} {not has}, and the checkpoint {has}")
        if self.weight_on == "input" and not self._sorted:
            raise UnsupportedError(f"[transformers] {name} weights the output of experts, and the checkpoint states their "
                                   "input")
        more = [key for key in (*own._parameters, *own._buffers) if not key.startswith(_STACKS)]
        if more:
            raise UnsupportedError(f"[transformers] {name} has {', '.join(more)} in addition to its projections: moe64 does "
                                   "not know what they do")
        self._require_extents(own)
        act, stated = Activation("silu_glu") if self._sorted else families.activation_of(own), self.activation
        if act is not None and not _same(act, stated):
            warnings.warn(f"[transformers] {name} computes {act}, where the files state {stated}: the class is followed",
                          stacklevel=3)
        self._own, self.activation = (_without_stacks(own),), act
        self.training = own.training
        self.has_interleaved_adapters = self.has_gate and not getattr(own, "is_concatenated", True)
        if act is None:
            self.has_post_expert_norm = getattr(own, "has_post_expert_norm", False)
            for key, child in own.named_children():
                self.add_module(key, child)
            if not self.has_gate and "act_fn" not in self._modules:
                self.act_fn = own.act_fn

    def _require_extents(self, own: nn.Module) -> None:
        """Codes of another model than that which the module was made for are none of its experts."""
        rows = 2 if self._sorted or getattr(own, "is_transposed", False) else 1
        for name in ("gate_up_proj" if self.has_gate else "up_proj", "down_proj"):
            stack, codes = getattr(own, name, None), getattr(self, name)
            if isinstance(stack, torch.Tensor) and stack.dim() == 3 and stack.shape[rows] != codes.shape[1]:
                raise ShapeMismatchError(f"[transformers] {name} of {type(own).__name__} has {stack.shape[rows]} rows per "
                                         f"expert, the checkpoint {codes.shape[1]}")

    def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The gate of the class; codes have gate rows before up rows, whatever its own stack had."""
        own: Any = self._own[0]
        own.training = self.training
        if not getattr(own, "is_concatenated", True):
            gate_up = torch.stack(gate_up.chunk(2, dim=-1), dim=-1).flatten(-2)
        return own._apply_gate(gate_up)

    def _hold(self, name: str, projection: Projection) -> None:
        if isinstance(projection.weights, Quantized):
            self._hold_codes(name, projection.weights, as_parameter=True)
        else:
            self.register_parameter(name, nn.Parameter(projection.weights, requires_grad=False))
        self.register_parameter(name + "_bias", None if projection.bias is None
                                else nn.Parameter(projection.bias, requires_grad=False))

    def forward(self, hidden_states: torch.Tensor, *routing: torch.Tensor) -> torch.Tensor:
        """(hidden_states, top_k_index, top_k_weights) as decorated classes; Llama-4 passes hidden_states alone."""
        if self._sorted:
            return self._forward_sorted(hidden_states, *routing)
        return ALL_EXPERTS_FUNCTIONS["moe64"](self, hidden_states, *routing)

    def _forward_sorted(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """All tokens once for each expert, each times its router's score, which is 0 where the expert was not chosen.
        Without biases an expert of zeros is zeros, and so is its gradient: such rows are left out."""
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        if rows.shape[0] % self.num_experts:
            raise ShapeMismatchError(f"[transformers] hidden_states has {rows.shape[0]} rows, no multiple of the "
                                     f"{self.num_experts} experts that each get all tokens")
        experts = torch.arange(self.num_experts, device=rows.device).repeat_interleave(rows.shape[0] // self.num_experts)
        ids = torch.where(rows.ne(0).any(-1), experts, -1)[:, None]
        return ALL_EXPERTS_FUNCTIONS["moe64"](self, rows, ids, torch.ones(ids.shape, device=rows.device))


_STACKS = ("gate_up_proj", "up_proj", "down_proj")


def _call_of(own: nn.Module) -> str:
    called = families.call_of(own)
    if called is None:
        raise UnsupportedError(f"[transformers] {type(own).__name__} lacks @use_experts_implementation, or has another "
                               "forward, and moe64 does not know what that does: its experts cannot be codes")
    return called


def _same(one: Activation, other: "Activation | None") -> bool:
    """Whether two activations compute the same: only some have an alpha and a limit."""
    if other is None or one.kind != other.kind:
        return False
    pairs = [(one.alpha, other.alpha)] * (one.kind == "gptoss_glu")
    pairs += [(one.limit, other.limit)] * one.clamped
    return all(math.isclose(left, right, rel_tol=1e-6) for left, right in pairs)  # C holds them as float


def _without_stacks(module: nn.Module) -> nn.Module:
    """The module with its attributes and submodules, but without its weights."""
    shell = copy.copy(module)
    shell.__dict__.update(_parameters={}, _buffers={}, _modules=dict(module._modules))
    shell.__dict__.pop("_moe64_seen", None)
    return shell


def _layers_of(model: nn.Module, path: "str | os.PathLike[str]") -> Iterator[tuple[str, Any, int, int]]:
    """(name, module, layer, experts) of the experts modules that have a quantised layer in the checkpoint: their names
    hold one number, the layer's."""
    layers = [layer for layer in inspect(path)["layers"] if not layer["mtp"]]
    unsound = [layer["layer"] for layer in layers if not layer["sound"]]
    if unsound:
        warnings.warn(f"[transformers] {path}: the experts of layers {unsound} are left to Transformers, because the "
                      "checkpoint is not sound there (`moe64 check` says why)", stacklevel=3)
    have = {layer["layer"]: layer for layer in layers
            if layer["sound"] and layer["down"]["type"] not in ("f32", "bf16", "f16")}
    found: dict[int, str] = {}
    for name, module in list(model.named_modules()):
        words = name.split(".")
        indices = [int(word) for word in words if word.isdigit()]
        if words[-1] != "experts" or len(indices) != 1 or indices[0] not in have or "mtp" in words:
            continue
        layer = indices[0]
        if layer in found:
            raise UnsupportedError(f"[transformers] {found[layer]} and {name} are both experts of a layer {layer}: moe64 does "
                                   f"not know which of them those of {path} are")
        found[layer] = name
        yield name, module, layer, have[layer]["experts"]
    if have and not found:
        raise InvalidArgumentError(f"[transformers] {path} has quantised experts, but {type(model).__name__} has no module "
                                   "'...<layer>...experts' for any of them")


def _require_count(verb: str, own: nn.Module, name: str, experts: int, layer: int, path: object) -> None:
    _call_of(own)
    stack = own.down_proj if hasattr(own, "down_proj") else next(own.parameters(), None)
    if isinstance(stack, torch.Tensor) and stack.dim() == 3 and stack.shape[0] != experts:
        raise ShapeMismatchError(f"[{verb}] {name} has {stack.shape[0]} experts, layer {layer} of {path} has {experts}")


def keep_codes(model: nn.Module, path: "str | os.PathLike[str]") -> list[str]:
    """Replaces the experts of a model that was loaded from `path` by the codes of the checkpoint; answers their names.

    For models that are there already, with their experts expanded to bf16; `from_pretrained` loads without expanding.
    After it the experts take the memory that they have in the file, and compute what their class computes. Layers are
    matched by the number in their name.

        >>> model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        >>> moe64.transformers.keep_codes(model, path)
    """
    replaced = []
    for name, module, layer, experts in list(_layers_of(model, path)):  # all of them are looked at before any is replaced
        _require_count("keep_codes", module, name, experts, layer, path)
        _put(model, name, path, layer, next(module.parameters()).device, getattr(module, "config", None), module)
        replaced.append(name)
    if not replaced:
        raise InvalidArgumentError(f"[keep_codes] no experts module of the model has a layer in {path}")
    _hold_tensors(model)
    return replaced


def _put(model: nn.Module, name: str, path: "str | os.PathLike[str]", layer: int, device: torch.device,
         config: object, own: nn.Module) -> None:
    if device.type == "meta":
        raise UnsupportedError(f"[transformers] {name} is offloaded: codes of experts must lie on a device")
    made = CodeExperts(load_experts(path, layer, fused=True, device=device), config, own)
    made.source = (os.path.abspath(path), layer)
    model.set_submodule(name, made)


class _Waiting(nn.Module):
    """Stands for experts while Transformers loads the rest: as large as they will be, and without weights, so that
    nothing in the checkpoint belongs to it but a norm of their class. Buffers that are not saved show the device that was
    chosen for it. They are the model's to count and to place, but not accelerate's to bring from where they are
    offloaded."""

    def __init__(self, path: str, layer: int, experts: int, own: nn.Module) -> None:
        super().__init__()
        self.path, self.layer, self.config = path, layer, getattr(own, "config", None)
        sample = CodeExperts(load_experts(path, layer, experts=1, fused=True), own=own)  # one expert tells all shapes
        self.own = (_without_stacks(own),)
        for name, child in sample.named_children():
            self.add_module(name, child)
        for i, tensor in enumerate((*sample.parameters(recurse=False), *sample.buffers(recurse=False))):
            self.register_buffer(f"room_{i}", torch.empty((experts, *tensor.shape[1:]), dtype=tensor.dtype, device="meta"),
                                 persistent=False)

    def named_buffers(self, *_args: Any, **_options: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())


_loading = threading.local()


def is_loading() -> bool:
    """Whether this thread is inside of from_pretrained."""
    return getattr(_loading, "active", False)


_preprocess_model = HfQuantizer.preprocess_model


def _preprocess_and_wait(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """HfQuantizer.preprocess_model; inside of from_pretrained also puts a _Waiting where experts will be codes. Tells
    what a quantizer's own experts leave out."""
    files = kwargs.get("checkpoint_files") or []
    loading = is_loading() and files
    if loading and self.quantization_config.quant_method == "mxfp4":
        # Else its own module stands around the experts, calls them in its own way, and cannot be trained. What is expanded
        # are experts that are no codes; those of sound layers are not read by Transformers.
        self.quantization_config.dequantize = True
    own = dict(model.named_modules())  # before a quantizer puts modules of its own in their place
    answer = _preprocess_model(self, model, *args, **kwargs)
    if loading:
        _loading.quantised = True
        folder = os.path.dirname(os.path.abspath(files[0]))
        ignored = []
        for name, module, layer, experts in _layers_of(model, folder):
            _require_count("from_pretrained", own.get(name, module), name, experts, layer, path=folder)
            model.set_submodule(name, _Waiting(folder, layer, experts, own.get(name, module)))
            ignored.append(rf"layers\.{layer}\..*experts\.")
        known = model._keys_to_ignore_on_load_unexpected  # a list before 5.17, then a set
        kind = list if known is None else type(known)
        model._keys_to_ignore_on_load_unexpected = kind([*(known or ()), *ignored])
    if loading:
        dense.compressed.serve(self, model)
    if loading or families.is_asked_for(model):
        dense.serve(model)
    families.tell_what_was_left_out(own, model)
    return answer


def from_pretrained(path: "str | os.PathLike[str]", *args: Any, auto_class: Any = hf.AutoModelForCausalLM,
                    **options: Any) -> Any:
    """`auto_class.from_pretrained(path, ...)` with experts="moe64", whose quantised experts are never expanded.

    Transformers loads everything but the routed experts; moe64 reads those, layer by layer, onto the devices that the
    device_map gives them. Experts that are not quantised, or not sound, are loaded by Transformers as always.

        >>> model = moe64.transformers.from_pretrained("GLM-4.7-Flash-FP8", dtype="auto", device_map="auto")

    The dense layers of fine-grained FP8 models stay codes too, on any device;
    `quantization_config=FineGrainedFP8Config(dequantize=True)` expands those instead.
    """
    tells = options.pop("output_loading_info", False)
    _loading.active, _loading.quantised = True, False
    try:
        model, found = auto_class.from_pretrained(path, *args, output_loading_info=True,
                                                  **{"experts_implementation": "moe64", **options})
    finally:
        _loading.active = False
    _require_scales(model, found)
    if not _loading.quantised:
        _require_no_codes(model, path, options)
    for name, module in list(model.named_modules()):
        if isinstance(module, _Waiting):
            module.own[0]._modules.update(module._modules)  # a norm, loaded
            device = next(iter(module._buffers.values())).device  # type: ignore[union-attr]
            module._buffers.clear()  # its room is free before the codes come
            execution_device = _executing(model, name)
            _put(model, name, module.path, module.layer, device, module.config, module.own[0])
            if execution_device is not None:
                _offload(model.get_submodule(name), execution_device)
    _hold_tensors(model)
    families.tell_unserved(model)
    return (model, found) if tells else model


def _require_scales(model: nn.Module, found: dict[str, Any]) -> None:
    """Transformers fills what a checkpoint lacks with something, scales too."""
    for key in sorted(found.get("missing_keys", ())):
        name, _, last = key.rpartition(".")
        layer = model.get_submodule(name) if "_scale" in last else None
        if isinstance(layer, dense.Served) and last in layer.coded():
            raise MissingScaleError(f"[transformers] {name}.weight is {layer.weight.dtype} and the checkpoint has no {key}: "
                                    "codes without their scale mean nothing (`moe64 check` tells more). A matrix in 16 bits "
                                    "must be in modules_to_not_convert; FineGrainedFP8Config(dequantize=True) loads it")


def _hold_tensors(model: Any) -> None:
    """compressed-tensors expands what is no expert in the first forward, and leaves tables in the place of all modules'
    parameters that bring them from where they are offloaded, also where nothing is. fully_shard and torch.compile cannot use
    such modules, and on CPUs all processes share their memory: it is expanded now, into plain tensors."""
    waiting = model.__dict__.get("ct_decompress_hook")
    if waiting is not None:
        model._forward_pre_hooks[waiting.id](model, ())
    for module in model.modules():
        tables: list[Any] = [module._parameters, module._buffers]
        if all(hasattr(table, "offloaded_values") and str(table.onload_device) == str(table.offload_device)
               for table in tables):
            from compressed_tensors.offload.module import remove_module_offload  # type: ignore[import-untyped]
            remove_module_offload(module)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.device.type == "cpu" and tensor.is_shared():
                    tensor.data = tensor.data.clone()


def _require_no_codes(model: Any, path: "str | os.PathLike[str]", options: dict[str, Any]) -> None:
    """Where config.json states no quantisation, as with ModelOpt's hf_quant_config.json, Transformers takes codes for
    values and leaves their scales out."""
    folder = os.path.join(path, options.get("subfolder", ""))
    if not os.path.isdir(folder):
        known = ("subfolder", "revision", "cache_dir", "token", "local_files_only")
        folder = os.path.dirname(hf.utils.cached_file(path, "config.json", **{k: options[k] for k in known if k in options}))
    try:
        names = [name for name, *_ in _layers_of(model, folder)]
    except (MalformedFileError, IoFailureError) as error:
        warnings.warn(f"[transformers] whether {path} has quantised experts is not known: {error}", stacklevel=3)
        return
    if names:
        raise UnsupportedError(
            f"[transformers] config.json of {path} states no quantisation, but {names[0]} and the other experts are quantised: "
            "Transformers has read their codes as values without scales, and maybe those of other layers. Load a bf16 copy "
            "(moe64 convert --to bf16), or the experts alone with moe64.load_experts")


def _executing(model: Any, name: str) -> Any:
    """Where the device_map lets a module of this name run, if it is not where it lies: the CPU of a machine with a GPU. The
    disk is refused, because what lies there is the checkpoint, one tensor per expert."""
    device_map: dict[str, Any] = getattr(model, "hf_device_map", {"": None})
    entry = max((key for key in device_map if not key or f"{name}.".startswith(f"{key}.")), key=len)
    if device_map[entry] == "disk":
        raise UnsupportedError(f"[transformers] {name} is mapped to the disk by '{entry}': codes of experts must lie in "
                               "memory, map them to \"cpu\"")
    hook = model.get_submodule(name.rpartition(".")[0]).__dict__.get("_hf_hook")
    where = getattr(hook, "execution_device", None)
    return where if str(device_map[entry]) == "cpu" and str(where) not in ("cpu", "None") else None


def _offload(module: CodeExperts, execution_device: Any) -> None:
    """As accelerate does with other modules that a device_map puts on the CPU of a machine with a GPU: codes and scales lie
    in host memory and are copied to the executing device for each call."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module  # type: ignore[import-untyped]
    add_hook_to_module(module, AlignDevicesHook(execution_device, offload=True, offload_buffers=True))

HfQuantizer.preprocess_model = _preprocess_and_wait  # type: ignore[method-assign]
