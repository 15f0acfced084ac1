"""What Transformers does about FP8 when it loads a model, where moe64 runs the dense layers."""

from __future__ import annotations

import functools
from typing import Any, Callable

import transformers as hf
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from .layers import Served, freeze


def install(is_loading: Callable[[], bool]) -> None:
    """Changes two methods of quantizers; `is_loading` answers whether moe64 loads the model."""
    postprocess, validate = HfQuantizer.postprocess_model, FineGrainedFP8HfQuantizer.validate_environment
    if hasattr(postprocess, "_moe64"):
        return

    @functools.wraps(postprocess)
    def postprocess_model(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Codes that moe64 runs have no gradients."""
        answer = postprocess(self, model, *args, **kwargs)
        for module in model.modules():
            if isinstance(module, Served):
                freeze(module)
        return answer

    @functools.wraps(validate)
    def validate_environment(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Without a GPU that Transformers has kernels for it would expand the model, or refuse."""
        if is_loading() and self.pre_quantized and hf.utils.is_accelerate_available():
            return None
        return validate(self, *args, **kwargs)

    postprocess_model._moe64 = True  # type: ignore[attr-defined]
    HfQuantizer.postprocess_model = postprocess_model  # type: ignore[method-assign]
    FineGrainedFP8HfQuantizer.validate_environment = validate_environment  # type: ignore[method-assign]
