"""Checkpoints from Python: inspect, check, merge, and the experts of a layer as tensors."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from dataclasses import replace
from typing import Any, Callable

import torch

from . import _c
from ._library import library, tool
from ._torch import _CODES, _pool, bytes_on, workspace
from .errors import BY_CODE, InvalidArgumentError, IoFailureError, Moe64Error
from .formats import Activation, ExpertWeights, Granularity, Projection, Quantized

__all__ = ["check", "inspect", "load_experts", "merge"]

_TORCH = {code: dtype for dtype, code in _CODES.items() if dtype is not torch.bool}
_BYTES = {_c.INT4: "int4", _c.FP4: "fp4", _c.E8M0: "e8m0"}


_BY_NAME = {kind.name: kind for kind in BY_CODE.values()}


def _local(verb: str, path: "str | os.PathLike[str]") -> str:
    """A folder or a file; a name on the Hub stands for what was downloaded of it."""
    text = os.fspath(path)
    if os.path.exists(text) or not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return text
    try:
        from huggingface_hub import snapshot_download
        return snapshot_download(text, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise IoFailureError(f"[{verb}] there is no folder '{text}', and if that is a name on the Hub, nothing of it was "
                             f"downloaded: huggingface_hub.snapshot_download('{text}') does") from error


def _run(verb: str, path: "str | os.PathLike[str]", *options: str) -> dict[str, Any]:
    """One verb of the tool as JSON. Findings are an answer; bad input is an exception."""
    done = subprocess.run([str(tool()), verb, _local(verb, path), "--json", *options], capture_output=True, text=True,
                          check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        kinds = {2: BY_CODE[12], 6: BY_CODE[13], 130: BY_CODE[14]}
        raise kinds.get(done.returncode, Moe64Error)(f"[{verb}] {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


def merge(base: "str | os.PathLike[str]", adapter: "str | os.PathLike[str]", out: "str | os.PathLike[str]", *, to: str,
          layout: str | None = None, assume: tuple[str, ...] = (), threads: int | None = None) -> dict[str, Any]:
    """Writes the checkpoint `base` to the folder `out` with a LoRA adapter of PEFT or unsloth in its weights.

    to       what quantised weights become: "bf16", "fp8-block", "fp8-row", or "same" for the format that each has
    layout   of B of stacks of experts, "peft" or "unsloth", where adapter_config.json does not state it
    assume   what the files of the base leave open, such as ("block=128x128",)

    The answer has "merged": of each tensor that changed how large the change is ("delta"), which part of it is there after
    rounding ("kept", 1 for all) and how large the error is beside it ("error"); and "warnings" where little of it is left.
    An adapter that does not fit, or is not supported, raises before anything is written. A call that was interrupted goes on
    where it was when it is made again.

        >>> moe64.merge("GLM-4.7-Flash-FP8", "adapter", "merged", to="bf16")["warnings"]
        []
    """
    options = [os.fspath(adapter), os.fspath(out), "--to", to]
    if layout is not None:
        options += ["--lora-layout", layout]
    if threads is not None:
        options += ["--threads", str(threads)]
    options += [word for given in assume for word in ("--assume", given)]
    done = subprocess.run([str(tool()), "merge", os.fspath(base), *options, "--json"], capture_output=True, text=True,
                          check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise Moe64Error(f"[merge] {done.stderr.strip() or done.stdout.strip()}") from None
    if "message" in answer:
        raise _BY_NAME.get(answer["error"], Moe64Error)(answer["message"])
    return answer


def inspect(path: "str | os.PathLike[str]", *, assume: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a checkpoint is: model, dialect, the format of every MoE layer, and what is wrong. Reads headers only.

        >>> moe64.inspect("GLM-4.7-Flash-FP8")["model_type"]
        'glm4_moe_lite'
    """
    return _run("inspect", path, *(word for given in assume for word in ("--assume", given)))


def check(path: "str | os.PathLike[str]", *, report: "str | os.PathLike[str] | None" = None) -> dict[str, Any]:
    """Reads every byte of a checkpoint once: missing, inverted or broken scales, NaN codes, statistics of experts.

    report   writes an HTML page there as well
    The answer has "findings" with level, rule, tensor and text each.

        >>> [finding["text"] for finding in moe64.check("GLM-4.7-Flash-FP8")["findings"]]
        []
    """
    return _run("check", path, *(["--report", os.fspath(report)] if report is not None else []))


def _tensor(view: _c.Tensor, memory: torch.Tensor) -> torch.Tensor | None:
    """A view of the library as a tensor over the memory that it looks at."""
    if view.rank == 0:
        return None
    packed = view.dtype in (_c.INT4, _c.FP4)
    dtype = torch.uint8 if view.dtype in _BYTES else _TORCH[view.dtype]
    extent, stride = list(view.extent[:view.rank]), list(view.stride[:view.rank])
    if packed:
        extent[-1], stride = (extent[-1] + 1) // 2, [step // 2 for step in stride[:-1]] + [1]
    size = (sum((count - 1) * step for count, step in zip(extent, stride)) + 1) * dtype.itemsize if 0 not in extent else 0
    begin = (view.data or memory.data_ptr()) - memory.data_ptr()
    return _storage(memory, begin, size).view(dtype).as_strided(extent, stride)


def _storage(memory: torch.Tensor, begin: int, size: int) -> torch.Tensor:
    """Bytes of `memory`, which they keep alive, as a storage of their own: tensors of one storage cannot be saved in several
    types, and whoever looks for shared weights takes them for one."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    place = (ctypes.c_uint8 * size).from_address(memory.data_ptr() + begin)
    place.memory = memory  # type: ignore[attr-defined]
    return torch.frombuffer(place, dtype=torch.uint8)


def _matrix(part: _c.Quantized, memory: torch.Tensor) -> "torch.Tensor | Quantized":
    values = _tensor(part.values, memory)
    assert values is not None
    if part.layout.kind == _c.NONE:
        return values
    scales = _tensor(part.scales, memory)
    assert scales is not None
    return Quantized(values, scales, Granularity.from_c(part.layout), _tensor(part.global_.values, memory),
                     bool(part.global_.applied), _BYTES.get(part.values.dtype), _BYTES.get(part.scales.dtype))


def _halves(fused: Any) -> Any:
    """The places of gate and of up in a stack [experts, 2 * inter, ...]; the grid of scales restarts at the up half."""
    if fused is None or isinstance(fused, torch.Tensor):
        return fused if fused is None else tuple(fused.chunk(2, dim=1))
    scales = (None, None) if fused.global_scale is None else fused.global_scale.unbind(1)
    return tuple(replace(fused, values=values, scales=grid, global_scale=scale)
                 for values, grid, scale in zip(fused.values.chunk(2, 1), fused.scales.chunk(2, 1), scales))


def _projection(view: _c.ProjectionView, memory: torch.Tensor) -> Projection:
    parts = [_matrix(part, memory) for part in view.parts if part.values.rank]
    biases = [_tensor(bias, memory) for bias in view.bias if bias.rank]
    if len(parts) == 1:
        return Projection(parts[0], biases[0] if biases else None)
    return Projection(tuple(parts), tuple(biases) if biases else None)


def _opened(path: "str | os.PathLike[str]", assume: tuple[str, ...]) -> int:
    options = _c.CheckpointOptions()
    words = (ctypes.c_char_p * len(assume))(*(word.encode() for word in assume))
    if assume:
        options.assume, options.assume_count = words, len(assume)
    return library().make("checkpoint_open", os.fsencode(_local("load_experts", path)), options)


def load_experts(path: "str | os.PathLike[str]", layer: int, *, first_expert: int = 0, experts: int | None = None,
                 mtp: bool = False, device: "torch.device | str" = "cpu", fused: bool = False,
                 assume: tuple[str, ...] = (), progress: "_Progress | None" = None
                 ) -> ExpertWeights:
    """The experts of one layer of a checkpoint, as they are stored: codes with their scales, never expanded.

    layer          number of the layer in the model; mtp: one of multi-token prediction
    first_expert   with `experts`, only that part of them
    device         where the tensors shall be; on their way there a few experts at a time lie in host memory
    fused          gate and up as one tensor, not as a pair
    assume         what the files leave open, such as ("block=128x128",)
    progress       called with (bytes done, bytes in all); True stops the load

    The result has the activation and the place of the routing weight that the config states.

        >>> weights = moe64.load_experts("GLM-4.7-Flash-FP8", 3)
        >>> y = moe64.experts(x, ids, None, weights)
    """
    if experts is not None and experts < 0:
        raise InvalidArgumentError(f"[load_experts] experts is {experts}")
    request = _c.LayerRequest(layer=layer, mtp=int(mtp), first_expert=first_expert,
                              experts=-1 if experts is None else experts)
    handle = _opened(path, assume)
    try:
        if torch.device(device).type == "cpu" and not fused:
            return _read(handle, request, progress)
        return _copied(handle, request, fused, torch.device(device), progress)
    finally:
        library().checkpoint_destroy(handle)


_Progress = Callable[[int, int], "bool | None"]


def _read(handle: int, request: _c.LayerRequest, progress: _Progress | None) -> ExpertWeights:
    """The experts of a request in host memory, which holds all of them together."""
    lib = library()
    memory = bytes_on(lib.ask("layer_bytes", handle, request), torch.device("cpu"))

    def report(_: int, done: int, total: int) -> int:
        return int(bool(progress(done, total)))  # type: ignore[misc]

    callback = _c.Progress(report) if progress is not None else _c.Progress()
    made = lib.make("load_layer", handle, request, workspace(memory), _c.Stream(_c.Device(), 0, _pool()), callback, None)
    try:
        look = _c.LayerView()
        lib.call("layer_look", made, look)
    finally:
        lib.layer_destroy(made)
    act = Activation(list(_c.ACTIVATIONS)[look.activation.kind], look.activation.alpha, look.activation.limit)
    return ExpertWeights(_projection(look.gate_up, memory), _projection(look.down, memory), act,
                         mode=list(_c.MODES)[look.mode], scheme=list(_c.SCHEMES)[look.scheme],
                         weight_on=list(_c.PLACEMENTS)[look.weight_on], experts_total=look.experts_total,
                         first_expert=look.first_expert)


_PIECE = 128 << 20  # bytes that are read before they are copied to their places: of whole experts, at least one


def _copied(handle: int, request: _c.LayerRequest, fused: bool, device: torch.device,
            progress: _Progress | None) -> ExpertWeights:
    """The same as tensors with memory of their own on a device. A few experts at a time are read into memory that is free
    again when they are in their places: what is loaded takes the memory of its codes, and little more on its way."""
    lib = library()
    whole = lib.ask("layer_bytes", handle, request)  # refuses what cannot be loaded
    total = _experts_of(handle, request)
    one = lib.ask("layer_bytes", handle, _part(request, 0, 1))
    step = total if whole <= _PIECE else max(1, _PIECE // one)
    made: ExpertWeights | None = None
    for at in range(0, total, step):
        count = min(step, total - at)

        def report(done: int, of: int, at: int = at, count: int = count) -> "bool | None":
            return progress(of // count * at + done, of // count * total)  # type: ignore[misc]

        read = _read(handle, _part(request, at, count), report if progress is not None else None)
        if made is None:
            made = replace(read, gate_up=_room(read.gate_up, total, fused, device), down=_room(read.down, total, fused, device))
        for name in ("gate_up", "down"):
            into, source = getattr(made, name), getattr(read, name)
            places = [into.weights, into.bias]
            if isinstance(source.weights, tuple) and fused:
                places = [_halves(place) for place in places]
            for place, tensor in zip(_tensors(*places), _tensors(source.weights, source.bias)):
                place[at:at + count].copy_(tensor)
    assert made is not None
    if request.first_expert == 0 and total == made.experts_total:
        made.experts_total = 0
    return made


def _part(request: _c.LayerRequest, at: int, count: int) -> _c.LayerRequest:
    return _c.LayerRequest(layer=request.layer, mtp=request.mtp, first_expert=request.first_expert + at, experts=count)


def _experts_of(handle: int, request: _c.LayerRequest) -> int:
    """How many experts a request is for."""
    if request.experts >= 0:
        return request.experts
    look, number = _c.CheckpointLayer(), 0
    while (look.layer, look.mtp) != (request.layer, request.mtp) or not look.experts:
        library().call("checkpoint_layer_at", handle, number, look)
        number += 1
    return look.experts - request.first_expert


def _tensors(*given: Any) -> list[torch.Tensor]:
    """All tensors of matrices, pairs of them and biases, in one order."""
    found = []
    for one in given:
        if isinstance(one, tuple):
            found += _tensors(*one)
        elif isinstance(one, Quantized):
            found += [tensor for tensor in (one.values, one.scales, one.global_scale) if tensor is not None]
        elif one is not None:
            found.append(one)
    return found


def _room(like: Projection, experts: int, fused: bool, device: torch.device) -> Projection:
    """Memory for so many experts of a projection; fused, a pair has one stack."""
    def room(given: Any, twice: bool = False) -> Any:
        if given is None or isinstance(given, torch.Tensor):
            if given is None:
                return None
            rest = list(given.shape[1:])
            if twice:  # a scale of each expert becomes two
                rest = [2 * rest[0], *rest[1:]] if rest else [2]
            return torch.empty((experts, *rest), dtype=given.dtype, device=device)
        if isinstance(given, tuple):
            return room(given[0], twice=True) if fused else tuple(map(room, given))
        return replace(given, values=room(given.values, twice), scales=room(given.scales, twice),
                       global_scale=room(given.global_scale, twice))

    return Projection(room(like.weights), room(like.bias))
