"""moe64.Experts: an expert layer as a torch module."""

from __future__ import annotations

import math

import torch
from torch import nn

from ._code_module import CodeModule
from ._processes import refuse_copies
from .errors import InvalidArgumentError
from .formats import Activation, ExpertWeights, Lora, Projection, Quantized
from .layer import experts

__all__ = ["Experts"]


class Experts(CodeModule):
    """An expert layer: parameters (plain weights, biases, LoRA) and buffers (codes and scales) of an ExpertWeights.

        >>> layer = moe64.Experts(experts=8, hidden=64, inter=32)              # trainable, plain
        >>> layer = moe64.Experts.from_weights(moe64.load_experts(path, 3))    # frozen codes of a checkpoint
        >>> layer.add_lora(rank=16)
        >>> y = layer(x, top_k_index, top_k_weights)

    It can be moved, saved, copied, pickled and compiled like any module; codes keep their type in .to(dtype).
    """

    down: torch.Tensor
    up_bias: torch.Tensor

    def __init__(self, experts: int, hidden: int, inter: int, *, activation: "str | Activation" = "silu_glu",
                 bias: bool = False, interleaved: bool = False, dtype: torch.dtype | None = None,
                 device: torch.device | str | None = None) -> None:
        super().__init__()
        act = Activation.parse(activation)
        parts = 2 if act.gated else 1

        def made(*shape: int) -> torch.Tensor:
            bound = 1 / math.sqrt(shape[-1])
            return torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound)

        def zeros(width: int) -> torch.Tensor | None:
            return torch.zeros(experts, width, dtype=dtype, device=device) if bias else None

        self._adopt(ExpertWeights(Projection(made(experts, parts * inter, hidden), zeros(parts * inter)),
                                  Projection(made(experts, hidden, inter), zeros(hidden)), act, interleaved),
                    trainable=True)

    @classmethod
    def from_weights(cls, weights: ExpertWeights, *, trainable: bool = False) -> "Experts":
        """A module over existing tensors, without copying. Codes are never trainable."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module._adopt(weights, trainable)
        return module

    def _adopt(self, weights: ExpertWeights, trainable: bool) -> None:
        self._how = {name: getattr(weights, name) for name in (
            "activation", "interleaved", "mode", "scheme", "weight_on", "experts_total", "first_expert",
            "implementation")}
        self._formats = {}
        self._scaling: dict[str, float] = {}
        for name in ("gate_up", "down"):
            projection: Projection = getattr(weights, name)
            pair = isinstance(projection.weights, (tuple, list))
            for part, given in zip((name, "up"), projection.weights if pair else [projection.weights]):
                self._hold(part, given, trainable)
            biases = projection.bias if isinstance(projection.bias, (tuple, list)) else [projection.bias]
            for part, bias in zip((name, "up"), biases):
                self.register_parameter(part + "_bias", None if bias is None else nn.Parameter(bias, trainable))
            if projection.lora is not None:
                self._hold_lora(name, projection.lora)

    def _hold(self, name: str, given: "torch.Tensor | Quantized", trainable: bool) -> None:
        if isinstance(given, Quantized):
            self._hold_codes(name, given, as_parameter=False)
        else:
            self.register_parameter(name, nn.Parameter(given, trainable))

    def _hold_lora(self, name: str, lora: Lora) -> None:
        self.register_parameter(name + "_lora_a", nn.Parameter(lora.a))
        self.register_parameter(name + "_lora_b", nn.Parameter(lora.b))
        self._scaling[name] = float(lora.scaling)

    def add_lora(self, rank: int, *, alpha: float | None = None, projections: tuple[str, ...] = ("gate_up", "down"),
                 dtype: torch.dtype = torch.float32) -> "Experts":
        """Adds trainable LoRA factors: A uniform, B zero, scaling alpha / rank (alpha defaults to rank).

        projections   "gate_up" (gate and up as one), "down", or both; each once
        Products are fastest when `dtype` is that of the activations.
        """
        if rank < 1:
            raise InvalidArgumentError(f"[add_lora] rank is {rank}, not 1 or more")
        for name in projections:
            if name not in ("gate_up", "down"):
                raise InvalidArgumentError(f"[add_lora] projections has '{name}', neither gate_up (gate and up as one) nor "
                                           "down")
            if name in self._scaling:
                raise InvalidArgumentError(f"[add_lora] {name} has LoRA of rank {getattr(self, name + '_lora_a').shape[1]}: it "
                                           "would be replaced, trained or not")
        for name in dict.fromkeys(projections):
            experts, rows, cols = self.extents(name)
            rows *= 2 if name == "gate_up" and "up" in self._names() else 1
            device = getattr(self, name).device
            a = torch.empty(experts, rank, cols, dtype=dtype, device=device)
            nn.init.kaiming_uniform_(a.view(-1, cols), a=math.sqrt(5))
            self._hold_lora(name, Lora(a, torch.zeros(experts, rows, rank, dtype=dtype, device=device),
                                       (rank if alpha is None else alpha) / rank))
        return self

    def _names(self) -> set[str]:
        return set(self._parameters) | set(self._buffers)

    def weights(self) -> ExpertWeights:
        """The layer's ExpertWeights over its present parameters and buffers."""
        made = {}
        for name in ("gate_up", "down"):
            pair = name == "gate_up" and ("up" in self._parameters or "up" in self._buffers)
            matrix = (self.matrix(name), self.matrix("up")) if pair else self.matrix(name)
            bias = getattr(self, name + "_bias")
            if pair and bias is not None:
                bias = (bias, self.up_bias)
            lora = None
            if name in self._scaling:
                lora = Lora(getattr(self, name + "_lora_a"), getattr(self, name + "_lora_b"), self._scaling[name])
            made[name] = Projection(matrix, bias, lora)
        return ExpertWeights(made["gate_up"], made["down"], **self._how)

    def forward(self, x: torch.Tensor, top_k_index: torch.Tensor,
                top_k_weights: torch.Tensor | None = None) -> torch.Tensor:
        if "_is_replica" in self.__dict__:
            refuse_copies(self)
        return experts(x, top_k_index, top_k_weights, self.weights())

    def extra_repr(self) -> str:
        values = self.down
        return f"experts={values.shape[0]}, {self._how['activation'].kind}, {values.dtype}, lora={sorted(self._scaling)}"
