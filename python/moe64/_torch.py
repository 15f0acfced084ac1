"""PyTorch tensors as views of the C ABI: dtypes, devices, streams, threads."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, NamedTuple

import torch
from torch.autograd import forward_ad

from . import _c
from ._library import library
from .errors import DeviceMismatchError, DtypeMismatchError, GradientError, InvalidArgumentError

_NAMES = {"f32": _c.F32, "bf16": _c.BF16, "f16": _c.F16, "e4m3": _c.E4M3, "e5m2": _c.E5M2, "e8m0": _c.E8M0,
          "int8": _c.INT8, "int4": _c.INT4, "fp4": _c.FP4, "int32": _c.INT32, "int64": _c.INT64, "uint8": _c.UINT8}
_CODES = {torch.float32: _c.F32, torch.bfloat16: _c.BF16, torch.float16: _c.F16, torch.float8_e4m3fn: _c.E4M3,
          torch.float8_e5m2: _c.E5M2, torch.int8: _c.INT8, torch.int32: _c.INT32, torch.int64: _c.INT64,
          torch.uint8: _c.UINT8, torch.bool: _c.UINT8}
if hasattr(torch, "float8_e8m0fnu"):  # torch >= 2.7
    _CODES[torch.float8_e8m0fnu] = _c.E8M0
_PACKED = (_c.INT4, _c.FP4)
# What bytes may stand for when the caller says so.
_BYTES = (torch.uint8, torch.int8)
_BYTE_MEANINGS = ("e4m3", "e5m2", "e8m0", "int8", "int4", "fp4", "uint8")

CPU = _c.Device()
ABSENT = _c.Tensor()
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn,
                "e5m2": torch.float8_e5m2, "e8m0": torch.uint8, "int8": torch.int8, "int4": torch.uint8,
                "fp4": torch.uint8}


class Memory(NamedTuple):
    """Where a tensor lies and in what form: all that the library knows of it."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def memory_of(tensor: torch.Tensor, what: str = "a tensor") -> Memory:
    """The tensor must stay alive while it is used."""
    if tensor.layout is not torch.strided:
        raise DtypeMismatchError(f"[torch] {what} is {tensor.layout}, not a dense tensor")
    return Memory(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def code_of(dtype: torch.dtype, meaning: str | None, what: str) -> int:
    """The dtype of the C ABI. Bytes have one only if `meaning` says what they stand for."""
    if meaning is None:
        code = _CODES.get(dtype)
        if code is None:
            raise DtypeMismatchError(f"[torch] {what} is {dtype}, which moe64 does not take")
        return code
    if meaning not in _NAMES:
        raise InvalidArgumentError(f"[torch] {what} shall be '{meaning}', which is none of {', '.join(_NAMES)}")
    code = _NAMES[meaning]
    if dtype in _BYTES and meaning in _BYTE_MEANINGS:
        return code
    if _CODES.get(dtype) != code:
        raise DtypeMismatchError(f"[torch] {what} is {dtype}, which cannot stand for {meaning}")
    return code


def device_of(tensor: "torch.Tensor | Memory", what: str = "a tensor") -> _c.Device:
    device = tensor.device
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return _c.Device(_c.CUDA, 0, device.index)
    raise DeviceMismatchError(f"[torch] {what} is on {device}, neither cpu nor cuda")


def view_of(memory: Memory | None, what: str, meaning: str | None = None) -> _c.Tensor:
    """Memory of rank 1 to 3 as the C ABI sees it; None is absent."""
    if memory is None:
        return ABSENT
    address, extent, stride, dtype, _ = memory
    rank = len(extent)
    if not 1 <= rank <= 3:
        raise InvalidArgumentError(f"[torch] {what} has {rank} dimensions, not 1 to 3")
    code = _CODES.get(dtype) if meaning is None else None
    if code is None:
        code = code_of(dtype, meaning, what)
    if code in _PACKED:
        if stride[-1] != 1 and extent[-1] > 1:
            raise InvalidArgumentError(f"[torch] {what}: rows of packed 4-bit values must be contiguous, stride is "
                                       f"{stride[-1]}")
        extent = (*extent[:-1], 2 * extent[-1])
        stride = (*(2 * step for step in stride[:-1]), 1)
    result = _c.Tensor(address, code, rank, device_of(memory, what))
    result.extent[:rank] = extent
    result.stride[:rank] = stride
    return result


def view(tensor: torch.Tensor | None, what: str, meaning: str | None = None) -> _c.Tensor:
    """A tensor as the C ABI sees it. It must stay alive while it is used."""
    return ABSENT if tensor is None else view_of(memory_of(tensor, what), what, meaning)


def workspace(tensor: torch.Tensor | None) -> _c.Workspace:
    if tensor is None:
        return _c.Workspace()
    return _c.Workspace(tensor.data_ptr(), tensor.numel(), device_of(tensor))


def autocast_type(x: torch.Tensor) -> torch.dtype | None:
    """The type that torch.autocast wants products of x in; None where it is off."""
    if not (x.is_cpu or x.is_cuda):
        return None
    kind = "cpu" if x.is_cpu else "cuda"
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def operator(name: str, schema: str) -> Callable[[Callable], Any]:
    """Declares moe64::<name>. Schemas are written out: how PyTorch reads them from annotations differs by version."""
    return torch.library.custom_op("moe64::" + name, mutates_args=(), schema=schema)


def alone(tensor: torch.Tensor) -> bool:
    """Whether nobody looks on, so that PyTorch's dispatch of operators, 100 us and more, can be left out: no compiler, no
    torch.jit.trace, no subclass of tensors, no mode that wants to see operators, no torch.func transform."""
    return (not torch.compiler.is_compiling() and torch._C._get_tracing_state() is None
            and type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and not torch._C._len_torch_dispatch_stack() and not torch._C._are_functorch_transforms_active())


def are_transforms_active() -> bool:
    """Of torch.func or of torch.autograd.forward_ad. While a compiler traces only the latter can be asked."""
    return forward_ad._current_level >= 0 or (not torch.compiler.is_compiling()
                                              and torch._C._are_functorch_transforms_active())


def refuse_transforms(operation: str, **arguments: torch.Tensor | None) -> None:
    """Derivatives that nothing here has. Forward-mode ones: PyTorch would take the results for constants. Those of torch.func,
    which needs gradients in a form that operators of libraries cannot have. Costs little where nobody asks for them."""
    if not are_transforms_active():
        return
    recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling() and _is_inside_derivatives()
    for name, tensor in arguments.items():
        if tensor is None:
            continue
        if forward_ad._current_level >= 0 and _has_tangent(tensor):
            raise GradientError(f"[{operation}] {name} carries a forward-mode tangent (torch.func.jvp, jacfwd, forward_ad), "
                                "and there is no forward-mode derivative: differentiate in reverse, with torch.autograd")
        if recorded and tensor.requires_grad:
            raise GradientError(f"[{operation}] {name} requires a gradient inside of torch.func (grad, vjp, jacrev), which "
                                "no operator of a library can give: differentiate with torch.autograd")


def _is_inside_derivatives() -> bool:
    kinds = torch._C._functorch.TransformType
    return any(entry.key() in (kinds.Grad, kinds.Jvp) for entry in torch._C._functorch.get_interpreter_stack() or [])


def _has_tangent(tensor: torch.Tensor) -> bool:
    """Of the present level; inside of other transforms whatever a jvp has wrapped counts, because it may have one."""
    functions = torch._C._functorch
    if not functions.is_functorch_wrapped_tensor(tensor):
        return forward_ad.unpack_dual(tensor).tangent is not None
    stack = functions.get_interpreter_stack() or []
    outer = {entry.level() for entry in stack[:-1] if entry.key() == functions.TransformType.Jvp}
    if stack and stack[-1].key() == functions.TransformType.Jvp and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    while functions.is_functorch_wrapped_tensor(tensor):
        if functions.maybe_get_level(tensor) in outer:
            return True
        tensor = functions.get_unwrapped(tensor)
    return False


def keeping_types(function: Callable, kept: list[torch.Tensor | None]) -> Callable:
    """For nn.Module._apply: `function`, but the tensors in `kept` (codes and scales) only follow it to other devices."""
    names = {id(tensor) for tensor in kept if tensor is not None}

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in names:
            probe = function(tensor.new_empty(0))
            if probe.dtype != tensor.dtype:
                return tensor.to(probe.device)
        return function(tensor)
    return apply


def hooks_that_offload(module: torch.nn.Module) -> list[Any]:
    """accelerate's hooks that bring the weights of a module for each call and take them away again: such weights must
    not be held longer than the call."""
    hook = module.__dict__.get("_hf_hook")
    return [one for one in getattr(hook, "hooks", (hook,)) if getattr(one, "offload", False)]


# ---- where work runs ----------------------------------------------------------------------------

_threads: int | None = None
_pools: dict[int, int] = {}
_pool_lock = threading.Lock()


def set_threads(count: int | None) -> None:
    """How many threads CPU calls use; None (the default) follows torch.get_num_threads(). Results do not depend on it.

        >>> moe64.set_threads(4)
    """
    global _threads
    if count is not None and not 1 <= count <= 4096:
        raise InvalidArgumentError(f"[set_threads] count is {count}, not in [1, 4096]")
    _threads = count


def _forget_pools() -> None:
    """In a forked child the threads of the parent's pools do not exist: their handles are dropped, not destroyed."""
    global _pool_lock
    _pool_lock = threading.Lock()
    _pools.clear()
    _cpu_streams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)


def _pool() -> int | None:
    count = _threads or torch.get_num_threads()
    if count == 1:
        return None
    handle = _pools.get(count)
    if handle is None:
        with _pool_lock:
            handle = _pools.get(count)
            if handle is None:
                handle = _pools[count] = library().make("cpu_pool_create", count)
    return handle


_cpu_streams: dict[int | None, _c.Stream] = {}
_cuda_streams: dict[tuple[int, int], _c.Stream] = {}
_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # without a Stream object


def stream_of(tensor: torch.Tensor) -> _c.Stream:
    """Where work on this tensor is queued: torch's current stream of the tensor's own device, or the CPU's threads.

    The struct is made once for each place and never changed.
    """
    if tensor.is_cpu:
        pool = _pool()
        found = _cpu_streams.get(pool)
        if found is None:
            found = _cpu_streams[pool] = _c.Stream(CPU, 0, pool)
        return found
    if not tensor.is_cuda:
        device_of(tensor)  # raises
    index = tensor.get_device()
    raw = _raw_stream(index) if _raw_stream else torch.cuda.current_stream(index).cuda_stream
    found = _cuda_streams.get((index, raw))
    if found is None:
        if len(_cuda_streams) >= 1024:
            _cuda_streams.clear()
        found = _cuda_streams[index, raw] = _c.Stream(device_of(tensor), 0, raw or None)
    return found


def bytes_on(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)
