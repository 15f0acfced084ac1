"""What `make bench` measures, and the bars that the figures are held against: data, nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """The expert layer of one model: its shape as words of a problem line, and the Transformers class that is its peer."""

    name: str
    title: str
    experts: int
    top_k: int
    hidden: int
    inter: int
    words: str  # format, activation and layout
    peer: str  # the key of peers.EXPERT_CLASSES

    def line(self, tokens, more=""):
        return (f"tokens={tokens} hidden={self.hidden} inter={self.inter} experts={self.experts} top_k={self.top_k} "
                f"{self.words} {more}").strip()


MODELS = {model.name: model for model in (
    Model("flash-row", "GLM-4.7-Flash, fp8 per row", 64, 4, 2048, 1536, "scale=row scale_dtype=bf16", "glm4_moe_lite"),
    Model("flash-block", "GLM-4.7-Flash, fp8 128x128", 64, 4, 2048, 1536, "scale=block:128x128", "glm4_moe_lite"),
    Model("q30", "Qwen3-30B-A3B, fp8 128x128", 128, 8, 2048, 768, "scale=block:128x128", "qwen3_moe"),
    Model("gptoss", "gpt-oss-20b, mxfp4", 32, 4, 2880, 2880,
          "weight=mxfp4 act=gptoss_glu layout=interleaved bias=1", "gpt_oss"),
)}

LORA_RANK = 16


@dataclass(frozen=True)
class Point:
    """One measurement: a problem line for the tool, and the peers that compute the same."""

    name: str
    line: str
    kind: str  # forward, dx, lora, dequantise; or "" where nothing is compared with
    tokens: int = 0
    model: str = ""
    against: str = ""  # another line, timed in the same call of the tool
    quick: bool = False  # part of a short run
    effort: float = 4.0  # expected cost relative to the others, for the time left


def layer_points():
    """Forward and backward of every model; neighbours share their peer."""
    for model in MODELS.values():
        flash = model.name == "flash-row"
        for tokens in (1, 4, 16, 256, 2048):
            yield Point(f"{model.name} T={tokens} forward", model.line(tokens, "mode=w8a16"), "forward", tokens,
                        model.name, quick=flash and tokens in (1, 16, 256), effort=6.0 + tokens / 200)
        yield Point(f"{model.name} T=2048 forward + dx", model.line(2048, "mode=w8a16 backward=1"), "dx", 2048,
                    model.name, effort=30.0)
        yield Point(f"{model.name} T=2048 forward + dx + LoRA", model.line(2048, f"mode=w8a16 backward=1 lora={LORA_RANK}"),
                    "lora", 2048, model.name, effort=90.0)


def other_points():
    """What has no counterpart in Transformers: skewed routing, 8-bit activations, one operation at a time."""
    row = MODELS["flash-row"]
    for model in MODELS.values():
        yield Point(f"{model.name} T=2048 zipf", model.line(2048, "mode=w8a16 routing=zipf"), "", 2048,
                    against=model.line(2048, "mode=w8a16"), effort=8.0)
    int8 = f"hidden={row.hidden} inter={row.inter} experts={row.experts} top_k={row.top_k} weight=int8 scale=row mode=w8a8"
    for tokens in (1, 16, 256, 2048):
        yield Point(f"flash-int8 T={tokens} w8a8", f"tokens={tokens} {int8}", "", tokens, quick=tokens == 16)
    # Operands of 80 to 600 MB, beyond the caches; at 4096 tokens x itself (17 MB) is small enough to be read once.
    for name, scale in (("block", "scale=block:128x128"), ("row", "scale=row scale_dtype=bf16")):
        yield Point(f"dequantise {name}", f"op=dequantize {scale}", "dequantise", quick=True)
        yield Point(f"quantize {name}", f"op=quantize {scale}", "", quick=True)
    for operation in ("activate", "gather", "combine"):
        yield Point(operation, f"op={operation} tokens=4096", "", quick=True)


POINTS = (*layer_points(), *other_points())


@dataclass(frozen=True)
class Bar:
    """A figure of a point that must not be below (or, for memory, above) a number."""

    point: str
    figure: str  # copy_share, read_share, speedup, against, extra_memory
    value: float
    at_most: bool = False

    def holds(self, value):
        return value <= self.value if self.at_most else value >= self.value


def all_bars():
    for scale in ("block", "row"):
        yield Bar(f"dequantise {scale}", "copy_share", 0.8)
    for name in ("quantize block", "quantize row", "activate", "gather", "combine"):
        yield Bar(name, "copy_share", 0.7)
    for model in ("flash-row", "flash-block"):
        for tokens in (1, 4):
            yield Bar(f"{model} T={tokens} forward", "read_share", 0.75)
            yield Bar(f"{model} T={tokens} forward", "speedup", 2.0)
        yield Bar(f"{model} T=16 forward", "speedup", 2.0)
        for tokens in (256, 2048):
            yield Bar(f"{model} T={tokens} forward", "speedup", 1.15)
        for what in ("dx", "dx + LoRA"):
            yield Bar(f"{model} T=2048 forward + {what}", "speedup", 1.3)
        yield Bar(f"{model} T=2048 zipf", "against", 0.85)
        yield Bar(f"{model} T=2048 forward", "extra_memory", 0.05, at_most=True)
    for model in ("q30", "gptoss"):
        for tokens in (1, 4, 16, 256, 2048):
            yield Bar(f"{model} T={tokens} forward", "speedup", 1.0)
        for what in ("dx", "dx + LoRA"):
            yield Bar(f"{model} T=2048 forward + {what}", "speedup", 1.0)


BARS = tuple(all_bars())
