"""The FP8 training path of a mixture-of-experts model, point by point.

The report is a long review of a change that taught unsloth-zoo to train FP8 experts. Its findings were of these kinds;
two of them were mistaken (a scale must not be inverted, whatever `weight_scale_inv` suggests), and the "fix" went in.

    python fp8_training_path.py
"""

import sys

import torch

import moe64
from moe64.compat.unsloth import fp8_linear, weight_dequant_block


def said(what: str, right: bool) -> bool:
    print(f"{'right' if right else 'WRONG'}  {what}")
    return right


def refused(call) -> bool:
    try:
        call()
    except moe64.Moe64Error as refusal:
        print(f"       refused: {refusal}")
        return True
    return False


def main() -> int:
    torch.manual_seed(0)
    experts, inter, hidden = 4, 48, 96
    full = [torch.randn(experts, rows, cols) for rows, cols in ((inter, hidden), (inter, hidden), (hidden, inter))]
    gate, up, down = (moe64.quantize(w, "block:32x32") for w in full)
    weights = moe64.ExpertWeights((gate, up), down)
    x, ids, factors = torch.randn(6, hidden), torch.randint(0, experts, (6, 2)), torch.rand(6, 2)
    ok = True

    back = moe64.dequantize(gate, dtype=torch.float32)
    ok &= said("a scale named inv is multiplied: codes times scales give the weights back",
               bool((back - full[0]).abs().max() < 0.07 * full[0].abs().max()))
    ok &= said("codes without a scale are an error, never a cast",
               refused(lambda: moe64.ExpertWeights((gate.values, up.values), down)
                       and moe64.experts(x, ids, factors, moe64.ExpertWeights((gate.values, up.values), down))))
    wrong = moe64.Quantized(gate.values, gate.scales[:, :1], "block:32x32")
    ok &= said("a grid that does not fit is an error",
               refused(lambda: moe64.experts(x, ids, factors, moe64.ExpertWeights((wrong, up), down))))
    odd = torch.randn(130, 64).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 1) + 0.5
    ok &= said("the block is stated: 130 rows in blocks of 128 are 128 and 2, not 65 and 65",
               torch.equal(weight_dequant_block(odd, scales, 128, torch.float32)[127], odd[127].float() * scales[0]))
    bias = torch.randn(130)
    ok &= said("bias is kept with a grid of blocks",
               bool((fp8_linear(x[:, :64], odd, scales, bias) - fp8_linear(x[:, :64], odd, scales) - bias).abs().max()
                    < 1e-4))
    ok &= said("inputs of three dimensions, ids and weights with them",
               torch.equal(moe64.experts(x.view(2, 3, hidden), ids.view(2, 3, 2), factors.view(2, 3, 2), weights)
                           .view(6, hidden), moe64.experts(x, ids, factors, weights)))
    lora = moe64.Lora(torch.randn(experts, 4, hidden, requires_grad=True),
                      torch.randn(experts, 2 * inter, 4, requires_grad=True), 0.5)
    moe64.experts(x, ids, factors, weights.with_lora(lora, None)).sum().backward()
    ok &= said("LoRA factors get their gradients", bool(lora.a.grad.abs().sum() > 0 and lora.b.grad.abs().sum() > 0))
    down.values.requires_grad_()
    ok &= said("a gradient of codes is an error, never dropped",
               refused(lambda: moe64.experts(x, ids, factors, weights)))
    down.values.requires_grad_(False)
    y = moe64.experts(x, torch.where(ids == 0, -1, ids), factors, weights)
    ok &= said("sentinels: what is elsewhere adds nothing here", bool(torch.isfinite(y).all()))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
