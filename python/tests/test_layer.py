"""moe64.experts and moe64.Experts: every format and option against plain loops, gradients, compile, threads, fork."""

import copy
import ctypes
import multiprocessing
import pickle
import threading

import pytest
import torch
from torch.library import opcheck

import moe64
import moe64.layer
import reference
from moe64 import _c, _torch
from moe64._description import describe
from moe64._handles import layer_of

E, T, K, H, INTER = 5, 7, 3, 36, 20


def problem(device="cpu", dtype=torch.float32):
    ids = torch.randint(0, E, (T, K), device=device)
    ids[0, 0], ids[3, 2], ids[4] = -1, E, -1
    return (torch.randn(T, H, device=device, dtype=dtype).requires_grad_(), ids,
            torch.rand(T, K, device=device).requires_grad_())


def stacks(gated=True, device="cpu"):
    return (torch.randn(E, (2 if gated else 1) * INTER, H, device=device) * 0.3,
            torch.randn(E, H, INTER, device=device) * 0.3)


def compare(ours, theirs, inputs, rtol=1e-4, atol=1e-4):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    dy = torch.randn_like(ours)
    for i, (one, other) in enumerate(zip(torch.autograd.grad(ours, inputs, dy),
                                         torch.autograd.grad(theirs, inputs, dy))):
        torch.testing.assert_close(one, other, rtol=10 * rtol, atol=10 * atol, msg=lambda m, i=i: f"input {i}: {m}")


@pytest.mark.parametrize("kind", list(_c.ACTIVATIONS))
@pytest.mark.parametrize("interleaved", [False, True])
def test_plain_layers_and_all_their_gradients(kind, interleaved, device):
    gated = kind.endswith("glu")
    if interleaved and not gated:
        pytest.skip("nothing to interleave")
    gate_up, down = (t.requires_grad_() for t in stacks(gated, device))
    biases = [torch.randn(E, n, device=device, requires_grad=True) for n in (gate_up.shape[1], H)]
    x, ids, weights = problem(device)
    layer = moe64.ExpertWeights(moe64.Projection(gate_up, biases[0]), moe64.Projection(down, biases[1]),
                                moe64.Activation(kind, 1.5, 2.0), interleaved)
    ours = moe64.experts(x, ids, weights, layer)
    theirs = reference.layer(x, ids, weights, gate_up, down, kind=kind, interleaved=interleaved, gate_up_bias=biases[0],
                             down_bias=biases[1], **({"alpha": 1.5, "limit": 2.0} if gated else {}))
    compare(ours, theirs, (x, weights, gate_up, down, *biases))


FORMATS = [("e4m3", "block:8x16", "f32"), ("e4m3", "row", "bf16"), ("e4m3", "tensor", "f32"), ("e5m2", "row", "f32"),
           ("int8", "row", "f32"), ("int4", "group:4", "f32"), ("fp4", "group:4", "e8m0"), ("fp4", "group:4", "e4m3")]


def quantised(form):
    """gate, up and down as Quantized, and as the numbers that they stand for."""
    dtype, layout, scale = form
    gate_up, down = stacks()
    parts = [moe64.quantize(t.contiguous(), layout, dtype, scale) for t in (*gate_up.chunk(2, dim=1), down)]
    return parts, [moe64.dequantize(q, dtype=torch.float32) for q in parts]


@pytest.mark.parametrize("form", FORMATS, ids="-".join)
def test_quantised_layers_with_lora_and_their_gradients(form):
    (gate, up, down), exact = quantised(form)
    factors = {"gate_up": (torch.randn(E, 4, H) * 0.3, torch.randn(E, 2 * INTER, 4) * 0.3, 0.5),
               "down": (torch.randn(E, 2, INTER) * 0.3, torch.randn(E, H, 2) * 0.3, 2.0)}
    for a, b, _ in factors.values():
        a.requires_grad_(), b.requires_grad_()
    x, ids, weights = problem()
    layer = moe64.ExpertWeights(moe64.Projection((gate, up), lora=moe64.Lora(*factors["gate_up"])),
                                moe64.Projection(down, lora=moe64.Lora(*factors["down"])), mode="w8a16")
    ours = moe64.experts(x, ids, weights, layer)
    theirs = reference.layer(x, ids, weights, torch.cat(exact[:2], dim=1), exact[2], lora=factors)
    compare(ours, theirs, (x, weights, *factors["gate_up"][:2], *factors["down"][:2]))


@pytest.mark.parametrize("factor_dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_training_of_lora_on_codes(factor_dtype):
    """The usual way: bfloat16 activations and routing weights, FP8 base, factors in float32 or bfloat16."""
    (gate, up, down), exact = quantised(FORMATS[0])
    factors = {"gate_up": [torch.randn(E, 4, H) * 0.3, torch.randn(E, 2 * INTER, 4) * 0.3, 0.5],
               "down": [torch.randn(E, 2, INTER) * 0.3, torch.randn(E, H, 2) * 0.3, 2.0]}
    for pair in factors.values():
        pair[:2] = (t.to(factor_dtype).requires_grad_() for t in pair[:2])
    x, ids, weights = problem(dtype=torch.bfloat16)
    weights = weights.detach().bfloat16().requires_grad_()
    layer = moe64.ExpertWeights(moe64.Projection((gate, up), lora=moe64.Lora(*factors["gate_up"])),
                                moe64.Projection(down, lora=moe64.Lora(*factors["down"])))
    inputs = (x, weights, *factors["gate_up"][:2], *factors["down"][:2])
    ours = moe64.experts(x, ids, weights, layer)
    double = {name: (a.double(), b.double(), s) for name, (a, b, s) in factors.items()}
    truth = reference.layer(x.double(), ids, weights.double(), torch.cat(exact[:2], 1).double(), exact[2].double(),
                            lora=double)
    assert ours.dtype == torch.bfloat16
    assert (ours - truth).abs().max() <= 0.02 * truth.abs().max()
    dy = torch.randn(T, H).bfloat16()
    for one, other, given in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(truth, inputs, dy.double()),
                                 inputs):
        assert one.dtype == given.dtype
        assert (one.double() - other.double()).abs().max() <= 0.03 * other.abs().max()


def test_a_fused_grid_restarts_at_the_up_half():
    """20 rows per half in blocks of 8 are 3 + 3 scale rows, not the 5 of 40 rows."""
    (gate, up, down), exact = quantised(FORMATS[0])
    fused = moe64.Quantized(torch.cat((gate.values.view(torch.uint8), up.values.view(torch.uint8)), 1).view(
        torch.float8_e4m3fn), torch.cat((gate.scales, up.scales), 1), "block:8x16")
    assert fused.scales.shape[1] == 6
    x, ids, weights = (t.detach() for t in problem())
    pair = moe64.experts(x, ids, weights, moe64.ExpertWeights((gate, up), down))
    assert torch.equal(moe64.experts(x, ids, weights, moe64.ExpertWeights(fused, down)), pair)
    with pytest.raises(moe64.ShapeMismatchError, match=r"gate_up_bias is \[40\], expected an even number of rows in dim"):
        moe64.experts(x, ids, weights, moe64.ExpertWeights(moe64.Projection(fused, torch.zeros(2 * INTER)), down))
    with pytest.raises(moe64.InvalidArgumentError, match="bias a pair"):
        moe64.experts(x, ids, weights, moe64.ExpertWeights(moe64.Projection(fused, (torch.zeros(E, INTER),) * 2), down))
    fused.scales = fused.scales[:, :5]
    with pytest.raises(moe64.ShapeMismatchError, match="restart at the up half"):
        moe64.experts(x, ids, weights, moe64.ExpertWeights(fused, down))


def test_transposed_and_padded_storage_is_only_strides():
    gate_up, down = stacks()
    x, ids, weights = problem()
    plain = moe64.ExpertWeights(gate_up, down)
    turned = moe64.ExpertWeights(gate_up.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
                                 torch.randn(E, H, INTER + 3)[:, :, :INTER].copy_(down))
    wide = torch.zeros(T, H + 5)
    wide[:, :H] = x.detach()
    y = moe64.experts(x, ids, weights, plain)
    z = moe64.experts(wide[:, :H].requires_grad_(), ids.int().t().contiguous().t(), weights, turned)
    torch.testing.assert_close(y, z, rtol=1e-6, atol=1e-6)
    grad, = torch.autograd.grad(z.sum(), turned.gate_up.weights)
    gate_up.requires_grad_()
    expected, = torch.autograd.grad(moe64.experts(x, ids, weights, plain).sum(), gate_up)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_round_once_per_step(dtype, device):
    gate_up, down = (t.to(dtype) for t in stacks(device=device))
    x, ids, weights = problem(device, dtype)
    y = moe64.experts(x, ids, weights.to(dtype), moe64.ExpertWeights(gate_up, down))
    truth = reference.layer(x.double(), ids, weights.to(dtype).double(), gate_up.double(), down.double())
    assert y.dtype == dtype
    assert (y.double() - truth).abs().max() <= 8 * torch.finfo(dtype).eps * truth.abs().max()


def test_weight_on_input_subranges_and_capacity():
    gate_up, down = stacks()
    x, ids, weights = problem()
    ours = moe64.experts(x, ids, weights, moe64.ExpertWeights(gate_up, down, weight_on="input"))
    compare(ours, reference.layer(x, ids, weights, gate_up, down, on_input=True), (x, weights))
    whole = moe64.ExpertWeights(gate_up, down)
    parts = [moe64.ExpertWeights(gate_up[s], down[s], experts_total=E, first_expert=s.start)
             for s in (slice(0, 2), slice(2, 5))]
    total = sum(moe64.experts(x, ids, weights, part) for part in parts)
    torch.testing.assert_close(total, moe64.experts(x, ids, weights, whole), rtol=1e-5, atol=1e-5)
    assert (moe64.experts(x, ids, weights, whole, capacity=0) == 0).all()


@pytest.mark.parametrize("tokens", [0, 1, 33])
def test_any_number_of_tokens_and_shapes(tokens):
    layer = moe64.ExpertWeights(*stacks())
    x = torch.randn(tokens, 2, H, requires_grad=True)
    ids, weights = torch.randint(-1, E + 1, (tokens, 2, K)), torch.rand(tokens, 2, K)
    y = moe64.experts(x, ids, weights, layer)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert (moe64.experts(x, torch.full_like(ids, -1), weights, layer) == 0).all()


def test_a_token_has_the_same_bits_in_any_batch_and_on_any_number_of_threads():
    layer = moe64.ExpertWeights(*stacks())
    x, ids, weights = torch.randn(64, H), torch.randint(0, E, (64, K)), torch.rand(64, K)
    whole = moe64.experts(x, ids, weights, layer)
    for threads in (1, 2, 3):
        moe64.set_threads(threads)
        try:
            assert torch.equal(moe64.experts(x, ids, weights, layer), whole)
            for t in (0, 31, 63):
                assert torch.equal(moe64.experts(x[t:t + 1], ids[t:t + 1], weights[t:t + 1], layer)[0], whole[t])
        finally:
            moe64.set_threads(None)


@pytest.mark.parametrize("change, error, text", [
    (lambda a: a.update(x=a["x"].double()), moe64.DtypeMismatchError, "x is torch.float64"),
    (lambda a: a.update(ids=a["ids"].short()), moe64.DtypeMismatchError, "top_k_index is torch.int16"),
    (lambda a: a.update(ids=a["ids"][:3]), moe64.ShapeMismatchError, r"top_k_weights is \[7, 3\]"),
    (lambda a: a.update(x=a["x"][:, :9]), moe64.ShapeMismatchError, "9"),
    (lambda a: a.update(x=a["x"][:3]), moe64.ShapeMismatchError, "has 3 tokens"),
    (lambda a: a["ids"].fill_(E + 1), moe64.InvalidExpertError, "6"),
    (lambda a: a.update(down=a["down"].to(torch.float8_e4m3fn)), moe64.MissingScaleError, "scale"),
    (lambda a: a.update(down=a["down"][:3]), moe64.ShapeMismatchError, "3"),
    (lambda a: a.update(mode="w4"), moe64.InvalidArgumentError, "mode is 'w4'"),
    (lambda a: a.update(down=a["down"].to("meta")), moe64.Moe64Error, "meta"),
])
def test_what_is_wrong_is_named(change, error, text):
    gate_up, down = stacks()
    x, ids, weights = problem()
    a = {"x": x.detach(), "ids": ids, "weights": weights.detach(), "down": down, "mode": "auto"}
    change(a)
    with pytest.raises(error, match=text):
        moe64.experts(a["x"], a["ids"], a["weights"], moe64.ExpertWeights(gate_up, a["down"], mode=a["mode"]))


def test_gradients_of_codes_are_refused():
    (gate, up, down), _ = quantised(FORMATS[0])
    down.values.requires_grad_()
    x, ids, weights = problem()
    with pytest.raises(moe64.GradientError, match="down requires a gradient"):
        moe64.experts(x, ids, weights, moe64.ExpertWeights((gate, up), down))


def test_opcheck_of_the_layer():
    torch.use_deterministic_algorithms(True)
    try:
        operands, description = describe(moe64.ExpertWeights(*(t.requires_grad_() for t in stacks())))
        opcheck(torch.ops.moe64.experts_forward.default, (*problem(), -1, True, *operands, *description))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break_and_with_dynamic_shapes(backend):
    layer = moe64.Experts(E, H, INTER).add_lora(2)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (3, 8):
        x = torch.randn(tokens, H, requires_grad=True)
        ids, weights = torch.randint(-1, E, (tokens, K)), torch.rand(tokens, K, requires_grad=True)
        parameters = (x, weights, *layer.parameters())
        results = []
        for call in (layer, compiled):
            y = call(x, ids, weights)
            results.append((y, *torch.autograd.grad(y.square().sum(), parameters)))
        for one, other in zip(*results):
            assert torch.equal(one, other)


def test_the_module_is_copied_pickled_moved_and_saved():
    (gate, up, down), _ = quantised(FORMATS[6])
    layer = moe64.Experts.from_weights(moe64.ExpertWeights((gate, up), down)).add_lora(2)
    x, ids, weights = (t.detach() for t in problem())
    y = layer(x, ids, weights)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, ids, weights), y)
    fresh = moe64.Experts.from_weights(moe64.ExpertWeights((copy.deepcopy(gate), copy.deepcopy(up)),
                                                           copy.deepcopy(down))).add_lora(2)
    for buffer in fresh.buffers():
        buffer.zero_()
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x, ids, weights), y)
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half.down.dtype == torch.uint8 and half.down_lora_a.dtype == torch.bfloat16
    assert "lora=['down', 'gate_up']" in repr(layer)
    plain = moe64.Experts(E, H, INTER, bias=True)
    assert {name for name, _ in plain.named_parameters()} == {"gate_up", "gate_up_bias", "down", "down_bias"}


def test_codes_keep_their_scales_in_another_float_type():
    (gate, up, down), _ = quantised(FORMATS[0])
    layer = moe64.Experts.from_weights(moe64.ExpertWeights((gate, up), down))
    x, ids, weights = (t.detach() for t in problem())
    y = layer(x, ids, weights)
    layer.half()
    assert layer.down.dtype == torch.float8_e4m3fn and layer.down_scales.dtype == torch.float32
    assert torch.equal(layer(x, ids, weights), y)


def test_several_threads_share_one_layer():
    layer = moe64.ExpertWeights(*stacks())
    x, ids, weights = (t.detach() for t in problem())
    expected, wrong = moe64.experts(x, ids, weights, layer), []

    def work():
        for _ in range(50):
            if not torch.equal(moe64.experts(x, ids, weights, layer), expected):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(queue, layer, problem_):
    queue.put(len(_torch._pools))  # handles of the parent's threads, which do not exist here
    torch.set_num_threads(1)
    moe64.set_threads(2)
    queue.put(moe64.experts(*problem_, layer).sum().item())


def test_a_forked_child_makes_its_own_threads():
    moe64.set_threads(2)
    try:
        layer, arguments = moe64.ExpertWeights(*stacks()), tuple(t.detach() for t in problem())
        expected = moe64.experts(*arguments, layer).sum().item()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue, layer, arguments))
        child.start()
        assert _torch._pools and queue.get(timeout=60) == 0
        assert queue.get(timeout=60) == pytest.approx(expected)
        child.join(timeout=60)
        assert child.exitcode == 0
    finally:
        moe64.set_threads(None)


def test_memory_that_is_used_again_is_not_taken_for_another_layer():
    x, ids, weights = (t.detach() for t in problem())
    for seed in range(20):  # the allocator hands out the same addresses
        torch.manual_seed(seed)
        gate_up, down = stacks()
        y = moe64.experts(x, ids, weights, moe64.ExpertWeights(gate_up, down))
        torch.testing.assert_close(y, reference.layer(x, ids, weights, gate_up, down), rtol=1e-4, atol=1e-4)
        del gate_up, down


def test_checkpointed_layers_have_the_same_gradients_and_no_second_ones():
    layer = moe64.Experts(E, H, INTER).add_lora(2)
    x, ids, weights = problem()
    plain = torch.autograd.grad(layer(x, ids, weights).square().sum(), (x, weights, *layer.parameters()))
    y = torch.utils.checkpoint.checkpoint(layer, x, ids, weights, use_reentrant=False)
    again = torch.autograd.grad(y.square().sum(), (x, weights, *layer.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(plain, again))
    with pytest.raises(RuntimeError):  # a second derivative does not exist, and is not taken for zero
        first, = torch.autograd.grad(layer(x, ids, weights).square().sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)


def test_numbers_belong_to_the_layer_as_much_as_its_memory():
    gate_up, down = stacks()
    x, ids, weights = (t.detach() for t in problem())
    for limit in (0.1, 2.0):
        layer = moe64.ExpertWeights(gate_up, down, moe64.Activation("clamped_silu_glu", limit=limit))
        torch.testing.assert_close(moe64.experts(x, ids, weights, layer),
                                   reference.layer(x, ids, weights, gate_up, down, kind="clamped_silu_glu", limit=limit),
                                   rtol=1e-4, atol=1e-4)
    a, b = torch.randn(E, 2, H), torch.randn(E, 2 * INTER, 2)
    results = [moe64.experts(x, ids, weights, moe64.ExpertWeights(gate_up, down).with_lora(moe64.Lora(a, b, s), None))
               for s in (0.0, 0.5, 1.0)]
    assert torch.equal(results[0], moe64.experts(x, ids, weights, moe64.ExpertWeights(gate_up, down)))
    assert not torch.equal(results[1], results[2])


def test_explain_says_mode_and_reason():
    (gate, up, down), _ = quantised(FORMATS[0])
    mode, reason = moe64.explain(moe64.ExpertWeights((gate, up), down))
    assert mode == "w8a16" and reason
    assert moe64.explain(moe64.ExpertWeights(*stacks()))[0] == "native"
    dynamic = moe64.ExpertWeights((gate, up), down, scheme="dynamic")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert moe64.explain(dynamic, dtype=dtype) == ("w8a16", "gate_up: cpu has no FP8 GEMM in hardware")
    with pytest.raises(moe64.DtypeMismatchError, match="float64"):
        moe64.explain(moe64.ExpertWeights((gate, up), down), dtype=torch.float64)
    assert ctypes.sizeof(_c.Tensor) == 64


def test_no_copy_of_a_stack_is_ever_made(monkeypatch):
    """All memory of a call is asked for here: for few tokens it is a small part of what the codes take."""
    experts, hidden, inter, tokens = 32, 512, 256, 3
    gate_up, down = (moe64.quantize(torch.randn(shape), "block:128x128")
                     for shape in ((experts, 2 * inter, hidden), (experts, hidden, inter)))
    weights = moe64.ExpertWeights(gate_up, down)
    layer = moe64.Experts.from_weights(weights).add_lora(4)
    x = torch.randn(tokens, hidden, requires_grad=True)
    asked, empty = [], moe64.layer.bytes_on
    monkeypatch.setattr(moe64.layer, "bytes_on", lambda count, device: asked.append(count) or empty(count, device))
    y = layer(x, torch.randint(0, experts, (tokens, 2)), torch.rand(tokens, 2))
    y.sum().backward()
    asked += [prepared.scratch_bytes for prepared in layer_of(*describe(layer.weights())).prepared.values()]
    assert len(asked) == 3 and max(asked) > 0  # saved, the scratch of backward and that of forward
    assert sum(asked) < gate_up.values.numel() / 8
