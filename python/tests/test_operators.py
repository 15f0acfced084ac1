"""The torch operators: opcheck of every one, numerical gradients, no break under torch.compile, tensors of any strides."""

import importlib.util

import pytest
import torch
from torch.library import opcheck

import moe64
import moe64.gemm, moe64.layer, moe64.elementwise, moe64.routing  # noqa: E401, F401 (they declare the operators)
from moe64._description import PLAIN, SCHEMA, Description, Operands, describe, format_of

DENSE = importlib.util.find_spec("transformers") is not None  # whose layers it is for
if DENSE:
    import moe64.dense

E, T, K, H, INTER = 3, 6, 2, 8, 4


def routing():
    return torch.tensor([[0, 1], [2, -1], [1, 0], [E, 2], [-1, -1], [0, 2]])


def arguments():
    """Arguments for every operator of moe64, by name; several where there are several ways through it."""
    plan = [array.detach() for array in moe64.plan(routing(), E, torch.rand(T, K)).arrays()]
    x, rows = (torch.randn(n, H, requires_grad=True) for n in (T, T * K))
    weights, bias = torch.randn(E, 6, H, requires_grad=True), torch.randn(E, 6, requires_grad=True)
    codes = moe64.quantize(torch.randn(E, 6, H), "row", "int8")
    logits = torch.randn(T, E, requires_grad=True)
    up = torch.randn(T, H, requires_grad=True)
    gate_up, down = torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER)
    lora = moe64.Lora(torch.randn(E, 2, H, requires_grad=True), torch.randn(E, 2 * INTER, 2, requires_grad=True), 0.5)
    def arguments_of(weights):
        operands, description = describe(weights)
        return *operands, *description

    plain = arguments_of(moe64.ExpertWeights(gate_up.clone().requires_grad_(), down.clone().requires_grad_()))
    coded = arguments_of(moe64.ExpertWeights(moe64.quantize(gate_up, "row", "int8"), moe64.quantize(down, "row", "int8"))
                    .with_lora(lora, None))
    frozen = arguments_of(moe64.ExpertWeights(gate_up, down))
    call = (x, routing(), torch.rand(T, K, requires_grad=True))
    _, saved = torch.ops.moe64.experts_forward(*call, -1, True, *plain)
    wanted = [-2, -1, Operands._fields.index("gate_up"), Operands._fields.index("down")]
    route = ("sigmoid", True, 1.0, 1, 1, "max")
    dense = {"dense": [(x, codes.values, codes.scales, bias, False, mode, *format_of(codes)) for mode in ("w8a16", "w8a8")]}
    return (dense if DENSE else {}) | {
        "quantize": [(torch.randn(4, 6), "row", 0, 0, "int8", "f32"), (torch.randn(2, 4, 6), "group", 0, 2, "fp4", "e4m3")],
        "dequantize": [(codes.values[0], codes.scales[0], None, torch.float32, *format_of(codes))],
        "activate": [(x, up, "silu_glu", 1.0, 7.0), (x, None, "relu2", 1.0, 7.0)],
        "activate_backward": [(x, up, torch.randn(T, H), "silu_glu", 1.0, 7.0), (x, None, up, "relu2", 1.0, 7.0)],
        "route": [(logits, None, 2, *route), (logits, torch.rand(E), 2, *route)],
        "route_backward": [(logits, torch.tensor([[0, 1]] * T), torch.rand(T, 2), *route)],
        "plan": [(routing(), False, E, 0, E, -1), (torch.rand(T, E) < 0.5, True, E, 1, 2, 2)],
        "gather": [(x, plan, K, False, -1), (x, plan, K, True, -1)],
        "combine": [(rows, plan, T, K, True, -1), (rows, plan, T, K, False, -1)],
        "slot_weight_gradient": [(rows, torch.randn(T * K, H), plan, T, K)],
        "grouped_gemm": [(rows, weights, None, None, bias, plan[0], False, *PLAIN),
                         (torch.randn(T * K, 6), weights, None, None, None, plan[0], True, *PLAIN),
                         (rows, codes.values, codes.scales, None, bias, plan[0], False, *format_of(codes))],
        "grouped_gemm_wgrad": [(torch.randn(T * K, 6), rows, plan[0], weights, bias)],
        "experts_forward": [(*call, -1, True, *plain), (*call, 2, True, *coded),
                            (x.detach(), routing(), None, -1, False, *frozen)],
        "experts_backward": [(x, torch.randn(T, H), saved, K, wanted, *plain)],
    }


def test_every_operator_has_arguments_here():
    declared = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()
                if name.startswith("moe64::")}
    assert declared == arguments().keys()


@pytest.mark.parametrize("name", sorted(arguments()))
def test_opcheck(name):
    """Schema, fake kernel, autograd and AOT dispatch, on memory that torch fills, so that outputs can be compared."""
    torch.use_deterministic_algorithms(True)
    try:
        for given in arguments()[name]:
            if name.endswith(("_backward", "_gradient", "_wgrad")):  # gradients have none
                given = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)
            opcheck(getattr(torch.ops.moe64, name).default, given)
    finally:
        torch.use_deterministic_algorithms(False)


# ---- numerical gradients ------------------------------------------------------------------------

def check(function, *inputs):
    """gradcheck in float32, the widest type there is: differences over 2e-2, and the same bits every time."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(function, inputs, eps=2e-2, atol=3e-3, rtol=3e-3, nondet_tol=0.0)


@pytest.mark.filterwarnings("ignore:Input #")  # gradcheck prefers double
def test_numerical_gradients_of_the_operations(device):
    torch.manual_seed(11)
    ids = routing().to(device)
    x, rows = torch.randn(T, H, device=device), torch.randn(T * K, H, device=device)
    factors = torch.rand(T, K, device=device) + 0.5
    weights, bias = torch.randn(E, 6, H, device=device), torch.randn(E, 6, device=device)
    plan = moe64.plan(ids, E)
    for kind in ("silu_glu", "gelu_tanh_glu"):
        check(lambda gate, up, kind=kind: moe64.activate(gate, up, kind), x * 0.5, rows[:T])
    check(lambda gate: moe64.activate(gate, activation="gelu"), x * 0.5)
    check(lambda logits: moe64.route(logits, 2, score="sigmoid", renormalize=True)[1],
          torch.arange(4 * E, device=device).view(4, E).roll(1) * 0.3)
    check(lambda x: moe64.gather(x, plan), x)
    check(lambda x, factors: moe64.gather(x, moe64.plan(ids, E, factors), weighted=True), x, factors)
    check(lambda rows, factors: moe64.combine(rows, moe64.plan(ids, E, factors)), rows, factors)
    check(lambda rows: moe64.combine(rows, plan, weighted=False), rows)
    check(lambda rows, weights, bias: moe64.grouped_gemm(rows, weights, plan, bias=bias), rows, weights, bias)
    check(lambda rows, weights: moe64.grouped_gemm(rows, weights, plan, transpose=True), rows[:, :6], weights)


@pytest.mark.filterwarnings("ignore:Input #")
@pytest.mark.parametrize("stored", ["plain", "row", "block:4x4"])
def test_numerical_gradients_of_the_layer(stored, device):
    torch.manual_seed(12)
    ids, x = routing().to(device), torch.randn(T, H, device=device) * 0.5
    factors = torch.rand(T, K, device=device) + 0.5
    gate_up, down = torch.randn(E, 2 * INTER, H, device=device) * 0.5, torch.randn(E, H, INTER, device=device) * 0.5
    a, b = torch.randn(E, 2, H, device=device) * 0.5, torch.randn(E, 2 * INTER, 2, device=device) * 0.5
    biases = torch.randn(E, 2 * INTER, device=device) * 0.5, torch.randn(E, H, device=device)

    def layer(x, factors, a, b, one, other, gate_up, down):
        weights = moe64.ExpertWeights(moe64.Projection(gate_up, one, moe64.Lora(a, b, 0.5)), moe64.Projection(down, other),
                                      mode="auto" if stored == "plain" else "w8a16")
        return moe64.experts(x, ids, factors, weights)

    if stored == "plain":
        check(layer, x, factors, a, b, *biases, gate_up, down)
    else:
        codes = moe64.quantize(gate_up, stored), moe64.quantize(down, stored)
        check(lambda *inputs: layer(*inputs, *codes), x, factors, a, b, *biases)


# ---- compiled -----------------------------------------------------------------------------------

def test_a_layer_made_of_operations_compiles_without_a_break():
    down = moe64.quantize(torch.randn(E, H, INTER), "row", "int8")
    gate_up = torch.randn(E, 2 * INTER, H, requires_grad=True)

    def layer(x, logits):
        ids, factors = moe64.route(logits, K, renormalize=True)
        plan = moe64.plan(ids, E, factors)
        gate, up = moe64.grouped_gemm(moe64.gather(x, plan), gate_up, plan).chunk(2, dim=-1)
        rows = moe64.grouped_gemm(moe64.activate(gate, up), down, plan)
        q = moe64.quantize(x, "row")
        return moe64.combine(rows, plan) + moe64.dequantize(q, dtype=torch.float32)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (4, 7):
        x, logits = torch.randn(tokens, H, requires_grad=True), torch.randn(tokens, E, requires_grad=True)
        results = []
        for call in (layer, compiled):
            y = call(x, logits)
            results.append((y, *torch.autograd.grad(y.square().sum(), (x, logits, gate_up))))
        for one, other in zip(*results):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dynamic", [None, True])
@torch._dynamo.config.patch(recompile_limit=32)
def test_a_compiled_layer_follows_every_change_of_its_description(dynamic):
    """Words and extents are arguments of the operators: what changes them compiles anew, or was left open."""
    gate_up, down = torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER)
    lora = moe64.Lora(torch.randn(E, 2, H, requires_grad=True), torch.randn(E, 2 * INTER, 2, requires_grad=True), 0.5)
    weights = moe64.ExpertWeights(moe64.quantize(gate_up, "block:4x4"), down, mode="w8a16").with_lora(lora, None)
    ids, factors = routing(), torch.rand(T, K)

    def layer(x):
        return moe64.experts(x, ids, factors, weights)

    compiled, before = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager"), []
    for change in (lambda: None, lambda: setattr(weights.gate_up, "weights", moe64.quantize(gate_up, "block:2x8")),
                   lambda: setattr(weights.gate_up, "weights", moe64.quantize(gate_up, "row", "int8")),
                   lambda: setattr(weights, "activation", moe64.Activation("gelu_glu")),
                   lambda: setattr(weights, "activation", moe64.Activation("clamped_silu_glu", limit=0.5)),
                   lambda: setattr(weights, "activation", moe64.Activation("clamped_silu_glu", limit=0.25)),
                   lambda: setattr(lora, "scaling", 2.0), lambda: setattr(weights, "interleaved", True),
                   lambda: setattr(weights, "weight_on", "input"), lambda: setattr(weights.down, "bias", torch.randn(E, H)),
                   lambda: (setattr(weights, "experts_total", E + 1), setattr(weights, "first_expert", 1))):
        change()
        x = torch.linspace(-1, 1, T * H).view(T, H).requires_grad_()
        results = []
        for call in (layer, compiled):
            y = call(x)
            results.append((y, *torch.autograd.grad(y.square().sum(), (x, lora.a, lora.b))))
        for one, other in zip(*results):
            assert torch.equal(one, other)
        assert not any(torch.equal(y, seen) for seen in before)
        before.append(y.detach())


def test_a_layer_for_a_gpu_is_traced_without_one():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        x = torch.empty(T, H, device="cuda", requires_grad=True)
        gate_up, down = torch.empty(E, 2 * INTER, H, device="cuda"), torch.empty(E, H, INTER, device="cuda")
        ids = torch.empty(T, K, dtype=torch.int64, device="cuda")
        y = moe64.experts(x, ids, None, moe64.ExpertWeights(gate_up, down))
    assert y.shape == x.shape and y.device == x.device and y.requires_grad


def test_every_argument_of_the_layers_operators_has_the_name_of_its_field():
    names = [argument.split(" ")[1] for argument in SCHEMA.split(", ")]
    assert names == [*Operands._fields, *Description._fields]
    for name in ("experts_forward", "experts_backward"):
        schema = getattr(torch.ops.moe64, name).default._schema
        assert [argument.name for argument in schema.arguments][-len(names):] == names


def test_an_operator_refuses_the_arguments_of_another_version():
    operands, description = describe(moe64.ExpertWeights(torch.randn(E, 2 * INTER, H), torch.randn(E, H, INTER)))
    call = (torch.randn(T, H), routing(), torch.rand(T, K), -1, False)
    torch.ops.moe64.experts_forward(*call, *operands, *description)
    for wrong in ((*operands, *description[:-1]), (*operands, *description, ""), (*operands[1:], *description),
                  (*operands, *description[1:], "")):
        with pytest.raises(RuntimeError):
            torch.ops.moe64.experts_forward(*call, *wrong)
    with pytest.raises(moe64.InvalidArgumentError, match="activation is 'siluglu', none of"):
        torch.ops.moe64.experts_forward(*call, *operands, *description._replace(activation="siluglu"))


# ---- strides and types --------------------------------------------------------------------------

def strided(t):
    """The same numbers with a gap behind every element, and the extents stored the other way round."""
    turned = t.permute(*reversed(range(t.dim())))
    wide = torch.zeros(*turned.shape, 2, dtype=t.dtype, device=t.device)
    wide[..., 0] = turned
    made = wide[..., 0].permute(*reversed(range(t.dim())))
    assert not made.is_contiguous() or made.numel() < 2
    return made


def test_tensors_of_any_strides_give_the_same_numbers(device):
    ids = routing().to(device)
    x, rows, factors = torch.randn(T, H, device=device), torch.randn(T * K, H, device=device), torch.rand(T, K, device=device)
    weights, bias, logits = (torch.randn(*shape, device=device) for shape in ((E, 6, H), (E, 6), (T, E)))
    q = moe64.quantize(torch.randn(6, H, device=device), "row", "int8")
    gate_up, down = torch.randn(E, 2 * INTER, H, device=device), torch.randn(E, H, INTER, device=device)
    plan = moe64.plan(ids, E)
    for call, *tensors in (
            (lambda x: moe64.quantize(x, "block:2x4").values.view(torch.uint8), x),
            (lambda values, scales: moe64.dequantize(values, scales, "row"), q.values, q.scales),
            (moe64.activate, x, rows[:T]),
            (lambda logits: moe64.route(logits, 2)[1], logits),
            (lambda ids, factors: moe64.plan(ids, E, factors).slot_weight, ids, factors),
            (lambda x: moe64.gather(x, plan), x),
            (lambda rows: moe64.combine(rows, plan, weighted=False), rows),
            (lambda rows, weights, bias: moe64.grouped_gemm(rows, weights, plan, bias=bias), rows, weights, bias),
            (lambda x, ids, factors, gate_up, down: moe64.experts(x, ids, factors, moe64.ExpertWeights(gate_up, down)),
             x, ids, factors, gate_up, down)):
        torch.testing.assert_close(call(*map(strided, tensors)), call(*tensors), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", [
    lambda: moe64.quantize(torch.zeros(2, 2, dtype=torch.float64), "row"),
    lambda: moe64.dequantize(torch.zeros(2, 2, dtype=torch.int16), torch.ones(2, 1), "row"),
    lambda: moe64.activate(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)),
    lambda: moe64.route(torch.zeros(2, 2, dtype=torch.int64), 1),
    lambda: moe64.plan(torch.zeros(2, 2), 2),
    lambda: moe64.gather(torch.zeros(2, 2, dtype=torch.complex64), moe64.plan(torch.zeros(2, 1, dtype=torch.int64), 1)),
    lambda: moe64.combine(torch.zeros(2, 2, dtype=torch.int64), moe64.plan(torch.zeros(2, 1, dtype=torch.int64), 1)),
    lambda: moe64.grouped_gemm(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(1, 2, 2), torch.tensor([0, 2])),
    lambda: moe64.gather(torch.zeros(2, 2).to_sparse(), moe64.plan(torch.zeros(2, 1, dtype=torch.int64), 1)),
    lambda: moe64.gather(torch.zeros(2, 2, dtype=torch.float8_e4m3fn), moe64.plan(torch.zeros(2, 1, dtype=torch.int64), 1)),
])
def test_types_that_an_operation_does_not_take_are_refused(call):
    with pytest.raises(moe64.Moe64Error) as caught:
        call()
    assert isinstance(caught.value, (TypeError, ValueError)), caught.value
