"""A model whose experts are codes becomes a checkpoint in the dialect that it came from.

What is codes is copied from the files that the model was loaded from, byte by byte and under its names, after the model's codes
were compared with them; the rest is what Transformers saves. The new folder is built apart and put into place when it is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch import nn

from .._code_module import as_bytes, format_of
from ..checkpoint import inspect, load_experts
from ..codes import CodeExperts
from ..elementwise import dequantize
from ..errors import IoFailureError, Moe64Error, UnsupportedError
from ..formats import Quantized
from . import shards
from .shards import Range

_SCALES = ("weight_scale_inv", "scale", "qscale_weight", "weight_scale")
_CONFIGS = ("quantization_config", "compression_config")
_STALE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


def save(model: nn.Module, out: "str | os.PathLike[str]", limit: "int | str", write_rest: Callable[[Path], object]) -> None:
    """Writes the checkpoint of a model to `out`. write_rest(folder) makes Transformers save all but the experts there."""
    into, room = Path(out), shards.size_of(limit)
    source = source_of(model)
    if into.exists() and not into.is_dir():
        _refuse(f"{into} is no folder")
    if into.exists() and into.resolve() == source.resolve():
        _refuse(f"{into} is the checkpoint that the model was loaded from, and its codes are read from there: choose another "
                "folder")
    described = _sound(source)
    _require_same_codes(model, source)
    into.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{into.name}.saving-", dir=into if into.is_dir() else into.parent))
    try:
        with _without_state(model):
            write_rest(building)
        _complete(model, source, building, room)
        if _sound(building) != described:
            _refuse(f"the experts would not be those of {source}")
        _put_in_place(building, into)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _refuse(why: str) -> None:
    raise UnsupportedError(f"[save_pretrained] {why}; nothing was written")


def _experts_of(model: nn.Module) -> Iterator[tuple[str, CodeExperts]]:
    for name, module in model.named_modules():
        if isinstance(module, CodeExperts):
            yield name, module


@contextmanager
def _without_state(model: nn.Module) -> Iterator[None]:
    """While the state of a model is taken its experts that are codes have none."""
    def drop(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        for name in (*module._parameters, *module._buffers):
            state.pop(prefix + name, None)

    hooks = [module.register_state_dict_post_hook(drop) for _, module in _experts_of(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def source_of(model: nn.Module) -> Path:
    """The one folder that all experts came from."""
    found: dict[str, str] = {}
    for name, module in _experts_of(model):
        if module.source is None:
            _refuse(f"{name} was made of tensors and not loaded from a checkpoint, and codes are copied from there")
            continue
        found.setdefault(module.source[0], name)
    if len(found) > 1:
        _refuse(f"{' and '.join(found.values())} are codes of different checkpoints, {' and '.join(found)}")
    source = Path(next(iter(found)))
    if not source.is_dir():
        _refuse(f"{next(iter(found.values()))} and the other experts are codes of {source}, which is not there any more")
    return source


def _sound(folder: Path) -> list[dict[str, Any]]:
    """What the experts of every layer are, from the headers."""
    seen = inspect(folder)
    errors = [finding["text"] for finding in seen["findings"] if finding["level"] == "error"]
    if errors:
        _refuse(f"{folder} is not sound: {errors[0]}")
    return [layer for layer in seen["layers"] if not layer["mtp"]]


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(one, other)


def _held(module: CodeExperts, name: str) -> "torch.Tensor | None":
    """A tensor of a module, also where accelerate has taken it away until the next call."""
    tensor = getattr(module, name)
    if tensor is not None and tensor.device.type == "meta":
        weights = getattr(module.__dict__.get("_hf_hook"), "weights_map", None)
        tensor = None if weights is None else weights[name]
    return tensor


def _require_same_codes(model: nn.Module, source: Path) -> None:
    """Codes, scales and biases of the model are those of the files, layer by layer."""
    for name, module in _experts_of(model):
        assert module.source is not None
        try:
            stored = load_experts(source, module.source[1], fused=True)
        except Moe64Error as error:
            _refuse(f"{name} cannot be read from {source} again: {error}")
            raise
        first = "gate_up_proj" if module.has_gate else "up_proj"
        for key, projection in ((first, stored.gate_up), ("down_proj", stored.down)):
            pairs = [("", projection.weights)]
            if isinstance(projection.weights, Quantized):
                q = as_bytes(projection.weights)
                if module._formats.get(key) != format_of(q):
                    _refuse(f"{name}.{key} has codes of another format than {source}: the files have changed")
                pairs = [("", q.values), ("_scales", q.scales), ("_global_scale", q.global_scale)]
            for suffix, expected in pairs:
                _require_same(f"{name}.{key}{suffix}", _held(module, key + suffix), expected, source)
            bias = _held(module, key + "_bias")
            expected = projection.bias if bias is None or projection.bias is None else projection.bias.to(bias.dtype)
            _require_same(f"{name}.{key}_bias", bias, expected, source)


def _require_same(name: str, held: "torch.Tensor | None", stored: "torch.Tensor | None", source: Path) -> None:
    if held is None and stored is None:
        return
    same = held is not None and stored is not None and (held.shape, held.dtype) == (stored.shape, stored.dtype)
    if not (same and _same_bytes(held, stored)):  # type: ignore[arg-type]
        _refuse(f"{name} is not what {source} has: the model or the files have changed since it was loaded")


def _scale_of(name: str, stored: dict[str, Range]) -> "str | None":
    """The scale of a weight of that name."""
    base = name.removesuffix("weight")
    return next((base + suffix for suffix in _SCALES if base + suffix in stored), None) if base != name else None


def _complete(model: nn.Module, source: Path, folder: Path, room: int) -> None:
    """Makes of what Transformers has saved there the whole checkpoint."""
    stored, rest = shards.tensors_in(source), shards.tensors_in(folder)
    copied = set()
    for name, tensor in rest.items():
        if _is_scale_of_codes(name, stored):
            copied.add(name)  # comes with its weight
        elif name not in stored:
            _refuse(f"Transformers calls a tensor of {type(model).__name__} {name}, and {source} has none of that name: the "
                    "experts would not be named as the rest is")
        elif stored[name].is_codes:
            _require_unchanged(name, tensor, rest, stored, source)
            copied.add(name)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    kept = {name: tensor for name, tensor in rest.items() if name not in copied}
    taken = {name: tensor for name, tensor in stored.items() if name not in kept and name not in tied}
    parts = [*shards.split(kept, room), *shards.split(taken, room)]
    old = {tensor.file for tensor in rest.values()}
    weight_map: dict[str, str] = {}
    for file, part in zip(shards.names_of(len(parts)), parts):
        shards.write(folder / f"{file}.new", part)
        weight_map.update(dict.fromkeys(part, file))
    for earlier in old | {folder / shards.INDEX}:
        earlier.unlink(missing_ok=True)
    for file in set(weight_map.values()):
        (folder / f"{file}.new").rename(folder / file)
    total = sum(tensor.bytes for part in parts for tensor in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    shards.write_text(folder / shards.INDEX, json.dumps(index, indent=2) + "\n")
    _state_quantisation(source, folder)


def _is_scale_of_codes(name: str, stored: dict[str, Range]) -> bool:
    """Whether a tensor belongs to a weight that the checkpoint has as codes."""
    base, _, last = name.rpartition(".")
    weight = stored.get(f"{base}.weight")
    return last in (*_SCALES, "activation_scale", "input_scale") and weight is not None and weight.is_codes


def _require_unchanged(name: str, tensor: Range, rest: dict[str, Range], stored: dict[str, Range], source: Path) -> None:
    """Codes outside of the experts: as codes they are compared with those of the files, as values with what those mean."""
    scale = _scale_of(name, stored)
    if scale is None:
        _refuse(f"{source} has {name} as {stored[name].dtype} and no scale for it")
        return
    ours = next((rest[key] for key in (scale, f"{name}_scale_inv") if key in rest), None)
    if tensor.dtype == stored[name].dtype:
        same = torch.equal(tensor.raw(), stored[name].raw())
        given, expected = None if ours is None else ours.read(), stored[scale].read()
        if given is not None and expected is not None:
            same = same and torch.equal(given.float().reshape(-1), expected.float().reshape(-1))
    else:
        same = _means(tensor, stored[name], stored[scale], source)
    if not same:
        _refuse(f"{name} is not what {source} has: what is codes there cannot be saved with other values in its dialect")


def _means(tensor: Range, codes: Range, scales: Range, source: Path) -> bool:
    """Whether a tensor has the values of codes, as they were expanded."""
    given, values, grid = tensor.read(), codes.read(), scales.read()
    if given is None or values is None or grid is None or values.dim() != 2:
        return False
    config = _quantisation(json.loads((source / "config.json").read_text()))
    block = config.get("weight_block_size")
    layout = "tensor" if grid.numel() == 1 else "row" if grid.numel() == values.shape[0] and not block else ""
    if block and grid.dim() == 2:
        layout = f"block:{block[0]}x{block[1]}"
    if not layout:
        return False
    grid = grid.reshape(1, 1) if layout == "tensor" else grid.reshape(-1, 1) if layout == "row" else grid
    expanded = dequantize(values, grid, layout, dtype=torch.float32)
    return any(torch.equal(given, expanded.to(kind).to(given.dtype)) for kind in (given.dtype, torch.bfloat16, torch.float16))


def _quantisation(config: dict[str, Any]) -> dict[str, Any]:
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in _CONFIGS:
            if isinstance(part.get(key), dict):
                return part[key]
    return {}


def _state_quantisation(source: Path, folder: Path) -> None:
    """config.json states the quantisation in the words, and at the place, of the source; also who named the tensors."""
    stated, config = (json.loads((path / "config.json").read_text()) for path in (source, folder))
    for key in (None, *(key for key, value in stated.items() if isinstance(value, dict) and key not in _CONFIGS)):
        there, here = (stated, config) if key is None else (stated[key], config.get(key))
        for word in _CONFIGS:
            if isinstance(here, dict):
                here.pop(word, None)
            if word in there:
                if not isinstance(here, dict):
                    _refuse(f"config.json of {source} states its quantisation in {key}, and Transformers writes no {key}")
                    return
                here[word] = there[word]
    config.pop("transformers_version", None)
    config.update((key, stated[key]) for key in ("transformers_version",) if key in stated)
    shards.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _put_in_place(building: Path, into: Path) -> None:
    """Into a new folder at once. In one that is there the index is taken away first and comes last, so that what a save leaves
    behind that was cut off is seen not to be whole; what is not the model's stays."""
    for file in building.iterdir():
        if file.is_dir():
            raise IoFailureError(f"[save_pretrained] Transformers has made a folder {file.name}, which moe64 does not expect")
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    if not into.exists():
        building.chmod(0o777 & ~_umask())
        building.rename(into)
        shards.flush_folder(into.parent)
        return
    (into / shards.INDEX).unlink(missing_ok=True)
    for file in into.iterdir():
        if file.is_file() and _STALE.fullmatch(file.name):
            file.unlink()
    shards.flush_folder(into)
    for file in sorted(building.iterdir(), key=lambda file: file.name == shards.INDEX):
        file.replace(into / file.name)
    shards.flush_folder(into)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
