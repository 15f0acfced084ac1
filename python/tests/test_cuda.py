"""What only a GPU can show: streams, graphs, sizes past 2^31, devices. Skipped where there is none."""

import warnings

import pytest
import torch

import moe64

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
E, H, INTER, K = 8, 256, 128, 2


def problem(tokens=64, dtype=torch.bfloat16, device="cuda"):
    torch.manual_seed(5)
    weights = moe64.ExpertWeights(torch.randn(E, 2 * INTER, H, device=device, dtype=dtype) * 0.05,
                                  torch.randn(E, H, INTER, device=device, dtype=dtype) * 0.05)
    return (torch.randn(tokens, H, device=device, dtype=dtype), torch.randint(-1, E, (tokens, K), device=device),
            torch.rand(tokens, K, device=device), weights)


def test_a_stream_that_is_not_the_default():
    x, ids, factors, weights = problem()
    expected = moe64.experts(x, ids, factors, weights)
    stream = torch.cuda.Stream()
    source = torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what runs on another stream meanwhile would read the unfilled source
        source.copy_(x)
        y = moe64.experts(source, ids, factors, weights)
    stream.synchronize()
    assert torch.equal(y, expected)


def test_a_graph_reads_tokens_and_routing_anew():
    x, ids, factors, weights = problem()
    moe64.experts(x, ids, factors, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moe64.experts(x, ids, factors, weights)
    x.normal_()
    ids.copy_(torch.randint(-1, E, ids.shape, device="cuda"))
    graph.replay()
    assert torch.equal(y, moe64.experts(x, ids, factors, weights))


def test_a_graph_of_a_training_step():
    layer = moe64.Experts.from_weights(problem()[3]).add_lora(4, dtype=torch.bfloat16)
    with torch.no_grad():
        for factor in layer.parameters():
            if factor.requires_grad:
                factor.normal_(0, 0.1)
    x, ids, factors, _ = problem()
    x.requires_grad_()
    inputs = (x, *(factor for factor in layer.parameters() if factor.requires_grad))
    dy = torch.randn_like(x)

    def step():
        return torch.autograd.grad(layer(x, ids, factors), inputs, dy)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.normal_()
    ids.copy_(torch.randint(-1, E, ids.shape, device="cuda"))
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        assert torch.equal(one, other)


def test_compiled_with_gradients():
    layer = moe64.Experts(E, H, INTER, device="cuda", dtype=torch.bfloat16).add_lora(4)
    x, ids, factors, _ = problem()
    x.requires_grad_()
    compiled = torch.compile(layer, fullgraph=True)
    for one, other in zip(*(torch.autograd.grad(call(x, ids, factors).float().square().sum(), (x, *layer.parameters()))
                            for call in (layer, compiled))):
        assert torch.equal(one, other)


def test_ids_that_are_none_are_skipped_and_counted():
    plan = moe64.plan(torch.tensor([[0, 99], [1, -1]], device="cuda"), E)
    counts = plan.counts()
    assert (counts["kept"], counts["skipped"], counts["invalid"], counts["first_invalid"]) == (2, 1, 1, 1)


def test_mixed_devices_are_refused():
    x, ids, factors, weights = problem()
    with pytest.raises(moe64.DeviceMismatchError):
        moe64.experts(x.cpu(), ids.cpu(), factors.cpu(), weights)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_the_other_device():
    x, ids, factors, weights = problem(device="cuda:1")
    with torch.cuda.device(0):
        y = moe64.experts(x, ids, factors, weights)
        assert torch.cuda.current_device() == 0
    assert y.device == x.device
    torch.testing.assert_close(y, moe64.experts(x, ids, factors, weights))


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 24 << 30, reason="needs 24 GiB")
def test_past_2_31_elements():
    rows = (2 ** 31 + 2 ** 20) // 4096
    codes = torch.randint(0, 120, (1, rows, 4096), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    scales = torch.rand(1, -(-rows // 128), 32, device="cuda")
    y = moe64.dequantize(codes, scales, "block:128x128")
    for row in (0, rows // 2, rows - 1):
        expected = codes[0, row].float() * scales[0, row // 128].repeat_interleave(128)
        assert torch.equal(y[0, row], expected.bfloat16())


class Waiting:
    """Counts how often the host waits for the device inside of it."""

    def __enter__(self):
        torch.cuda.synchronize()
        self.caught = warnings.catch_warnings(record=True)
        self.warnings = self.caught.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *problem):
        torch.cuda.set_sync_debug_mode("default")
        self.caught.__exit__(*problem)
        self.times = sum("called a synchronizing CUDA operation" in str(one.message) for one in self.warnings)


def test_permutations_of_known_size_do_not_wait():
    from moe64.compat import transformer_engine as te
    x = torch.randn(64, H, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids = torch.randint(0, E, (64, K), device="cuda")
    probs = torch.rand(64, K, device="cuda", requires_grad=True)
    chosen = torch.rand(64, E, device="cuda").topk(K).indices
    mask = torch.zeros(64, E, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)
    weights = torch.rand(64, E, device="cuda", requires_grad=True)

    def index():
        rows, row_id_map = te.moe_permute(x, ids, 64 * K, map_type="index")
        te.moe_unpermute(rows, row_id_map, probs, map_type="index").backward(torch.ones_like(x))

    def masked():
        rows, _, row_id_map = te.moe_permute_with_probs(x, weights, mask, 64 * K)
        te.moe_unpermute(rows, row_id_map, weights, restore_shape=x.shape).backward(torch.ones_like(x))

    def padded():
        rows, _, row_id_map, offsets, _ = te.moe_permute_and_pad_with_probs(x, weights, mask, mask.sum(0), 16)
        te.moe_unpermute(rows, row_id_map, weights, pad_offsets=offsets).backward(torch.ones_like(x))

    def chunks():
        sizes, order = torch.full((4,), 16, device="cuda"), torch.arange(3, -1, -1, device="cuda")
        te.moe_sort_chunks_by_index(x, sizes, order).backward(torch.ones_like(x))

    for call, most in ((index, 0), (masked, 1), (padded, 1), (chunks, 0)):
        call()
        with Waiting() as waiting:
            call()
        assert waiting.times == most, [str(one.message) for one in waiting.warnings]


def test_permutations_in_a_graph():
    from moe64.compat import transformer_engine as te
    x, probs = torch.randn(64, H, device="cuda"), torch.rand(64, K, device="cuda")
    ids = torch.randint(-1, E, (64, K), device="cuda")

    def call():
        rows, row_id_map = te.moe_permute(x, ids, 64 * K, map_type="index")
        return rows, te.moe_unpermute(rows, row_id_map, probs, map_type="index")

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    x.normal_()
    ids.copy_(torch.randint(-1, E, ids.shape, device="cuda"))
    graph.replay()
    for one, other in zip(captured, call()):
        assert torch.equal(one, other)


def test_a_layer_does_not_wait():
    x, ids, factors, weights = problem()
    x.requires_grad_()
    moe64.experts(x, ids, factors, weights).backward(torch.ones_like(x))
    with Waiting() as waiting:
        moe64.experts(x, ids, factors, weights).backward(torch.ones_like(x))
    assert waiting.times == 0, [str(one.message) for one in waiting.warnings]


def test_training_on_codes_adds_no_copy_of_a_stack():
    experts, hidden, inter, tokens = 64, 2048, 1024, 64
    weights = moe64.ExpertWeights(*(moe64.quantize(torch.randn(shape, device="cuda", dtype=torch.bfloat16), "block:128x128")
                                    for shape in ((experts, 2 * inter, hidden), (experts, hidden, inter))))
    layer = moe64.Experts.from_weights(weights).add_lora(8, dtype=torch.bfloat16)
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids, factors = torch.randint(0, experts, (tokens, 4), device="cuda"), torch.rand(tokens, 4, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x, ids, factors).float().square().sum().backward()
    assert x.grad is not None and layer.gate_up_lora_a.grad is not None
    added = torch.cuda.max_memory_allocated() - before
    assert added < weights.gate_up.weights.values.numel() / 4, added


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 40 << 30, reason="needs 40 GiB")
@pytest.mark.parametrize("scheme", ["unstated", "dynamic"])
def test_a_layer_shaped_like_glm_5_2(scheme):
    """256 experts, 6.4e9 codes in gate_up alone: forward and gradients of some tokens against float32 products."""
    experts, hidden, inter, top_k, rank = 256, 6144, 2048, 8, 16

    def codes(rows, cols):
        made = torch.randint(0, 256, (experts, rows, cols), dtype=torch.uint8, device="cuda")
        made[made & 127 == 127] = 0  # NaN
        return moe64.Quantized(made.view(torch.float8_e4m3fn), torch.rand(experts, rows // 128, cols // 128,
                                                                          device="cuda") * 1e-4 + 1e-4, "block:128x128")

    def factor(*shape):
        return (torch.randn(shape, device="cuda") * 0.02).bfloat16().requires_grad_()

    torch.manual_seed(3)
    gate_up, down = codes(2 * inter, hidden), codes(hidden, inter)
    a1, b1 = factor(experts, rank, hidden), factor(experts, 2 * inter, rank)
    a2, b2 = factor(experts, rank, inter), factor(experts, hidden, rank)
    weights = moe64.ExpertWeights(gate_up, down, scheme=scheme).with_lora(moe64.Lora(a1, b1, 2.0), moe64.Lora(a2, b2, 2.0))
    x = torch.randn(300, hidden, device="cuda").bfloat16().requires_grad_()
    ids = torch.rand(300, experts, device="cuda").topk(top_k).indices
    ids[7] = torch.arange(experts - top_k, experts)
    factors = torch.rand(300, top_k, device="cuda").requires_grad_()
    dy = torch.randn(300, hidden, device="cuda").bfloat16()
    y = moe64.experts(x, ids, factors, weights)
    dx, d_factors = torch.autograd.grad(y, (x, factors), dy)

    def exact(q, expert):
        part = moe64.Quantized(q.values[expert: expert + 1], q.scales[expert: expert + 1], q.layout)
        return moe64.dequantize(part, dtype=torch.float32)[0]

    def norm(one, other):
        return ((one.float() - other).norm() / other.norm()).item()

    assert moe64.explain(weights, "cuda")[0] == "w8a16"  # with LoRA, whatever the checkpoint states
    bound = 0.01
    for t in (0, 7, 299):
        token, scale = x[t].detach().float().requires_grad_(), factors[t].detach().requires_grad_()
        truth = torch.zeros(hidden, device="cuda")
        for k, expert in enumerate(ids[t].tolist()):
            inner = exact(gate_up, expert) @ token + 2 * (b1[expert].float() @ (a1[expert].float() @ token))
            gate, up = inner.chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            truth = truth + scale[k] * (exact(down, expert) @ inner + 2 * (b2[expert].float() @ (a2[expert].float() @ inner)))
        d_token, d_scale = torch.autograd.grad(truth, (token, scale), dy[t].float())
        assert norm(y[t], truth.detach()) <= bound and norm(dx[t], d_token) <= bound
        assert norm(d_factors[t], d_scale) <= bound
