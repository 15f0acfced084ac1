"""Dense layers whose weights stay FP8 codes: FP8Linear of Transformers as a grouped GEMM of one expert.

    import moe64.transformers
    model = moe64.transformers.from_pretrained(path)      # the experts and the dense layers are codes, on any device

Transformers multiplies FP8Linear with kernels that it fetches from the Hub, for some GPUs; elsewhere it expands the model. Here
the codes are dequantised inside the product, forward and backward, and are never expanded; a block-diagonal FP8GroupedLinear
is a stack of as many experts as it has groups. On Hopper a layer whose checkpoint states dynamic quantisation of activations
runs in w8a8, as experts do.
"""

from . import compressed, loading
from .layers import CodeGroupedLinear, CodeLinear, Served, explain, freeze, leave, serve

__all__ = ["CodeGroupedLinear", "CodeLinear", "Served", "compressed", "explain", "freeze", "leave", "loading", "serve"]
