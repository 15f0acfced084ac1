"""What `make bench-gpu` measures, and the bars that the figures are held against: data, nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One measurement: a problem line for the tool, a bar, and the peers that compute the same."""

    group: str
    name: str
    line: str
    figure: str  # what counts: copy_share, microseconds, tflops, weights (how fast they are read, TB/s), workspace (GiB)
    bar: float = 0.0  # at most (microseconds, workspace) or at least (the others); 0: reported only
    peers: tuple = ()  # of (function of gpu_peers, its arguments ...)


MOVES = ((8192, 7168, 8), (32768, 2048, 8), (16384, 6144, 4), (65536, 2048, 4))  # tokens, hidden, top_k
ACTIVATIONS = ("silu_glu", "gelu_glu", "gelu_tanh_glu", "gptoss_glu", "clamped_silu_glu")


def dequantize_points():
    for rows in (4096, 65536, 262144):
        for scale in ("block:128x128", "row", "tensor"):
            yield Point("dequantize", f"e4m3 {scale} to bf16, {rows:,} x 6,144",
                        f"op=dequantize experts=1 inter={rows} hidden=6144 scale={scale}", "copy_share",
                        0.8 if rows == 4096 else 0.96,
                        (("dequantize", rows, 6144),) if scale == "block:128x128" else ())


def movement_points():
    for tokens, hidden, top_k in MOVES:
        size = f"tokens={tokens} hidden={hidden} top_k={top_k} experts=256"
        name = f"T={tokens} H={hidden} k={top_k}"
        yield Point("gather", name, f"op=gather {size}", "copy_share", 0.93, (("gather", tokens, hidden, top_k),))
        yield Point("combine", f"{name}, weighted", f"op=combine {size}", "copy_share", 0.93,
                    (("combine", tokens, hidden, top_k),))
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
                    (("activate", 65536, 2048),) if act == "silu_glu" else ())
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
                f"op=grouped_gemm {shape} weight=bf16 impl=sm80_mma", "tflops", 200.0)
    small = "tokens=8192 hidden=2048 inter=1536 experts=64 top_k=4"
    yield Point("grouped_gemm", "GLM-4.7-Flash gate_up T=8192, e4m3 by bf16, portable",
                f"op=grouped_gemm {small} mode=w8a16 impl=sm80_mma", "tflops")
    yield Point("grouped_gemm", "GLM-4.7-Flash gate_up transposed T=8192, bf16",
                f"op=grouped_gemm {small} weight=bf16 backward=1", "tflops")
    yield Point("grouped_gemm_wgrad", "GLM-4.7-Flash gate_up T=8192, bf16",
                f"op=grouped_gemm_wgrad {small} weight=bf16", "tflops")
    yield Point("layer", "GLM-4.7-Flash T=8192, e4m3 by bf16, forward", f"{small} mode=w8a16", "tflops")
    yield Point("layer", "GLM-4.7-Flash T=8192, e4m3 by bf16, LoRA 16, forward and backward",
                f"{small} mode=w8a16 lora=16 backward=1", "tflops")


@dataclass(frozen=True)
class Model:
    """An expert layer, and the TFLOP/s of DeepGEMM's two products (gate_up, down) on one H200 at T=8192 and T=32768."""

    experts: int
    top_k: int
    hidden: int
    inter: int
    deepgemm: dict

    @property
    def large(self):
        return self.hidden > 4096

    def size(self, tokens):
        return f"tokens={tokens} experts={self.experts} top_k={self.top_k}"

    def layer(self, tokens):
        return f"{self.size(tokens)} hidden={self.hidden} inter={self.inter}"

    def product(self, projection, tokens):
        """down is a stack of one part: that of an activation without a gate, its widths the other way round."""
        hidden, inter = (self.hidden, self.inter) if projection == "gate_up" else (self.inter, self.hidden)
        act = "" if projection == "gate_up" else " act=silu"
        return f"op=grouped_gemm {self.size(tokens)} hidden={hidden} inter={inter}{act}"

    def widths(self, projection):
        """Outputs and depth of one expert's matrix."""
        return (2 * self.inter, self.hidden) if projection == "gate_up" else (self.hidden, self.inter)


MODELS = {
    "DeepSeek-V3": Model(256, 8, 7168, 2048, {8192: (951, 1016), 32768: (1161, 1099)}),
    "GLM-5.2": Model(256, 8, 6144, 2048, {8192: (933, 1010), 32768: (1155, 1105)}),
    "MiniMax-M3": Model(128, 4, 6144, 3072, {8192: (994, 1016), 32768: (1229, 1163)}),
    "GLM-4.7-Flash": Model(64, 4, 2048, 1536, {8192: (1121, 957), 32768: (1309, 1159)}),
    "Qwen3-30B-A3B": Model(128, 8, 2048, 768, {8192: (1114, 832), 32768: (1306, 1012)}),
}
PROJECTIONS = ("gate_up", "down")


def prefill_bar(model, projection, tokens):
    """1.05 times DeepGEMM at T=8192; DeepGEMM at T=32768, for large models."""
    figure = model.deepgemm[tokens][PROJECTIONS.index(projection)]
    if tokens == 8192:
        return round(1.05 * figure)
    return figure if model.large else 0.0


def decode_bar(model, tokens):
    """TB/s of weights."""
    if model.large:
        return 4.1 if tokens <= 256 else 3.9
    return 3.3 if tokens <= 256 else 0.0


def hopper_points():
    """Bars for one H200; a GPU without the tensor cores of Hopper misses them. Of W8A16 decode none is asked."""
    for name, model in MODELS.items():
        for projection in PROJECTIONS:
            operands = (model.experts, model.top_k, *model.widths(projection))
            for tokens in (8192, 32768):
                yield Point("prefill w8a8", f"{name} {projection} T={tokens}",
                            f"{model.product(projection, tokens)} mode=w8a8", "tflops",
                            prefill_bar(model, projection, tokens),
                            (("deep_gemm", tokens, *operands),) +
                            ((("scaled_grouped_mm", tokens, *operands),) if tokens == 8192 else ()))
            for words, figure, peer in (("weight=bf16", "bf16", "grouped_mm"),
                                        ("mode=w8a16", "w8a16", "dequantised_grouped_mm")):
                yield Point(f"prefill {figure}", f"{name} {projection} T=8192",
                            f"{model.product(projection, 8192)} {words}", "tflops", 600.0, ((peer, 8192, *operands),))
            for tokens in (16, 64, 256, 1024):
                yield Point("decode w8a8", f"{name} {projection} T={tokens}",
                            f"{model.product(projection, tokens)} mode=w8a8", "weights", decode_bar(model, tokens),
                            (("scaled_grouped_mm", tokens, *operands),) if tokens == 64 else ())
            for tokens in (16, 64, 256, 1024):
                yield Point("decode w8a16", f"{name} {projection} T={tokens}",
                            f"{model.product(projection, tokens)} mode=w8a16", "weights")
    yield from four_bit_points()
    for name, bars in (("GLM-4.7-Flash", (750.0, 210.0, 25.0)), ("DeepSeek-V3", (6300.0, 2500.0, 110.0))):
        model = MODELS[name]
        for tokens, bar in zip((8192, 64, 1), bars):
            yield Point("layer w8a8", f"{name} T={tokens}", f"{model.layer(tokens)} mode=w8a8", "microseconds", bar,
                        (("transformers", tokens, model.experts, model.top_k, model.hidden, model.inter),))
    yield Point("layer w8a8", "DeepSeek-V3 T=8192, memory lent to it", f"{MODELS['DeepSeek-V3'].layer(8192)} mode=w8a8",
                "workspace", 2.2)


def four_bit_points():
    """W4A16, compared with sm80_mma; gpt-oss is E32 k4 2880 x 2880."""
    gptoss = Model(32, 4, 2880, 2880, {})
    for name, model in (("gpt-oss-20b", gptoss), ("GLM-4.7-Flash", MODELS["GLM-4.7-Flash"])):
        for weight in ("mxfp4", "nvfp4", "int4"):
            for group, tokens, figure in (("prefill w4a16", 8192, "tflops"), ("decode w4a16", 64, "weights")):
                for impl in ("", " impl=sm80_mma"):
                    yield Point(group, f"{name} {weight} gate_up T={tokens}" + (", portable" if impl else ""),
                                f"{model.product('gate_up', tokens)} weight={weight}{impl}", figure)


POINTS = (*dequantize_points(), *movement_points(), *quantize_points(), *routing_points(), *product_points(),
          *hopper_points())
