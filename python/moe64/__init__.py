"""moe64: expert layers of mixture-of-experts models, straight from their quantised checkpoints.

    import torch, moe64
    weights = moe64.ExpertWeights(gate_up, down)          # plain, or quantised with their scales
    y = moe64.experts(x, top_k_index, top_k_weights, weights)

Importing moe64 needs neither PyTorch nor the library; both are loaded by the first name that uses them.
`import moe64.transformers` adds "moe64" to the experts implementations of Transformers; where that was forgotten it happens
when a model asks for the name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import _autoload
from ._library import cuda_devices, library, tool, version
from .errors import *  # noqa: F403
from .errors import BY_CODE as _BY_CODE  # noqa: F401

__version__ = "0.1.0"

_LAZY = {
    "Granularity": "formats", "Quantized": "formats", "Projection": "formats", "Lora": "formats",
    "ExpertWeights": "formats", "Activation": "formats",
    "RoutingPlan": "routing", "plan": "routing", "route": "routing", "gather": "routing", "combine": "routing",
    "quantize": "elementwise", "dequantize": "elementwise", "activate": "elementwise",
    "grouped_gemm": "gemm",
    "experts": "layer", "explain": "layer",
    "Experts": "module",
    "load_experts": "checkpoint", "check": "checkpoint", "inspect": "checkpoint", "merge": "checkpoint",
    "set_threads": "_torch",
}

if TYPE_CHECKING:  # each under its own name: a strict type checker takes only that for an export
    from ._torch import set_threads as set_threads
    from .checkpoint import check as check, inspect as inspect, load_experts as load_experts, merge as merge
    from .elementwise import activate as activate, dequantize as dequantize, quantize as quantize
    from .formats import (
        Activation as Activation, ExpertWeights as ExpertWeights, Granularity as Granularity, Lora as Lora,
        Projection as Projection, Quantized as Quantized,
    )
    from .gemm import grouped_gemm as grouped_gemm
    from .layer import experts as experts, explain as explain
    from .module import Experts as Experts
    from .routing import (
        RoutingPlan as RoutingPlan, combine as combine, gather as gather, plan as plan, route as route,
    )

__all__ = ["__version__", "cuda_devices", "library", "tool", "version", *_LAZY]


_SUBMODULES = ("compat", "lora", "transformers")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        try:
            return importlib.import_module("." + name, __name__)
        except ImportError as error:  # such as Transformers, which is not there
            raise AttributeError(f"module 'moe64' has no attribute {name!r}: {error}") from error
    if name not in _LAZY:
        raise AttributeError(f"module 'moe64' has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))


_autoload.watch()
