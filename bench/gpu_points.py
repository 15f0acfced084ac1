"""What `make bench-gpu` measures, and the bars that the figures are held against: data, nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One measurement: a problem line for the tool, a bar, and the peer that computes the same."""

    group: str
    name: str
    line: str
    figure: str  # what counts: copy_share, microseconds, tflops, weights (how fast they are read, TB/s)
    bar: float = 0.0  # at most (microseconds) or at least (the others); 0: reported only
    peer: tuple = ()  # function of gpu_peers and its arguments


MOVES = ((8192, 7168, 8), (32768, 2048, 8), (16384, 6144, 4), (65536, 2048, 4))  # tokens, hidden, top_k
ACTIVATIONS = ("silu_glu", "gelu_glu", "gelu_tanh_glu", "gptoss_glu", "clamped_silu_glu")


def dequantize_points():
    for rows in (4096, 65536, 262144):
        for scale in ("block:128x128", "row", "tensor"):
            yield Point("dequantize", f"e4m3 {scale} to bf16, {rows:,} x 6,144",
                        f"op=dequantize experts=1 inter={rows} hidden=6144 scale={scale}", "copy_share",
                        0.8 if rows == 4096 else 0.96,
                        ("dequantize", rows, 6144) if scale == "block:128x128" else ())


def movement_points():
    for tokens, hidden, top_k in MOVES:
        size = f"tokens={tokens} hidden={hidden} top_k={top_k} experts=256"
        name = f"T={tokens} H={hidden} k={top_k}"
        yield Point("gather", name, f"op=gather {size}", "copy_share", 0.93, ("gather", tokens, hidden, top_k))
        yield Point("combine", f"{name}, weighted", f"op=combine {size}", "copy_share", 0.93,
                    ("combine", tokens, hidden, top_k))
        for scale in ("group:128", "row"):
            yield Point("gather and quantize", f"{name}, e4m3 {scale}", f"op=gather {size} scale={scale} quantized=1",
                        "copy_share", 0.9)


def quantize_points():
    for scale in ("group:128", "row", "block:128x128"):
        yield Point("quantize", f"bf16 to e4m3 {scale}, 65,536 x 7,168",
                    f"op=quantize experts=1 inter=65536 hidden=7168 scale={scale}", "copy_share", 0.9)
    for act in ACTIVATIONS:
        size = f"tokens=65536 top_k=1 inter=2048 act={act} experts=64 hidden=64"
        yield Point("activate", f"{act}, 65,536 x 2,048", f"op=activate {size}", "copy_share", 0.9,
                    ("activate", 65536, 2048) if act == "silu_glu" else ())
        for scale in ("group:128", "row"):
            yield Point("activate and quantize", f"{act}, 65,536 x 2,048, e4m3 {scale}",
                        f"op=activate {size} scale={scale} quantized=1", "copy_share", 0.9)
    yield Point("activate", "silu_glu backward, 65,536 x 2,048",
                "op=activate tokens=65536 top_k=1 inter=2048 experts=64 hidden=64 backward=1", "copy_share")


def routing_points():
    for tokens, bar in ((256, 6.0), (8192, 15.0), (262144, 120.0)):
        yield Point("plan", f"T={tokens} k=8 E=256", f"op=plan tokens={tokens} top_k=8 experts=256", "microseconds", bar)
    yield Point("route", "T=8192 k=8 E=256, softmax", "op=route tokens=8192 top_k=8 experts=256 seed=4", "microseconds")


def product_points():
    shape = "tokens=8192 hidden=7168 inter=2048 experts=256 top_k=8"
    yield Point("grouped_gemm", "DeepSeek-V3 gate_up T=8192, bf16, portable",
                f"op=grouped_gemm {shape} weight=bf16 impl=mma", "tflops", 200.0)
    small = "tokens=8192 hidden=2048 inter=1536 experts=64 top_k=4"
    yield Point("grouped_gemm", "GLM-4.7-Flash gate_up T=8192, e4m3 by bf16, portable",
                f"op=grouped_gemm {small} mode=w8a16 impl=mma", "tflops")
    yield Point("grouped_gemm", "GLM-4.7-Flash gate_up transposed T=8192, bf16",
                f"op=grouped_gemm {small} weight=bf16 backward=1", "tflops")
    yield Point("grouped_gemm_wgrad", "GLM-4.7-Flash gate_up T=8192, bf16",
                f"op=grouped_gemm_wgrad {small} weight=bf16", "tflops")
    yield Point("layer", "GLM-4.7-Flash T=8192, e4m3 by bf16, forward", f"{small} mode=w8a16", "tflops")
    yield Point("layer", "GLM-4.7-Flash T=8192, e4m3 by bf16, LoRA 16, forward and backward",
                f"{small} mode=w8a16 lora=16 backward=1", "tflops")


# Experts, top_k, hidden, inter; TFLOP/s at T=8192 that are 1.05 times DeepGEMM's of the same card.
MODELS = {"DeepSeek-V3": (256, 8, 7168, 2048, 998.0), "MiniMax-M3": (128, 4, 6144, 3072, 1044.0),
          "GLM-4.7-Flash": (64, 4, 2048, 1536, 1177.0), "Qwen3-30B-A3B": (128, 8, 2048, 768, 1170.0)}


def shape_of(model, tokens):
    experts, top_k, hidden, inter, _ = MODELS[model]
    return f"tokens={tokens} experts={experts} top_k={top_k} hidden={hidden} inter={inter}"


def hopper_points():
    """Bars for one H200; a card without the tensor cores of Hopper misses them."""
    for model, (_, _, _, _, bar) in MODELS.items():
        yield Point("grouped_gemm, Hopper", f"{model} gate_up T=8192, w8a8",
                    f"op=grouped_gemm {shape_of(model, 8192)} mode=w8a8", "tflops", bar)
    for tokens, bar in ((64, 3.3), (256, 3.3)):
        yield Point("grouped_gemm, Hopper", f"GLM-4.7-Flash gate_up T={tokens}, w8a8",
                    f"op=grouped_gemm {shape_of('GLM-4.7-Flash', tokens)} mode=w8a8", "weights", bar)
    yield Point("grouped_gemm, Hopper", "MiniMax-M3 gate_up T=64, w8a8",
                f"op=grouped_gemm {shape_of('MiniMax-M3', 64)} mode=w8a8", "weights", 4.1)
    yield Point("grouped_gemm, Hopper", "GLM-4.7-Flash gate_up T=8192, bf16",
                f"op=grouped_gemm {shape_of('GLM-4.7-Flash', 8192)} weight=bf16", "tflops", 600.0,
                ("grouped_gemm", 8192, *MODELS["GLM-4.7-Flash"][:4]))
    yield Point("grouped_gemm, Hopper", "GLM-4.7-Flash gate_up T=8192, e4m3 by bf16",
                f"op=grouped_gemm {shape_of('GLM-4.7-Flash', 8192)} mode=w8a16", "tflops", 600.0)
    for model, bars in (("GLM-4.7-Flash", (750.0, 210.0, 25.0)), ("DeepSeek-V3", (6300.0, 2500.0, 110.0))):
        for tokens, bar in zip((8192, 64, 1), bars):
            yield Point("layer, Hopper", f"{model} T={tokens}, w8a8", f"{shape_of(model, tokens)} mode=w8a8",
                        "microseconds", bar)


POINTS = (*dequantize_points(), *movement_points(), *quantize_points(), *routing_points(), *product_points(),
          *hopper_points())
