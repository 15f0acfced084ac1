"""The drop-in replacements for TransformerEngine's permutations: its contracts, its test grids at small sizes, and what fails
there."""

import pytest
import torch

import moe64
from moe64.compat import transformer_engine as te

BOUNDS = {torch.float32: (1e-6, 1e-6), torch.float16: (3e-3, 1e-5), torch.bfloat16: (2e-2, 1e-5)}
TOKENS, HIDDEN = 96, 40


def index_reference(x, ids, count):
    flat = ids.flatten().long()
    order = torch.argsort(torch.where(flat < 0, 1 << 40, flat), stable=True)
    order = order[flat[order] >= 0][:count]
    return x[order // ids.shape[1]], order


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("experts", [7, 16])
@pytest.mark.parametrize("top_k", [2, 5])
@pytest.mark.parametrize("count", [None, 61])
def test_index_map(dtype, experts, top_k, count, device):
    x = torch.rand(TOKENS, HIDDEN, dtype=dtype, device=device, requires_grad=True)
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(TOKENS)]).int().to(device)
    probs = torch.rand(TOKENS, top_k, device=device, requires_grad=True)
    count = count or TOKENS * top_k
    rows, row_id_map = te.moe_permute(x, ids, count, map_type="index")
    expected, order = index_reference(x, ids, count)
    assert torch.equal(rows, expected)
    assert row_id_map.dtype == torch.int32 and row_id_map.shape == (TOKENS * top_k,)
    for row in (0, count - 1):  # k-major
        slot = int(order[row])
        assert row_id_map[slot % top_k * TOKENS + slot // top_k] == row
    assert int((row_id_map == -1).sum()) == TOKENS * top_k - count
    y = te.moe_unpermute(rows, row_id_map, probs, map_type="index")
    kept = torch.zeros(TOKENS * top_k, device=device).index_fill(0, order, 1.0).view(TOKENS, top_k)
    truth = (x.float() * (probs * kept).sum(1, keepdim=True)).to(dtype)
    rtol, atol = BOUNDS[dtype]
    torch.testing.assert_close(y, truth, rtol=rtol, atol=atol)
    dy = torch.rand_like(y)
    for one, other in zip(torch.autograd.grad(y, (x, probs), dy), torch.autograd.grad(truth, (x, probs), dy)):
        torch.testing.assert_close(one, other, rtol=max(rtol, 1e-5) * 2, atol=max(atol, 1e-4))


@pytest.mark.parametrize("experts", [7, 16])
@pytest.mark.parametrize("with_probs", [False, True])
@pytest.mark.parametrize("count", [61, 192])
def test_mask_map(experts, with_probs, count, device):
    x = torch.rand(TOKENS, HIDDEN, device=device, requires_grad=True)
    mask = torch.zeros(TOKENS * experts, dtype=torch.bool)
    mask[torch.randperm(TOKENS * experts)[:count]] = True
    mask = mask.view(TOKENS, experts).to(device)
    probs = torch.rand(TOKENS, experts, device=device, requires_grad=True)
    rows, permuted_probs, row_id_map = te.moe_permute_with_probs(x, probs, mask, count)
    order = mask.t().nonzero()  # (expert, token)
    assert torch.equal(rows, x[order[:, 1]]) and torch.equal(permuted_probs, probs[order[:, 1], order[:, 0]])
    assert torch.equal(te.moe_permute(x, mask.int(), count)[0], rows)
    assert row_id_map.shape == (TOKENS, 2 * experts + 1) and row_id_map.dtype == torch.int32
    t = int(mask.sum(1).argmax())
    n = int(row_id_map[t, -1])
    assert n == int(mask[t].sum()) and (row_id_map[t, :n].diff() < 0).all()
    assert all(order[row].tolist() == [expert, t] for row, expert in
               zip(row_id_map[t, :n].tolist(), row_id_map[t, experts: experts + n].tolist()))
    y = te.moe_unpermute(rows, row_id_map, probs if with_probs else None, restore_shape=x.shape)
    truth = x * (mask * probs if with_probs else mask).sum(1, keepdim=True)
    torch.testing.assert_close(y, truth)
    inputs = (x, probs) if with_probs else (x,)
    dy = torch.rand_like(y)
    for one, other in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(truth, inputs, dy)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align", [1, 16])
@pytest.mark.parametrize("merging", [False, True])
def test_padding_and_its_way_back(align, merging):
    experts = 8
    mask = torch.rand(TOKENS, experts) < 0.3
    x = torch.rand(TOKENS, HIDDEN, requires_grad=True)
    probs = torch.rand(TOKENS, experts, requires_grad=True)
    counts = mask.sum(0)
    rows, moved, row_id_map, offsets, target = te.moe_permute_and_pad_with_probs(x, probs, mask, counts, align)
    assert torch.equal(target, -(-counts // align) * align) and rows.shape[0] == int(target.sum()) == moved.shape[0]
    begin = 0
    for e in range(experts):
        n = int(counts[e])
        assert torch.equal(rows[begin:begin + n], x[mask[:, e]])
        assert (rows[begin + n:begin + int(target[e])] == 0).all()
        begin += int(target[e])
    y = te.moe_unpermute(rows, row_id_map, probs if merging else None, restore_shape=x.shape, pad_offsets=offsets)
    truth = x * (mask * probs if merging else mask).sum(1, keepdim=True)
    torch.testing.assert_close(y, truth)
    dy = torch.rand_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(truth, x, dy), rtol=1e-4, atol=1e-5)
    with pytest.raises(moe64.InvalidArgumentError, match="the routing map has"):
        te.moe_permute_and_pad_with_probs(x, probs, mask, counts + 1, align)


def test_minus_one_wherever_it_stands():
    """The report's case: half of the slots are -1, and rows must be those of the rest."""
    torch.manual_seed(0)
    x, ids = torch.randn(8, 16, dtype=torch.bfloat16), torch.randint(0, 4, (8, 2), dtype=torch.int32)
    ids.view(-1)[torch.randperm(16)[:8]] = -1
    for count in (int((ids != -1).sum()), 0, -1):
        rows, row_id_map = te.moe_permute(x, ids, count, map_type="index")
        assert torch.equal(rows, index_reference(x, ids, 16)[0])
    y = te.moe_unpermute(rows, row_id_map, torch.ones(8, 2), map_type="index")
    torch.testing.assert_close(y.float(), x.float() * (ids != -1).sum(1, keepdim=True), rtol=1e-2, atol=1e-2)
    more, _ = te.moe_permute(x, ids, 12, map_type="index")
    assert more.shape == (12, 16) and (more[8:] == 0).all()


def test_nobody_is_routed_here():
    x, ids = torch.randn(5, 6, requires_grad=True), torch.full((5, 3), -1)
    rows, row_id_map = te.moe_permute(x, ids, 0, map_type="index")
    assert rows.shape == (0, 6)
    y = te.moe_unpermute(rows, row_id_map, torch.rand(5, 3), map_type="index")
    assert y.shape == (5, 6) and (y == 0).all()
    rows, moved, row_id_map = te.moe_permute_with_probs(x, torch.rand(5, 4), torch.zeros(5, 4, dtype=torch.bool))
    assert rows.shape == (0, 6) and moved.shape == (0,)
    y = te.moe_unpermute(rows, row_id_map, restore_shape=x.shape)
    assert y.shape == (5, 6) and (y == 0).all()
    y.sum().backward()
    empty, _ = te.moe_permute(torch.zeros(0, 6), torch.zeros(0, 2, dtype=torch.int32), map_type="index")
    assert empty.shape == (0, 6)


def test_more_than_128_choices_any_width_and_too_small_a_count():
    x, ids = torch.randn(3, 5), torch.randint(0, 9, (3, 200))
    rows, row_id_map = te.moe_permute(x, ids, map_type="index")
    y = te.moe_unpermute(rows, row_id_map, torch.full((3, 200), 1 / 200), map_type="index")
    torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-4)
    mask = torch.ones(4, 3, dtype=torch.bool)
    rows, row_id_map = te.moe_permute(torch.randn(4, 5), mask, 7)
    assert rows.shape[0] == 7 and int(row_id_map[:, -1].sum()) == 7


def test_codes_are_moved_as_they_are():
    x = torch.randn(6, 10).to(torch.float8_e4m3fn)
    rows, _ = te.moe_permute(x, torch.randint(0, 3, (6, 2)), map_type="index")
    assert rows.dtype == torch.float8_e4m3fn and rows.shape == (12, 10)


@pytest.mark.parametrize("split", [2, 8])
def test_chunk_sort_and_back(split):
    sizes = torch.randint(0, 9, (7 * split,))
    order = torch.arange(7 * split).view(split, 7).t().flatten()
    total = int(sizes.sum()) + 3
    x, probs = torch.rand(total, 6, requires_grad=True), torch.rand(total)
    y, moved = te.moe_sort_chunks_by_index_with_probs(x, probs, sizes, order.int())
    pieces = torch.split(torch.arange(total - 3), sizes.tolist())
    source = torch.cat([*(pieces[i] for i in order.tolist()), torch.arange(total - 3, total)])
    assert torch.equal(y, x[source]) and torch.equal(moved, probs[source])
    back = te.moe_sort_chunks_by_index(y, sizes[order], torch.argsort(order))
    assert torch.equal(back, x)
    grad, = torch.autograd.grad(back.sum(), x)
    assert (grad == 1).all()


def test_a_map_that_was_changed_is_read_anew():
    x, mask = torch.randn(4, 6), torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.bool)
    _, row_id_map = te.moe_permute(x, mask)
    rows, other = te.moe_permute(x, ~mask)
    row_id_map.copy_(other)
    torch.testing.assert_close(te.moe_unpermute(rows, row_id_map, restore_shape=x.shape), 2 * x)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("map_type", ["index", "mask"])
def test_one_expert_per_token_without_probs(dtype, map_type, device):
    x = torch.rand(TOKENS, HIDDEN, dtype=dtype, device=device, requires_grad=True)
    ids = torch.randint(0, 7, (TOKENS, 1), device=device)
    routing = ids.int() if map_type == "index" else torch.nn.functional.one_hot(ids[:, 0], 7).int()
    rows, row_id_map = te.moe_permute(x, routing, TOKENS, map_type=map_type)
    assert torch.equal(rows, x[torch.argsort(ids[:, 0], stable=True)])
    y = te.moe_unpermute(rows, row_id_map, map_type=map_type)
    assert torch.equal(y, x)
    dy = torch.rand_like(y)
    assert torch.equal(torch.autograd.grad(y, x, dy)[0], dy)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("top_k", [2, 5])
@pytest.mark.parametrize("count", [None, 61])
def test_mask_maps_of_half_types(dtype, top_k, count, device):
    experts = 16
    mask = torch.zeros(TOKENS, experts, dtype=torch.int32, device=device)
    mask.scatter_(1, torch.rand(TOKENS, experts, device=device).topk(top_k).indices, 1)
    order = mask.t().nonzero()[:count]  # (expert, token)
    x = torch.rand(TOKENS, HIDDEN, dtype=dtype, device=device, requires_grad=True)
    probs = torch.rand(TOKENS, experts, device=device, requires_grad=True)
    rows, moved, row_id_map = te.moe_permute_with_probs(x, probs, mask, count or TOKENS * top_k)
    assert torch.equal(rows, x[order[:, 1]]) and torch.equal(moved, probs[order[:, 1], order[:, 0]])
    y = te.moe_unpermute(rows, row_id_map, probs, restore_shape=x.shape)
    kept = torch.zeros(TOKENS, experts, device=device).index_put((order[:, 1], order[:, 0]), torch.ones((), device=device))
    truth = (x.float() * (probs * kept).sum(1, keepdim=True)).to(dtype)
    rtol, atol = BOUNDS[dtype]
    torch.testing.assert_close(y, truth, rtol=rtol, atol=atol)
    dy = torch.rand_like(y)
    for one, other in zip(torch.autograd.grad(y, (x, probs), dy), torch.autograd.grad(truth, (x, probs), dy)):
        torch.testing.assert_close(one, other, rtol=2 * rtol, atol=max(atol, 1e-2))


@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_codes_and_their_scales_move_by_one_mask(code, device):
    x = torch.randn(TOKENS, 256, device=device).to(code)
    scales = torch.rand(TOKENS, 2, device=device)  # of 1 x 128 blocks
    mask = torch.rand(TOKENS, 7, device=device) < 0.3
    order = mask.t().nonzero()
    rows, _ = te.moe_permute(x, mask, len(order))
    assert rows.dtype == code and torch.equal(rows.view(torch.uint8), x.view(torch.uint8)[order[:, 1]])
    assert torch.equal(te.moe_permute(scales, mask, len(order))[0], scales[order[:, 1]])
    padded = te.moe_permute_and_pad_with_probs(x, mask.float(), mask, mask.sum(0), 16)[0]
    assert padded.dtype == code and padded.shape[0] % 16 == 0


@pytest.mark.parametrize("experts, top_k", [(8, 2), (64, 6), (256, 6), (512, 8)])
def test_padding_is_a_permutation_and_then_padding(experts, top_k, device):
    """Both ways against the plain permutation, with the gradients of x and of the probabilities."""
    x = torch.rand(TOKENS, HIDDEN, device=device, requires_grad=True)
    mask = torch.zeros(TOKENS, experts, dtype=torch.bool, device=device)
    mask.scatter_(1, torch.rand(TOKENS, experts, device=device).topk(top_k).indices, True)
    probs = torch.rand(TOKENS, experts, device=device, requires_grad=True)
    counts = mask.sum(0)
    rows, moved, row_id_map, offsets, target = te.moe_permute_and_pad_with_probs(x, probs, mask, counts, 16)
    plain, plain_probs, plain_map = te.moe_permute_with_probs(x, probs, mask, TOKENS * top_k)
    assert torch.equal(row_id_map, plain_map)
    begin = target.cumsum(0) - target
    place = torch.arange(TOKENS * top_k, device=device) + (begin - (counts.cumsum(0) - counts)).repeat_interleave(counts)
    assert torch.equal(rows[place], plain) and torch.equal(moved[place], plain_probs)
    assert int((rows != 0).any(1).sum()) <= TOKENS * top_k and moved.sum().item() == pytest.approx(plain_probs.sum().item())
    scaled = (torch.rand(rows.shape, device=device) + 0.5).detach()
    y = te.moe_unpermute(rows * scaled * moved[:, None], row_id_map, restore_shape=x.shape, pad_offsets=offsets)
    truth = te.moe_unpermute(plain * scaled[place] * plain_probs[:, None], plain_map, restore_shape=x.shape)
    torch.testing.assert_close(y, truth)
    dy = torch.rand_like(y)
    for one, other in zip(torch.autograd.grad(y, (x, probs), dy), torch.autograd.grad(truth, (x, probs), dy)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("count", [None, 61])
def test_probs_travel_along_through_chunks_and_back(parts, count, device):
    """permute with probs, chunks by expert, scale, chunks back, unpermute: what a layer under expert parallelism does."""
    experts, top_k = 8, 3
    x = torch.rand(TOKENS, HIDDEN, device=device, requires_grad=True)
    mask = torch.zeros(TOKENS, experts, dtype=torch.bool, device=device)
    mask.scatter_(1, torch.rand(TOKENS, experts, device=device).topk(top_k).indices, True)
    probs = torch.rand(TOKENS, experts, device=device, requires_grad=True)
    rows, moved, row_id_map = te.moe_permute_with_probs(x, probs, mask, count or TOKENS * top_k)
    sizes = torch.bincount(torch.where(mask.t().reshape(-1), 1, 0).nonzero()[:count, 0] // TOKENS, minlength=experts)
    order = torch.arange(experts, device=device).view(parts, -1).t().flatten()
    chunks, chunk_probs = te.moe_sort_chunks_by_index_with_probs(rows, moved, sizes, order.int())
    scaled = chunks * chunk_probs[:, None]
    back = te.moe_sort_chunks_by_index(scaled, sizes[order], torch.argsort(order).int())
    y = te.moe_unpermute(back, row_id_map, restore_shape=x.shape)
    kept = torch.zeros(TOKENS, experts, device=device)
    chosen = mask.t().nonzero()[:count]
    kept[chosen[:, 1], chosen[:, 0]] = 1
    truth = x * (probs * kept).sum(1, keepdim=True)
    torch.testing.assert_close(y, truth)
    dy = torch.rand_like(y)
    for one, other in zip(torch.autograd.grad(y, (x, probs), dy), torch.autograd.grad(truth, (x, probs), dy)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_no_tokens_at_all(device):
    x, probs = torch.zeros(0, HIDDEN, device=device), torch.zeros(0, 8, device=device)
    mask = torch.zeros(0, 8, dtype=torch.bool, device=device)
    rows, row_id_map = te.moe_permute(x, mask)
    assert rows.shape == (0, HIDDEN) and row_id_map.shape == (0, 17)
    assert te.moe_unpermute(rows, row_id_map).shape == (0, HIDDEN)
    assert [tuple(t.shape) for t in te.moe_permute_with_probs(x, probs, mask)] == [(0, HIDDEN), (0,), (0, 17)]
    rows, row_id_map = te.moe_permute(x, torch.zeros(0, 2, dtype=torch.int32, device=device), 0, map_type="index")
    assert te.moe_unpermute(rows, row_id_map, torch.zeros(0, 2, device=device), map_type="index").shape == (0, HIDDEN)
    sizes = torch.zeros(4, dtype=torch.int64, device=device)
    assert te.moe_sort_chunks_by_index(x, sizes, torch.arange(4, device=device)).shape == (0, HIDDEN)


def test_a_slot_without_a_row_is_never_multiplied(device):
    """NaN in probabilities of dropped slots and in rows that nobody names reaches neither results nor gradients."""
    x = torch.rand(6, HIDDEN, device=device, requires_grad=True)
    ids = torch.tensor([[0, -1], [1, 0], [-1, -1], [2, 1], [0, 2], [-7, 1]], device=device)
    probs = torch.rand(6, 2, device=device)
    probs[ids < 0] = float("nan")
    probs.requires_grad_()
    rows, row_id_map = te.moe_permute(x, ids, 12, map_type="index")
    assert (rows[8:] == 0).all()
    poisoned = torch.cat((rows[:8], torch.full_like(rows[8:], float("nan"))))
    y = te.moe_unpermute(poisoned, row_id_map, probs, map_type="index")
    truth = x.detach() * torch.where(ids >= 0, probs, 0.0).sum(1, keepdim=True)
    torch.testing.assert_close(y, truth)
    dx, d_probs = torch.autograd.grad(y, (x, probs), torch.ones_like(y))
    assert torch.isfinite(dx).all() and torch.isfinite(d_probs).all() and (d_probs[ids < 0] == 0).all()


def test_maps_and_chunks_that_cannot_be_are_named():
    rows = torch.rand(4, 3)
    for rows_of_slots, text in (([0, 0, 1, 2], "missing or named twice"), ([0, 1, 1, 3], "twice")):
        with pytest.raises(moe64.InvalidArgumentError, match=text):
            te.moe_unpermute(rows, torch.tensor(rows_of_slots, dtype=torch.int32), map_type="index")
    with pytest.raises(moe64.InvalidArgumentError, match="no permutation"):
        te.moe_sort_chunks_by_index(rows, torch.tensor([2, 2]), torch.tensor([1, 1]))
    with pytest.raises(moe64.ShapeMismatchError, match="inp has 4 rows"):
        te.moe_sort_chunks_by_index(rows, torch.tensor([3, 2]), torch.tensor([1, 0]))


def test_a_permutation_of_known_size_compiles_without_a_break(device):
    x = torch.rand(TOKENS, HIDDEN, device=device, requires_grad=True)
    ids, probs = torch.randint(-1, 7, (TOKENS, 2), device=device), torch.rand(TOKENS, 2, device=device, requires_grad=True)
    sizes, order = torch.full((4,), TOKENS // 2, device=device), torch.tensor([2, 0, 3, 1], device=device)

    def both(x, ids, probs):
        rows, row_id_map = te.moe_permute(x, ids, 2 * TOKENS, map_type="index")
        rows = te.moe_sort_chunks_by_index(rows, sizes, order)
        rows = te.moe_sort_chunks_by_index(rows, sizes, torch.argsort(order))
        return te.moe_unpermute(rows, row_id_map, probs, map_type="index")

    results = []
    for call in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        y = call(x, ids, probs)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, probs))))
    for one, other in zip(*results):
        assert torch.equal(one, other)
