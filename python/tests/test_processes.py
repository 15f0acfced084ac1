"""Several processes: what DistributedDataParallel, fully_shard, accelerate and nn.DataParallel do with codes, against one
process: equal losses in each step, equal gradients in the last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

pytest.importorskip("transformers", minversion="5.7")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")
import moe64  # noqa: E402
import moe64.transformers  # noqa: E402
from moe64 import _processes  # noqa: E402
from team import SIZE, Team  # noqa: E402
from test_lora import TARGETS  # noqa: E402
from test_saving import options_of  # noqa: E402
from test_transformers import fp8_experts  # noqa: E402

BATCH = torch.arange(4 * 6).view(4, 6) * 7 % 90
STEPS = 2
LIKES = ["qwen3-30b", "glm-4.5"]  # FP8 in blocks, and in rows of compressed-tensors: 5 experts, for two processes


@pytest.fixture(scope="module")
def team():
    made = Team()
    yield made
    made.end()


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    made = {}

    def get(like):
        if like not in made:
            made[like] = tmp_path_factory.mktemp("checkpoint") / like
            subprocess.run([moe64.tool(), "synth", made[like], "--like", like, "--scale-down", "32", "--layers", "2"],
                           check=True, capture_output=True)
            options_of(made[like])
        return made[like]
    return get


def adapted(folder):
    """A model of codes with adapters of PEFT, the same in each process."""
    model = moe64.transformers.from_pretrained(folder, dtype=torch.float32, **options_of(Path(folder)))
    torch.nn.Module.float(model)  # what fine-grained FP8 expands is bfloat16
    config = peft.LoraConfig(r=2, lora_alpha=4, target_parameters=TARGETS, target_modules=["q_proj"])
    return seeded(peft.get_peft_model(model, config))


def seeded(model):
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.normal_(0, 0.05)
    return model


def loss_of(model, tokens):
    return model(tokens).logits.float().square().mean()


def trained(model, whole, batch, loss_of=loss_of, steps=STEPS):
    """The losses of some steps of SGD, and the gradients of the last."""
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable and all("lora_" in name for name in trainable)
    optimizer, losses = torch.optim.SGD(trainable.values(), lr=0.3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(whole, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: full(parameter.grad) for name, parameter in trainable.items()}


def full(tensor):
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def same(ours, expected, bound=1e-5):
    """Of each process, and of one: mean losses and gradients."""
    losses, gradients = zip(*ours)
    torch.testing.assert_close(torch.tensor(losses).mean(0), torch.tensor(expected[0]), rtol=bound, atol=0)
    for name, gradient in expected[1].items():
        assert torch.equal(gradients[0][name], gradients[1][name]), name
        distance = (gradients[0][name] - gradient).abs().max() / gradient.abs().max()
        assert distance <= bound, f"{name}: {distance:.1e} of the largest, allowed {bound:.0e}"


# ---- DistributedDataParallel --------------------------------------------------------------------

def recorded(sent):
    """Puts what DistributedDataParallel sends into a list; answers what undoes that."""
    send = dist._broadcast_coalesced
    dist._broadcast_coalesced = lambda group, tensors, *rest: sent.extend(tensors) or send(group, tensors, *rest)
    return lambda: setattr(dist, "_broadcast_coalesced", send)


def with_ddp(rank, folder):
    model, sent = adapted(folder), []
    undo = recorded(sent)
    try:
        answer = trained(model, DistributedDataParallel(model), BATCH.chunk(SIZE)[rank])
    finally:
        undo()
    codes = {tensor.data_ptr() for name, tensor in model.state_dict().items() if name in _processes.names_of_codes(model)}
    assert len(codes) >= 4 and sent and not any(tensor.data_ptr() in codes for tensor in sent)
    return answer


@pytest.mark.parametrize("like", LIKES)
def test_ddp_trains_what_one_process_trains_and_sends_no_codes(like, synth, team):
    """gloo said "Invalid scalar type": codes were sent at the start, and scales before each forward."""
    model = adapted(synth(like))
    same(team(with_ddp, synth(like)), trained(model, model, BATCH))


LAYOUTS = [("block:4x8", "e4m3", "f32"), ("row", "e5m2", "f32"), ("group:8", "int4", "f32"), ("group:16", "fp4", "e4m3"),
           ("group:32", "fp4", "e8m0"), ("row", "int8", "f32")]


class Stack(torch.nn.Module):
    """moe64's own layers in every format, one behind the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList()
        for layout in LAYOUTS:
            gate_up, down = torch.randn(3, 64, 32) * 0.2, torch.randn(3, 32, 32) * 0.2
            weights = moe64.ExpertWeights(moe64.quantize(gate_up, *layout), moe64.quantize(down, *layout))
            self.layers.append(moe64.Experts.from_weights(weights).add_lora(2))

    def forward(self, x):
        ids = torch.arange(2 * x.shape[0]).view(-1, 2) % 3
        for layer in self.layers:
            x = x + layer(x, ids, torch.full(ids.shape, 0.5))
        return x


ROWS = torch.linspace(-1, 1, 12 * 32).view(12, 32)


def mean_square(model, rows):
    return model(rows).square().mean()


def with_ddp_of_layers(rank):
    model = seeded(Stack())
    return trained(model, DistributedDataParallel(model), ROWS.chunk(SIZE)[rank], mean_square)


def test_ddp_of_layers_in_every_format(team):
    model = seeded(Stack())
    same(team(with_ddp_of_layers), trained(model, model, ROWS, mean_square))


def other_codes(rank):
    answers = []
    for change in (lambda layer: layer.down.view(torch.uint8)[2, 5, 7].add_(rank), lambda layer: layer.down_scales.add_(rank),
                   lambda layer: setattr(layer, "down_scales", layer.down_scales.to((torch.float32, torch.bfloat16)[rank]))):
        model = Stack()
        change(model.layers[0])
        with pytest.raises(moe64.InvalidArgumentError) as refused:
            DistributedDataParallel(model)
        answers.append(str(refused.value))
    return answers


def test_processes_with_other_codes_are_refused(team):
    for rank, (codes, scales, form) in enumerate(team(other_codes)):
        assert f"[ddp] layers.0.down differs between processes {rank} and {1 - rank}" in codes
        assert f"[ddp] layers.0.down_scales differs between processes {rank} and {1 - rank}" in scales
        assert "codes of other names, shapes or types" in form


def test_ddp_keeps_what_a_user_has_told_it_to_ignore():
    class Whole(torch.nn.Module):
        _ddp_params_and_buffers_to_ignore = ["mine"]

    model = Whole()
    model.layer = Stack().layers[0]
    with pytest.raises((RuntimeError, ValueError), match="[Pp]rocess group"):
        DistributedDataParallel(model)
    assert model._ddp_params_and_buffers_to_ignore == ["layer.down", "layer.down_scales", "layer.gate_up",
                                                       "layer.gate_up_scales", "mine"]


def test_codes_of_transformers_own_class_are_known():
    module, _ = fp8_experts()
    model = torch.nn.ModuleDict({"experts": module})
    assert sorted(_processes.names_of_codes(model)) == ["experts.down_proj", "experts.down_proj_scale_inv",
                                                        "experts.gate_up_proj", "experts.gate_up_proj_scale_inv"]
    module.config._experts_implementation = "grouped_mm"
    assert not _processes.names_of_codes(model)


# ---- fully_shard --------------------------------------------------------------------------------

def sharded(model, experts_too=False, **options):
    for layer in model.base_model.model.model.layers:
        if experts_too and hasattr(layer.mlp, "experts"):
            fully_shard(layer.mlp.experts, **options)
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def codes_of(model):
    return {name: full(tensor) for name, tensor in model.state_dict().items() if name in _processes.names_of_codes(model)}


def with_fsdp(rank, folder, experts_too):
    model = adapted(folder)
    if experts_too:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    before = codes_of(model)
    sharded(model, experts_too)
    parts = [getattr(module, name) for module in model.modules() if isinstance(module, moe64.transformers.CodeExperts)
             for name in ("gate_up_proj", "down_proj")]
    assert parts and all(part.to_local().shape[0] <= -(-part.shape[0] // SIZE) for part in parts)
    answer = trained(model, model, BATCH.chunk(SIZE)[rank])
    after = codes_of(model)
    assert after.keys() == before.keys() and all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    return answer


@pytest.mark.parametrize("like, experts_too", [*((like, False) for like in LIKES), ("qwen3-30b", True)])
def test_fsdp2_shards_codes_and_trains_what_one_process_trains(like, experts_too, synth, team):
    """With compressed-tensors it failed in that library, with experts as a unit of their own in this one."""
    model = adapted(synth(like))
    same(team(with_fsdp, synth(like), experts_too), trained(model, model, BATCH))


def with_mixed_precision(rank, folder):
    """Two processes, and one that is sharded over itself: what mixed precision does with codes, and with numbers."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    groups = [dist.new_group([member]) for member in range(SIZE)]
    alone, together = adapted(folder), adapted(folder)
    codes = codes_of(alone)
    with torch.no_grad():
        exact = alone(BATCH).logits
    sharded(alone, mp_policy=policy, mesh=DeviceMesh.from_group(groups[rank], "cpu"))
    with torch.no_grad():
        distance = ((alone(BATCH).logits.float() - exact).abs().max() / exact.abs().max()).item()
    sharded(together, mp_policy=policy)
    answer = trained(together, together, BATCH.chunk(SIZE)[rank]), trained(alone, alone, BATCH), distance
    assert all(torch.equal(tensor, codes[name]) and tensor.dtype == codes[name].dtype
               for name, tensor in codes_of(together).items())
    return answer


def test_fsdp2_casts_no_codes_in_mixed_precision(synth, team):
    together, alone, distances = zip(*team(with_mixed_precision, synth("qwen3-30b")))
    same(together, alone[0], 0.03)
    assert 1e-5 < max(distances) < 0.05


# ---- accelerate, nn.DataParallel ----------------------------------------------------------------

PROGRAM = """
import sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from test_processes import BATCH, adapted, trained

accelerator = Accelerator(cpu=True)
model = adapted(sys.argv[1])
whole, batches = accelerator.prepare(model, DataLoader(BATCH, batch_size=2))
(batch,) = batches
assert accelerator.num_processes == 2 and batch.shape[0] == 2, (accelerator.num_processes, batch.shape)
answer = trained(model, whole, batch)
torch.save(answer, f"{sys.argv[2]}/{accelerator.process_index}")
"""


def test_accelerate_launch(synth, tmp_path):
    model = adapted(synth("qwen3-30b"))
    (tmp_path / "program.py").write_text(PROGRAM)
    launch = [sys.executable, "-B", "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
              "--num_cpu_threads_per_process", "1"]
    done = subprocess.run([*launch, tmp_path / "program.py", synth("qwen3-30b"), tmp_path], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    same([torch.load(tmp_path / str(rank)) for rank in range(SIZE)], trained(model, model, BATCH))


def test_copies_of_data_parallel_are_refused():
    """It would send all experts to each GPU in each forward."""
    refused = pytest.raises(moe64.UnsupportedError, match=r"\[data_parallel\] .* start one process for each GPU")
    module, _ = fp8_experts()
    for model in (Stack(), torch.nn.ModuleList([module])):
        with refused:
            DataParallel(model).replicate(model, [0, 1])
    x, ids = torch.randn(2, 128), torch.zeros(2, 1, dtype=torch.int64)
    with refused:
        module._replicate_for_data_parallel()(x, ids, torch.ones(2, 1))
    layer = Stack().layers[0]
    with refused:
        layer._replicate_for_data_parallel()(x[:, :32], ids)
    assert DataParallel(layer)(x[:, :32], ids).shape == (2, 32)  # nothing is copied without a GPU, or with one
