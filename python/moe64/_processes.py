"""Models with experts of moe64 in several processes, or on several GPUs of one process.

DistributedDataParallel sends all parameters and buffers of the first process to the others when it is made, and buffers again
before each forward. Codes and scales are frozen and each process has read them from the checkpoint: they are left out, and
compared instead. nn.DataParallel would copy all experts to each GPU in each forward: it is refused.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .errors import InvalidArgumentError, UnsupportedError

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # DistributedDataParallel reads it of the module that it is given
_STACKS = ("gate_up_proj", "up_proj", "down_proj")
_installed = False


def runs_here(module: nn.Module) -> bool:
    """Whether moe64 runs these experts of Transformers: a class without @use_experts_implementation, which sets both flags,
    runs itself."""
    chosen = getattr(getattr(module, "config", None), "_experts_implementation", None) == "moe64"
    return chosen and hasattr(module, "is_transposed") and hasattr(module, "has_bias")


def holds_codes(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point or tensor.element_size() == 1


def names_of_codes(model: nn.Module) -> list[str]:
    """The names of all codes and their scales in experts that moe64 runs."""
    found = []
    for prefix, module in model.named_modules():
        own: list[str] = []
        if hasattr(type(module), "names_of_codes"):  # PEFT's models answer for what is inside of them
            own = module.names_of_codes()  # type: ignore[operator]
        elif runs_here(module):
            for stack in _STACKS:
                parameter = module._parameters.get(stack)
                if parameter is not None and holds_codes(parameter):
                    own += [name for name, tensor in (*module._parameters.items(), *module._buffers.items())
                            if tensor is not None and name.startswith(stack) and not name.endswith("_bias")]
        found += [f"{prefix}.{name}" if prefix else name for name in own]
    return found


def _sum_of(stack: torch.Tensor) -> torch.Tensor:
    """Over the bytes of a stack, with a weight for each expert."""
    total = torch.zeros((), dtype=torch.int64, device=stack.device)
    for place, matrix in enumerate(stack if stack.dim() > 1 else stack[None]):
        flat = matrix.detach().contiguous().view(-1).view(torch.uint8)
        flat = flat if flat.storage_offset() % 8 == 0 else flat.clone()
        words = flat[:flat.numel() // 8 * 8].view(torch.int64)
        total += (2 * place + 1) * (words.sum() + flat[words.numel() * 8:].sum())
    return total


def _gathered(own: torch.Tensor, group: Any) -> list[list[int]]:
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return [one.tolist() for one in found]


def require_equal(model: nn.Module, names: list[str], group: Any) -> None:
    """Refuses, in every process of a group, codes and scales that are not the same in all of them."""
    wanted = set(names)
    tensors = {name: tensor for table in (model.named_parameters(), model.named_buffers()) for name, tensor in table
               if name in wanted and not tensor.is_meta}
    form = repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()])
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    first = int.from_bytes(hashlib.sha256(form.encode()).digest()[:7], "little")
    rank = dist.get_rank(group)
    for process, (other,) in enumerate(_gathered(torch.tensor([first], device=device), group)):
        if other != first:
            raise InvalidArgumentError(f"[ddp] processes {rank} and {process} have codes of other names, shapes or types: each "
                                       "process must load the same checkpoint in the same way")
    own = torch.stack([_sum_of(tensor).to(device) for tensor in tensors.values()])
    for process, sums in enumerate(_gathered(own, group)):
        for name, ours, theirs in zip(tensors, own.tolist(), sums):
            if ours != theirs:
                raise InvalidArgumentError(f"[ddp] {name} differs between processes {rank} and {process}: codes and scales are "
                                           "not sent, each process must load the same checkpoint")


def install() -> None:
    """Teaches PyTorch's DistributedDataParallel and DataParallel about codes; done by the import of modules that hold them."""
    global _installed
    if _installed or not dist.is_available():
        return
    init, replicate = DistributedDataParallel.__init__, DataParallel.replicate

    @functools.wraps(init)
    def __init__(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        names = names_of_codes(module)
        if names:
            ignored = {*getattr(module, _IGNORED, ()), *names}
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sorted(ignored))
        init(self, module, *args, **options)
        if names and options.get("init_sync", True):
            require_equal(module, names, self.process_group)

    @functools.wraps(replicate)
    def copies(self: Any, module: nn.Module, device_ids: Any) -> Any:
        for name, part in module.named_modules():
            if hasattr(type(part), "names_of_codes") or runs_here(part):
                refuse_copies(part, name)
        return replicate(self, module, device_ids)

    DistributedDataParallel.__init__ = __init__
    DataParallel.replicate = copies
    _installed = True


def refuse_copies(module: nn.Module, name: str = "") -> None:
    """Raises for the copies of a module that nn.DataParallel runs."""
    raise UnsupportedError(
        f"[data_parallel] nn.DataParallel copies {name or 'a model'} ({type(module).__name__}) with all its experts to every "
        "GPU in each forward, and moe64 does not run such copies: start one process for each GPU (torchrun or accelerate "
        "launch), with DistributedDataParallel or fully_shard, or make one GPU visible")
