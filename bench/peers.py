"""The same computations in PyTorch: expert modules of Transformers with bf16 weights, PEFT adapters, dequantisation."""

import importlib
import statistics
import time
from types import SimpleNamespace

import torch
from points import LORA_RANK
from torch.nn import functional

# name: (module below transformers.models, class of the experts)
EXPERT_CLASSES = {
    "glm4_moe_lite": ("glm4_moe_lite.modeling_glm4_moe_lite", "Glm4MoeLiteExperts"),
    "qwen3_moe": ("qwen3_moe.modeling_qwen3_moe", "Qwen3MoeExperts"),
    "gpt_oss": ("gpt_oss.modeling_gpt_oss", "GptOssExperts"),
}
BATCHED_UP_TO = 16  # tokens; batched_mm copies the weights of every slot
ROTATED_UP_TO, ROUTINGS = 16, 16  # as `moe64 bench` does it: the experts of one routing must not stay in a cache


def median_seconds(runs, min_time, least=3, wanted=3):
    """The median of runs[i % n](), after a warm-up: `wanted` runs or what four times min_time allow, at least `least`,
    and until min_time has passed."""
    runs[-1]()
    times, total = [], 0.0
    while len(times) < least or total < min_time or (len(times) < wanted and total < 4 * min_time):
        begin = time.perf_counter()
        runs[len(times) % len(runs)]()
        times.append(time.perf_counter() - begin)
        total += times[-1]
    return statistics.median(times)


def make_experts(model):
    """The expert module of Transformers for a points.Model, with random frozen bf16 weights."""
    path, name = EXPERT_CLASSES[model.peer]
    kind = getattr(importlib.import_module(f"transformers.models.{path}"), name)
    config = SimpleNamespace(
        hidden_size=model.hidden, moe_intermediate_size=model.inter, intermediate_size=model.inter,
        num_local_experts=model.experts, num_experts=model.experts, n_routed_experts=model.experts,
        num_experts_per_tok=model.top_k, hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0,
        _experts_implementation="eager")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        experts = kind(config)
    finally:
        torch.set_default_dtype(before)
    for parameter in experts.parameters():
        torch.nn.init.uniform_(parameter, -0.03, 0.03)
        parameter.requires_grad_(False)
    return experts


class LayerPeer:
    """Every implementation of one model's expert layer; the weights are made once."""

    def __init__(self, model):
        self.model = model
        self.experts = make_experts(model)

    def measure(self, point, min_time):
        """{implementation: seconds, or a text that says why there are none}"""
        # PEFT over the eager loop is left out: its backward makes a gradient of the whole stack per expert.
        names = ["grouped_mm"] if point.kind == "lora" else ["eager", "grouped_mm"]
        if point.kind == "forward" and point.tokens <= BATCHED_UP_TO:
            names.append("batched_mm")
        measured = {}
        for name in names:
            self.experts.config._experts_implementation = name
            call = {"forward": self._forward, "dx": self._backward, "lora": self._peft}[point.kind]
            key = f"peft {name}" if point.kind == "lora" else name
            measured[key] = _attempt(lambda: call(point, min_time))
        if point.kind == "lora":
            measured["factored"] = _attempt(lambda: self._factored(point, min_time))
        return measured

    def _operands(self, tokens, gradients):
        """x, ids and weights of one uniform routing."""
        x = torch.randn(tokens, self.model.hidden, dtype=torch.bfloat16).requires_grad_(gradients)
        scores = torch.rand(tokens, self.model.experts)
        weights, ids = torch.topk(scores, self.model.top_k, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(torch.bfloat16)
        return x, ids, weights.requires_grad_(gradients)

    def _forward(self, point, min_time):
        count = ROUTINGS if point.tokens <= ROTATED_UP_TO else 1
        operands = [self._operands(point.tokens, False) for _ in range(count)]
        with torch.inference_mode():
            return median_seconds([lambda o=o: self.experts(*o) for o in operands], min_time, wanted=count)

    def _step(self, forward, point, min_time):
        """Seconds of forward and backward with gradients of x, of the routing weights and of whatever is trainable."""
        x, ids, weights = self._operands(point.tokens, True)
        dy = torch.randn(point.tokens, self.model.hidden, dtype=torch.bfloat16)

        def step():
            x.grad = weights.grad = None
            forward(x, ids, weights).backward(dy)

        return median_seconds([step], min_time)

    def _backward(self, point, min_time):
        biases = [p for name, p in self.experts.named_parameters() if name.endswith("_bias")]
        for bias in biases:  # `backward=1` of the tool computes the gradients of biases as well
            bias.requires_grad_(True)
        try:
            return self._step(self.experts, point, min_time)
        finally:
            for bias in biases:
                bias.requires_grad_(False)
                bias.grad = None

    def _peft(self, point, min_time):
        """LoRA as PEFT does it on stacked expert parameters: W + B A of the whole stack, anew in each step."""
        from peft import LoraConfig, get_peft_model

        class Holder(torch.nn.Module):
            def __init__(self, experts):
                super().__init__()
                self.experts = experts

            def forward(self, x, ids, weights):
                return self.experts(x, ids, weights)

        wrapped = get_peft_model(Holder(self.experts), LoraConfig(
            r=LORA_RANK, lora_alpha=LORA_RANK // 2, target_modules=[],
            target_parameters=["experts.gate_up_proj", "experts.down_proj"]))
        try:
            return self._step(wrapped, point, min_time)
        finally:
            wrapped.unload()

    def _factored(self, point, min_time):
        """LoRA by hand, the way a careful author would write it: (x A^T) B^T added to each expert of the eager loop."""
        lora = FactoredLora(self.experts, self.model)
        return self._step(lora, point, min_time)


class FactoredLora(torch.nn.Module):
    """The eager loop of Transformers with low-rank factors that are never multiplied with each other."""

    def __init__(self, experts, model):
        super().__init__()
        self.experts = experts
        widths = {"gate_up": (model.hidden, 2 * model.inter), "down": (model.inter, model.hidden)}
        self.factors = torch.nn.ParameterDict()
        for name, (inputs, outputs) in widths.items():
            for factor, shape in (("a", (LORA_RANK, inputs)), ("b", (outputs, LORA_RANK))):
                values = 0.03 * torch.randn(model.experts, *shape, dtype=torch.bfloat16)
                self.factors[f"{name}_{factor}"] = torch.nn.Parameter(values)

    def forward(self, x, ids, weights):
        # unbind: one gradient per stack, where indexing would make one of the stack's size per expert
        factors = {name: stack.unbind(0) for name, stack in self.factors.items()}
        y = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():
            token, slot = torch.where(ids == expert)
            inner = self._project(x[token], "gate_up", expert, factors)
            outer = self._project(self.experts._apply_gate(inner), "down", expert, factors)
            y = y.index_add(0, token, outer * weights[token, slot, None])
        return y

    def _project(self, rows, name, expert, factors):
        weight = getattr(self.experts, f"{name}_proj")[expert]
        bias = getattr(self.experts, f"{name}_proj_bias", None)
        out = functional.linear(rows, weight.T if self.experts.is_transposed else weight,
                                None if bias is None else bias[expert])
        low = functional.linear(rows, factors[f"{name}_a"][expert])
        return out + 0.5 * functional.linear(low, factors[f"{name}_b"][expert])


def measure_dequantise(point, min_time):
    """Blocks or rows of e4m3 codes times their scales to bf16, in one expression over the default stack."""
    experts, rows, cols = 64, 1536, 2048
    codes = torch.randn(experts, rows, cols).to(torch.float8_e4m3fn)
    if "block" in point.name:
        blocks = codes.view(experts, rows // 128, 128, cols // 128, 128)
        scales = torch.rand(experts, rows // 128, 1, cols // 128, 1)
    else:
        blocks, scales = codes, torch.rand(experts, rows, 1)
    with torch.inference_mode():
        return {"pytorch": median_seconds([lambda: (blocks.float() * scales).bfloat16()], min_time)}


def matmul_flops(min_time, size=2048):
    """Operations per second of a bf16 matrix product: the limit that a library reaches in practice."""
    a = torch.randn(size, size, dtype=torch.bfloat16)
    with torch.inference_mode():
        return 2.0 * size**3 / median_seconds([lambda: a @ a], min_time)


def _attempt(measure):
    try:
        return measure()
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as problem:
        return f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
