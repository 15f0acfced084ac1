"""The expert layer as plain torch loops: what the tests compare with. It shares no code with the package."""

import torch
from torch.nn import functional as F


def activation(kind, gate, up, alpha=1.702, limit=7.0):
    if kind == "silu_glu":
        return F.silu(gate) * up
    if kind == "gelu_glu":
        return F.gelu(gate) * up
    if kind == "gelu_tanh_glu":
        return F.gelu(gate, approximate="tanh") * up
    if kind == "gptoss_glu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)
    if kind == "clamped_silu_glu":
        return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if kind == "step_glu":
        return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    return {"silu": F.silu, "gelu": F.gelu, "relu2": lambda v: F.relu(v).square()}[kind](gate)


def layer(x, ids, weights, gate_up, down, *, kind="silu_glu", interleaved=False, gate_up_bias=None, down_bias=None,
          lora=None, on_input=False, **parameters):
    """y of one expert layer in the type of x; lora: {"gate_up": (a, b, scaling), "down": ...}."""
    experts = down.shape[0]
    out = []
    for t in range(x.shape[0]):
        total = torch.zeros_like(x[t])
        for k in range(ids.shape[1]):
            e = int(ids[t, k])
            if e in (-1, experts):
                continue
            factor = weights[t, k] if weights is not None else 1.0
            row = x[t] * factor if on_input else x[t]

            def linear(name, matrix, bias, v, e=e):
                y = matrix[e] @ v
                if lora and name in lora:
                    a, b, scaling = lora[name]
                    y = y + scaling * (b[e] @ (a[e] @ v))
                return y if bias is None else y + bias[e]

            inner = linear("gate_up", gate_up, gate_up_bias, row)
            if kind in ("silu", "gelu", "relu2"):
                inner = activation(kind, inner, None)
            else:
                gate, up = (inner[0::2], inner[1::2]) if interleaved else inner.chunk(2)
                inner = activation(kind, gate, up, **parameters)
            y = linear("down", down, down_bias, inner)
            total = total + (y if on_input else y * factor)
        out.append(total)
    return torch.stack(out) if out else torch.zeros_like(x)
