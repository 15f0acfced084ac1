"""The short ways through moe64.experts: one handle for the same description and memory, and when operators are called."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import moe64
from moe64 import _c, _handles, _torch, layer
from moe64._description import describe


def test_a_handle_is_that_of_the_present_weights():
    """Handles are kept by description and addresses; every way to exchange a tensor must be seen."""
    weights = moe64.ExpertWeights(moe64.quantize(torch.randn(3, 2 * 8, 8), "row"), torch.randn(3, 8, 8))
    x, ids, factors = torch.randn(5, 8), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)

    def both():
        """The result, and that of a handle that is made anew."""
        with torch.no_grad():
            ours = moe64.experts(x, ids, factors, weights)
            _handles._layers.clear()
            return ours, moe64.experts(x, ids, factors, weights)

    seen = [both()[0]]

    def changed():
        ours, truth = both()
        assert torch.equal(ours, truth) and not any(torch.equal(ours, before) for before in seen)
        seen.append(ours)

    weights.down.weights.add_(1)                    # in place
    changed()
    weights.down.weights.transpose_(1, 2)           # the same memory in another form
    changed()
    weights.down.weights.data = torch.randn(3, 8, 8)
    changed()
    weights.down.weights = torch.randn(3, 8, 8)
    changed()
    weights.gate_up.weights.scales = weights.gate_up.weights.scales * 2
    changed()
    weights.down.bias = torch.randn(3, 8)
    changed()
    weights.down.lora = moe64.Lora(torch.randn(3, 2, 8), torch.randn(3, 8, 2))
    changed()
    weights.down.lora.scaling = 3.0
    changed()
    weights.activation = moe64.Activation("gelu_glu")
    changed()
    again = copy.deepcopy(weights)  # pickling goes the same way, but torch cannot unpickle float8
    with torch.no_grad():
        assert torch.equal(moe64.experts(x, ids, factors, again), seen[-1])
    x.requires_grad_()
    assert moe64.experts(x, ids, factors, weights).requires_grad  # and gradients are not forgotten
    with torch.inference_mode():
        weights.down.weights = torch.randn(3, 8, 8)
        moe64.experts(x, ids, factors, weights)
        weights.down.weights.mul_(2)
        moe64.experts(x, ids, factors, weights)
    assert torch.equal(*both())


def test_the_same_weights_have_one_handle_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(_handles, "_KEPT", 3)
    _handles._layers.clear()
    stacks = [(torch.randn(3, 2 * 8, 8), torch.randn(3, 8, 8)) for _ in range(5)]
    x, ids = torch.randn(5, 8), torch.randint(0, 3, (5, 2))
    gone = []
    for gate_up, down in stacks:
        for _ in range(2):  # other objects over the same memory
            moe64.experts(x, ids, None, moe64.ExpertWeights(gate_up, moe64.Projection(down.view(3, 8, 8))))
            moe64.experts(x.clone().requires_grad_(), ids, None, moe64.ExpertWeights(gate_up, down))
        gone.append(weakref.ref(next(reversed(_handles._layers.values()))))
        assert len(_handles._layers) == min(len(gone), 3)
    assert [handle() is None for handle in gone] == [True, True, False, False, False]


def layer_for(gated=True):
    return moe64.ExpertWeights(torch.randn(3, (1 + gated) * 5, 9), torch.randn(3, 9, 5), "silu_glu" if gated else "silu")


def test_the_room_for_saved_memory_is_what_the_library_asks_for_with_the_last_step_whole():
    for tokens, top_k, gated in ((0, 1, True), (1, 1, True), (7, 3, True), (100, 8, False), (64, 3, True), (129, 2, True)):
        handle = _handles.layer_of(*describe(layer_for(gated)))
        whole = -(-tokens // 64) * 64
        for dtype, code in ((torch.float32, _c.F32), (torch.bfloat16, _c.BF16)):
            room = layer._room_for_saved(handle, tokens, top_k, dtype, _torch.CPU)
            assert room == handle.saved_bytes(whole, top_k, code) >= handle.saved_bytes(tokens, top_k, code)


def test_a_graph_with_too_little_room_for_saved_memory_is_refused():
    weights = layer_for()
    handle = _handles.layer_of(*describe(weights))
    x, ids = torch.randn(7, 9), torch.randint(0, 3, (7, 2))
    with pytest.raises(moe64.Moe64Error, match="saved"):
        layer._run_forward(handle, x, ids, None, -1, keep=True, room=handle.saved_bytes(7, 2, _c.F32) - 1)


def test_what_is_remembered_of_a_module_never_outlives_it():
    """Calls without gradients describe a module once; every way to exchange its weights must be seen."""
    pytest.importorskip("transformers", minversion="5.7")
    import moe64.transformers
    from test_transformers import tiny
    model = tiny("gpt_oss")  # transposed: its weights are views of the parameters
    experts = model.model.layers[0].mlp.experts
    x, ids, weights = torch.randn(5, 64), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    seen = []

    def changed():
        with torch.no_grad():
            ours = moe64.transformers.experts_forward(experts, x, ids, weights)
            again = moe64.transformers.experts_forward(experts, x, ids, weights)
        truth = moe64.transformers.experts_forward(experts, x, ids, weights).detach()  # with gradients: looked at anew
        assert torch.equal(ours, truth) and torch.equal(again, truth)
        assert not any(torch.equal(ours, before) for before in seen)
        seen.append(ours)

    changed()
    with torch.no_grad():
        experts.down_proj.mul_(2)
    changed()
    experts.down_proj.data = torch.randn_like(experts.down_proj)
    changed()
    experts.gate_up_proj = nn.Parameter(torch.randn_like(experts.gate_up_proj))
    changed()
    experts.limit = 0.5
    changed()
    experts.double().float()
    with torch.no_grad():
        experts.gate_up_proj_bias.add_(1)
    changed()

    class Odd(type(experts)):
        def _apply_gate(self, gate_up):
            return torch.tanh(gate_up[..., ::2]) * gate_up[..., 1::2]
    experts.__class__ = Odd
    changed()
    twin = copy.deepcopy(experts)
    assert experts._moe64_seen is not None and twin._moe64_seen is None
    gone = weakref.ref(twin)
    with torch.no_grad():
        moe64.transformers.experts_forward(twin, x, ids, weights)
    del twin
    gc.collect()
    assert gone() is None


def test_modes_see_the_operators():
    from torch.utils._python_dispatch import TorchDispatchMode
    weights = moe64.ExpertWeights(torch.randn(3, 2 * 8, 8), torch.randn(3, 8, 8))
    x, ids, factors = torch.randn(5, 8, requires_grad=True), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names: list[str] = []
    with Names():
        y = moe64.experts(x, ids, factors, weights)
        seen, = torch.autograd.grad(y.sum(), x)
    assert "moe64.experts_forward.default" in names and "moe64.experts_backward.default" in names
    eager, = torch.autograd.grad(moe64.experts(x, ids, factors, weights).sum(), x)
    assert torch.equal(seen, eager)


def test_gradients_of_gradients_are_an_error():
    weights = moe64.ExpertWeights(torch.randn(3, 2 * 8, 8), torch.randn(3, 8, 8))
    x = torch.randn(5, 8, requires_grad=True)
    y = moe64.experts(x, torch.randint(0, 3, (5, 2)), torch.rand(5, 2), weights)
    dx, = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(moe64.GradientError, match="no second derivative"):
        dx.sum().backward()


def test_a_step_survives_two_forwards_and_changed_weights_are_an_error():
    weights = moe64.ExpertWeights(torch.randn(3, 2 * 8, 8), torch.randn(3, 8, 8, requires_grad=True))
    ids, factors = torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    first, second = torch.randn(5, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    one, other = moe64.experts(first, ids, factors, weights), moe64.experts(second, ids, factors, weights)
    (one.sum() + other.sum()).backward()
    alone, = torch.autograd.grad(moe64.experts(first, ids, factors, weights).sum(), first)
    assert torch.equal(first.grad, alone)
    y = moe64.experts(first, ids, factors, weights)
    with torch.no_grad():
        weights.down.weights.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
