"""FP8 LoRA training without moe64, for bench/lora_training.py: stacks dequantised by Triton, torch._grouped_mm."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _dequantise(codes, scales, out, rows, cols, row_blocks, col_blocks, block: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    col_block = tile % col_blocks
    row_block = tile // col_blocks % row_blocks
    matrix = tile // (col_blocks * row_blocks)
    r = row_block * block + tl.arange(0, block)
    c = col_block * block + tl.arange(0, block)
    at = (matrix * rows + r[:, None]) * cols + c[None, :]
    inside = (r[:, None] < rows) & (c[None, :] < cols)
    values = tl.load(codes + at, mask=inside).to(tl.float32)
    tl.store(out + at, (values * tl.load(scales + tile)).to(tl.bfloat16), mask=inside)


def dequantised(q):
    """[experts, rows, cols] bf16 of e4m3 codes with a scale per 128x128."""
    out = torch.empty(q.values.shape, dtype=torch.bfloat16, device=q.values.device)
    experts, rows, cols = q.values.shape
    _, row_blocks, col_blocks = q.scales.shape
    _dequantise[(experts * row_blocks * col_blocks,)](q.values, q.scales, out, rows, cols, row_blocks, col_blocks, 128,
                                                      num_warps=8)
    return out


class _Frozen(torch.autograd.Function):
    """rows times the transpose of each expert's matrix; the bf16 stack lives only inside each product."""

    @staticmethod
    def forward(ctx, rows, q, ends):
        ctx.q, ctx.ends = q, ends
        return torch._grouped_mm(rows, dequantised(q).transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx, dy):
        return torch._grouped_mm(dy.contiguous(), dequantised(ctx.q), offs=ctx.ends), None, None


class _Spread(torch.autograd.Function):
    """x[token of each row]; the way back is a permutation and a sum, not an accumulation at random places."""

    @staticmethod
    def forward(ctx, x, order, back, top_k):
        ctx.back, ctx.shape = back, (x.shape[0], top_k, x.shape[1])
        return x.index_select(0, order // top_k)

    @staticmethod
    def backward(ctx, d_rows):
        return d_rows.index_select(0, ctx.back).view(ctx.shape).sum(1), None, None, None


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, order, back):
        ctx.order = order
        return rows.index_select(0, back)

    @staticmethod
    def backward(ctx, d_slots):
        return d_slots.index_select(0, ctx.order), None, None


class Peer:
    def __init__(self, gate_up, down, factors, scaling):
        self.gate_up, self.down, self.factors, self.scaling = gate_up, down, factors, scaling

    def _linear(self, rows, q, ends, pair):
        out = _Frozen.apply(rows, q, ends)
        if pair is None:
            return out
        low = torch._grouped_mm(rows, pair[0].transpose(1, 2), offs=ends)
        return out + torch._grouped_mm(low, pair[1].transpose(1, 2), offs=ends) * self.scaling

    def __call__(self, x, ids, routing):
        tokens, top_k = ids.shape
        order = ids.reshape(-1).argsort(stable=True)
        ends = torch.bincount(ids.reshape(-1), minlength=self.down.values.shape[0]).cumsum(0).to(torch.int32)
        pairs = (self.factors[:2], self.factors[2:]) if self.factors else (None, None)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
        inner = self._linear(_Spread.apply(x, order, back, top_k), self.gate_up, ends, pairs[0])
        gate, up = inner.chunk(2, dim=-1)
        rows = self._linear(F.silu(gate) * up, self.down, ends, pairs[1])
        return (_Permuted.apply(rows, order, back).view(tokens, top_k, -1) * routing.to(rows.dtype)[:, :, None]).sum(1)

    def bind(self, x, ids, routing):
        return lambda: self(x, ids, routing)
