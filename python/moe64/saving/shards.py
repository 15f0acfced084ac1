"""Tensors as ranges of bytes in safetensors files: where they lie, and how they are copied into new files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Iterable

import torch

from .._torch import TORCH_DTYPES
from ..errors import InvalidArgumentError, IoFailureError, MalformedFileError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PIECE = 16 << 20
_MOST_HEADER = 100_000_000
_TYPES = {"F32": "f32", "BF16": "bf16", "F16": "f16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2", "F8_E8M0": "e8m0", "I8": "int8"}


@dataclass(frozen=True)
class Range:
    """One tensor in a file."""

    file: Path
    begin: int
    bytes: int
    dtype: str  # the word of the header
    shape: tuple[int, ...]

    @property
    def is_codes(self) -> bool:
        return self.dtype.startswith(("F8_", "F4")) or self.dtype in ("I8", "U8")

    def raw(self) -> torch.Tensor:
        """Its bytes."""
        data = bytearray(self.bytes)
        with open(self.file, "rb") as file:
            file.seek(self.begin)
            if file.readinto(data) != self.bytes:
                raise IoFailureError(f"[save_pretrained] {self.file} ends inside of a tensor")
        return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    def read(self) -> torch.Tensor | None:
        """The tensor, or None when its type has no meaning here."""
        word = _TYPES.get(self.dtype)
        dtype = getattr(torch, "float8_e8m0fnu", None) if word == "e8m0" else TORCH_DTYPES.get(word or "")
        return None if dtype is None else self.raw().view(dtype).reshape(self.shape)


def _header(file: Path) -> dict[str, Range]:
    size = file.stat().st_size
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(size - 8, _MOST_HEADER):
            raise MalformedFileError(f"[save_pretrained] {file} has a header of {length} bytes in {size}")
        try:
            entries = json.loads(opened.read(length))
            found = {}
            for name, entry in entries.items():
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                if not 0 <= begin <= end <= size - 8 - length:
                    raise ValueError(f"{name} lies outside of the file")
                found[name] = Range(file, 8 + length + begin, end - begin, entry["dtype"], tuple(entry["shape"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedFileError(f"[save_pretrained] {file}: {error}") from error
    return found


def tensors_in(folder: Path) -> dict[str, Range]:
    """Every tensor of a checkpoint."""
    index = folder / INDEX
    if index.is_file():
        files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    elif (folder / SINGLE).is_file():
        files = [folder / SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    found: dict[str, Range] = {}
    for file in files:
        for name, tensor in _header(file).items():
            if name in found:
                raise MalformedFileError(f"[save_pretrained] {name} is in {found[name].file.name} and in {file.name}")
            found[name] = tensor
    return found


def size_of(limit: "int | str") -> int:
    """Bytes of a max_shard_size such as 5000000, "5GB" or "512MiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", str(limit).strip(), re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise InvalidArgumentError(f"[save_pretrained] max_shard_size is {limit!r}, expected bytes or words such as '5GB'")
    power = " KMGT".index(match[2].upper() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def split(tensors: dict[str, Range], limit: int) -> list[dict[str, Range]]:
    """Tensors for files of at most `limit` bytes, in the order that they are given; a larger one has a file of its own."""
    parts: list[dict[str, Range]] = []
    room = 0
    for name, tensor in tensors.items():
        if not parts or tensor.bytes > room:
            parts.append({})
            room = limit
        parts[-1][name] = tensor
        room -= tensor.bytes
    return parts


def write(file: Path, tensors: dict[str, Range]) -> None:
    """A safetensors file of copies, flushed to the disk."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [end, end + tensor.bytes]}
        end += tensor.bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % 64)
    with open(file, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            _copy(tensor, out)
        _flush(out)


def _copy(tensor: Range, out: BinaryIO) -> None:
    with open(tensor.file, "rb", buffering=0) as source:
        source.seek(tensor.begin)
        left = tensor.bytes
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise IoFailureError(f"[save_pretrained] {tensor.file} ends inside of a tensor")
            out.write(piece)
            left -= len(piece)


def _flush(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def write_text(file: Path, text: str) -> None:
    with open(file, "wb") as out:
        out.write(text.encode())
        _flush(out)


def flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def names_of(count: int) -> Iterable[str]:
    return (f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))
