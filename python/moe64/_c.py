"""The C ABI of moe64 in ctypes: the structs of moe64/c/*.h field by field, and the signatures of its functions.

Names are those of C without the prefix. `structs()` lists every struct with its C name, so that the loader can compare
sizes with the library and a test can compare every offset with a C compiler.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char_p, c_float, c_int, c_int16, c_int32, c_int64, c_uint8, c_uint16, c_uint32,
    c_uint64, c_void_p,
)

ABI_VERSION = 2
GROUPED_GEMM_SCRATCH_BYTES = 4096

F32, BF16, F16, E4M3, E5M2, E8M0, INT8, INT4, FP4, INT32, INT64, UINT8 = range(12)
CPU, CUDA = 0, 1
NONE, TENSOR, ROW, BLOCK, GROUP = range(5)
PLAN_STATUS_COUNT = 6
MODES = {"auto": 0, "w8a16": 1, "w8a8": 2, "native": 3}
SCHEMES = {"unstated": 0, "dynamic": 1}
PLACEMENTS = {"output": 0, "input": 1}
ACTIVATIONS = {"silu_glu": 0, "gelu_glu": 1, "gelu_tanh_glu": 2, "gptoss_glu": 3, "clamped_silu_glu": 4, "silu": 5,
               "gelu": 6, "relu2": 7, "step_glu": 8}
UNGATED = frozenset({"silu", "gelu", "relu2"})  # activations of one matrix; the others take gate and up
CLAMPED = ("gptoss_glu", "clamped_silu_glu", "step_glu")  # have a limit
SCORES = {"softmax": 0, "softmax_of_selected": 1, "sigmoid": 2}
GROUP_SCORES = {"max": 0, "top2_sum": 1}


class _Struct(Structure):
    """A struct of C; those that start with struct_size know their own."""

    def __init__(self, *values: object, **fields: object) -> None:
        super().__init__(*values, **fields)
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)


def _bytes(count: int) -> tuple[str, type]:
    return "reserved", c_uint8 * count


class Device(_Struct):
    _fields_ = [("kind", c_uint8), ("reserved", c_uint8), ("ordinal", c_int16)]


class Stream(_Struct):
    _fields_ = [("device", Device), ("reserved", c_uint32), ("handle", c_void_p)]


class Tensor(_Struct):
    _fields_ = [("data", c_void_p), ("dtype", c_uint8), ("rank", c_uint8), ("device", Device), ("reserved", c_uint16),
                ("extent", c_int64 * 3), ("stride", c_int64 * 3)]


class Workspace(_Struct):
    _fields_ = [("data", c_void_p), ("bytes", c_int64), ("device", Device), ("reserved", c_uint32)]


class Granularity(_Struct):
    _fields_ = [("kind", c_uint8), _bytes(7), ("block_rows", c_int64), ("block_cols", c_int64)]


class GlobalScale(_Struct):
    _fields_ = [("values", Tensor), ("applied", c_uint8), _bytes(7)]


class Quantized(_Struct):
    _fields_ = [("values", Tensor), ("scales", Tensor), ("global_", GlobalScale), ("layout", Granularity)]


class RoutingPlan(_Struct):
    _fields_ = [("tokens", c_int64), ("top_k", c_int64), ("experts", c_int64), ("expert_begin", Tensor),
                ("row_to_slot", Tensor), ("slot_to_row", Tensor), ("slot_weight", Tensor), ("status", Tensor)]


class QuantizeArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("layout", Granularity), ("values", Tensor),
                ("scales", Tensor), ("global_", GlobalScale), ("live_rows", Tensor), ("implementation", c_char_p)]


class DequantizeArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("q", Quantized), ("out", Tensor), ("implementation", c_char_p)]


class RouteOptions(_Struct):
    _fields_ = [("score", c_uint8), ("renormalize", c_uint8), ("group_by", c_uint8), ("reserved", c_uint8),
                ("scaling", c_float), ("expert_groups", c_int64), ("groups_kept", c_int64)]


class RouteArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("logits", Tensor), ("selection_bias", Tensor), ("options", RouteOptions),
                ("expert_ids", Tensor), ("weights", Tensor), ("implementation", c_char_p)]


class RouteBackwardArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("logits", Tensor), ("options", RouteOptions), ("expert_ids", Tensor),
                ("d_weights", Tensor), ("d_logits", Tensor), ("implementation", c_char_p)]


class PlanArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("expert_ids", Tensor), ("expert_mask", Tensor), ("weights", Tensor),
                ("experts_total", c_int64), ("first_expert", c_int64), ("capacity", c_int64), ("plan", RoutingPlan),
                ("scratch", Workspace), ("implementation", c_char_p)]


class GatherArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("scales", Tensor), ("plan", RoutingPlan),
                ("weighted", c_uint8), _bytes(7), ("rows", Tensor), ("row_scales", Tensor),
                ("implementation", c_char_p), ("quantized", Granularity)]


class CombineArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("rows", Quantized), ("plan", RoutingPlan), ("weighted", c_uint8),
                _bytes(7), ("y", Tensor), ("implementation", c_char_p)]


class SlotWeightGradientArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("left", Tensor), ("right", Tensor), ("bias_rows", Tensor),
                ("bias", Tensor), ("plan", RoutingPlan), ("d_weights", Tensor), ("implementation", c_char_p)]


class LowRankTerm(_Struct):
    _fields_ = [("u", Tensor), ("weights", c_void_p), ("scaling", c_float), ("reserved", c_uint32)]


class GroupedGemmArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Quantized), ("weights", c_void_p), ("expert_begin", Tensor),
                ("transpose", c_uint8), _bytes(7), ("bias", Tensor * 2), ("low_rank", LowRankTerm), ("y", Tensor),
                ("implementation", c_char_p), ("scratch", Workspace)]


class GroupedGemmWgradArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("dy", Tensor), ("x", Tensor), ("expert_begin", Tensor),
                ("scaling", c_float), ("parts", c_int32), ("d_weights", Tensor * 2), ("d_bias", Tensor * 2),
                ("implementation", c_char_p)]


class ActivationSpec(_Struct):
    _fields_ = [("kind", c_uint8), _bytes(7), ("alpha", c_float), ("limit", c_float)]


class ActivateArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("activation", ActivationSpec), ("gate", Tensor), ("up", Tensor),
                ("live_rows", Tensor), ("out", Tensor), ("implementation", c_char_p), ("scales", Tensor),
                ("quantized", Granularity)]


class ActivateBackwardArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("activation", ActivationSpec), ("gate", Tensor), ("up", Tensor),
                ("d_out", Tensor), ("weighted_by", POINTER(RoutingPlan)), ("live_rows", Tensor), ("d_gate", Tensor),
                ("d_up", Tensor), ("implementation", c_char_p)]


class LoraAdapter(_Struct):
    _fields_ = [("a", c_void_p), ("b", c_void_p), ("scaling", c_float), ("reserved", c_uint32)]


class Projection(_Struct):
    _fields_ = [("weights", c_void_p), ("bias", Tensor * 2), ("lora", LoraAdapter)]


class LayerDesc(_Struct):
    _fields_ = [("struct_size", c_uint64), ("gate_up", Projection), ("down", Projection),
                ("activation", ActivationSpec), ("mode", c_uint8), ("scheme", c_uint8), ("weight_on", c_uint8),
                _bytes(5), ("experts_total", c_int64), ("first_expert", c_int64), ("implementation", c_char_p)]


class ProjectionView(_Struct):
    _fields_ = [("parts", Quantized * 2), ("bias", Tensor * 2)]


class LayerView(_Struct):
    _fields_ = [("struct_size", c_uint64), ("gate_up", ProjectionView), ("down", ProjectionView),
                ("activation", ActivationSpec), ("mode", c_uint8), ("scheme", c_uint8), ("weight_on", c_uint8),
                _bytes(5), ("experts_total", c_int64), ("first_expert", c_int64)]


class LayerShape(_Struct):
    _fields_ = [("tokens", c_int64), ("top_k", c_int64), ("io", c_uint8), _bytes(7)]


class ForwardArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("expert_ids", Tensor), ("weights", Tensor),
                ("capacity", c_int64), ("y", Tensor), ("saved", Workspace), ("scratch", Workspace)]


class ProjectionGradients(_Struct):
    _fields_ = [("weights", Tensor * 2), ("bias", Tensor * 2), ("lora_a", Tensor), ("lora_b", Tensor * 2)]


class LayerGradients(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("weights", Tensor), ("gate_up", ProjectionGradients),
                ("down", ProjectionGradients)]


class BackwardArgs(_Struct):
    _fields_ = [("struct_size", c_uint64), ("x", Tensor), ("dy", Tensor), ("top_k", c_int64), ("saved", Workspace),
                ("scratch", Workspace), ("gradients", POINTER(LayerGradients))]


class CheckpointOptions(_Struct):
    _fields_ = [("struct_size", c_uint64), ("lenient", c_uint8), ("follow_links", c_uint8), ("mapped", c_uint8),
                _bytes(5), ("assume", POINTER(c_char_p)), ("assume_count", c_int64)]


class CheckpointFinding(_Struct):
    _fields_ = [("struct_size", c_uint64), ("rule", c_char_p), ("tensor", c_char_p), ("text", c_char_p),
                ("level", c_uint8), _bytes(7)]


class CheckpointSummary(_Struct):
    _fields_ = [("struct_size", c_uint64), ("model_type", c_char_p), ("quant_method", c_char_p), *(
        (name, c_int64) for name in (
            "hidden", "inter", "experts", "top_k", "shards", "tensors", "tensor_bytes", "expert_layers",
            "expert_parameters", "expert_bytes", "weights_found", "scales_found", "matched", "errors", "warnings"))]


class ProjectionFormat(_Struct):
    _fields_ = [("rows", c_int64), ("cols", c_int64), ("layout", Granularity), *((name, c_uint8) for name in (
        "dtype", "scale_dtype", "has_global", "global_", "stacked", "fused", "transposed", "gate_up", "has_bias")), _bytes(7)]


class CheckpointLayer(_Struct):
    _fields_ = [("struct_size", c_uint64), ("layer", c_int64), ("mtp", c_uint8), ("sound", c_uint8), _bytes(6),
                ("problem", c_char_p), ("dialect", c_char_p), *((name, c_int64) for name in (
                    "experts", "hidden", "inter", "parameters", "stored_bytes", "loaded_bytes")),
                ("gate", ProjectionFormat), ("up", ProjectionFormat), ("down", ProjectionFormat)]


class LayerRequest(_Struct):
    _fields_ = [("struct_size", c_uint64), ("layer", c_int64), ("mtp", c_uint8), _bytes(7), ("first_expert", c_int64),
                ("experts", c_int64)]


Progress = CFUNCTYPE(c_int, c_void_p, c_int64, c_int64)

_HANDLE, _SIZE = POINTER(c_void_p), POINTER(c_int64)
# Every function that answers a status: name without prefix, types of the arguments.
STATUS_FUNCTIONS: dict[str, list] = {
    "struct_bytes": [c_char_p, _SIZE],
    "cpu_pool_create": [c_int64, _HANDLE],
    "weights_single": [POINTER(Quantized), _HANDLE],
    "weights_gate_up": [POINTER(Quantized), POINTER(Quantized), _HANDLE],
    "quantize": [POINTER(QuantizeArgs), Stream],
    "dequantize": [POINTER(DequantizeArgs), Stream],
    "route": [POINTER(RouteArgs), Stream],
    "route_backward": [POINTER(RouteBackwardArgs), Stream],
    "plan_scratch_bytes": [c_int64, c_int64, c_int64, Device, _SIZE],
    "plan": [POINTER(PlanArgs), Stream],
    "gather": [POINTER(GatherArgs), Stream],
    "combine": [POINTER(CombineArgs), Stream],
    "slot_weight_gradient": [POINTER(SlotWeightGradientArgs), Stream],
    "grouped_gemm": [POINTER(GroupedGemmArgs), Stream],
    "grouped_gemm_wgrad": [POINTER(GroupedGemmWgradArgs), Stream],
    "activate": [POINTER(ActivateArgs), Stream],
    "activate_backward": [POINTER(ActivateBackwardArgs), Stream],
    "layer_create": [POINTER(LayerDesc), _HANDLE],
    "layer_look": [c_void_p, POINTER(LayerView)],
    "resolve_mode": [c_void_p, c_uint8, Device, POINTER(c_uint8), c_char_p, c_int64],
    "saved_bytes": [c_void_p, POINTER(LayerShape), Device, _SIZE],
    "forward_bytes": [c_void_p, POINTER(LayerShape), c_uint8, Device, _SIZE],
    "forward": [c_void_p, POINTER(ForwardArgs), Stream],
    "backward_bytes": [c_void_p, POINTER(LayerShape), POINTER(LayerGradients), Device, _SIZE],
    "backward": [c_void_p, POINTER(BackwardArgs), Stream],
    "cuda_devices": [_SIZE, c_char_p, c_int64],
    "checkpoint_open": [c_char_p, POINTER(CheckpointOptions), _HANDLE],
    "checkpoint_finding_count": [c_void_p, _SIZE],
    "checkpoint_finding_at": [c_void_p, c_int64, POINTER(CheckpointFinding)],
    "checkpoint_summarize": [c_void_p, POINTER(CheckpointSummary)],
    "checkpoint_layer_at": [c_void_p, c_int64, POINTER(CheckpointLayer)],
    "layer_bytes": [c_void_p, POINTER(LayerRequest), _SIZE],
    "load_layer": [c_void_p, POINTER(LayerRequest), POINTER(Workspace), Stream, Progress, c_void_p, _HANDLE],
}
DESTROY_FUNCTIONS = ("executor_destroy", "weights_destroy", "layer_destroy", "checkpoint_destroy")


def structs() -> dict[str, type[_Struct]]:
    """Every struct of this module by its name in C."""
    found = {}
    for kind in _Struct.__subclasses__():
        words = "".join("_" + letter.lower() if letter.isupper() else letter for letter in kind.__name__)
        found["moe64" + words] = kind
    return found
