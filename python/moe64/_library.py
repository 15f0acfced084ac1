"""Finds libmoe64, checks that it is the one this package was made for, and turns its refusals into exceptions."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Callable

from . import _c
from .errors import BY_CODE, LibraryError, Moe64Error

_PACKAGE = Path(__file__).resolve().parent
_NAME = {"darwin": "libmoe64.dylib", "win32": "moe64.dll"}.get(sys.platform, "libmoe64.so")


def _candidates() -> list[Path]:
    """Where the library may be, best first: MOE64_LIBRARY alone when it is set; the wheel; a build of this tree."""
    named = os.environ.get("MOE64_LIBRARY")
    if named:
        return [Path(named)]
    tree = _PACKAGE.parent.parent
    return [*sorted((_PACKAGE / "lib").glob(_NAME + "*")), tree / "build" / "release" / _NAME]


class Library:
    """libmoe64, loaded and checked. `call("gather", ...)` calls moe64_gather and raises what it refuses."""

    executor_destroy: Callable[[int], None]
    weights_destroy: Callable[[int], None]
    layer_destroy: Callable[[int], None]
    checkpoint_destroy: Callable[[int], None]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        try:
            self._dll.moe64_abi_version.restype = ctypes.c_int32
            self._dll.moe64_last_error.restype = ctypes.c_char_p
            self._dll.moe64_version.restype = ctypes.c_char_p
            self._dll.moe64_status_name.restype = ctypes.c_char_p
            self._dll.moe64_status_name.argtypes = [ctypes.c_int32]
            self.functions = {}
            for name, arguments in _c.STATUS_FUNCTIONS.items():
                function = getattr(self._dll, "moe64_" + name)
                function.argtypes, function.restype = arguments, ctypes.c_int32
                self.functions[name] = function
            for name in _c.DESTROY_FUNCTIONS:
                function = getattr(self._dll, "moe64_" + name)
                function.argtypes, function.restype = [ctypes.c_void_p], None
                setattr(self, name, function)
        except AttributeError as missing:
            raise LibraryError(f"{path} is not the libmoe64 of this package: {missing}") from None
        self._check()

    @property
    def version(self) -> str:
        return self._dll.moe64_version().decode()

    def _check(self) -> None:
        found = self._dll.moe64_abi_version()
        if found != _c.ABI_VERSION:
            raise LibraryError(f"{self.path} has ABI version {found}, this package was made for {_c.ABI_VERSION}")
        size = ctypes.c_int64()
        for name, kind in _c.structs().items():
            self.call("struct_bytes", name.encode(), size)
            ours = ctypes.sizeof(kind)
            # Structs that state their size may grow at the end; all others must be as declared here.
            grows = kind._fields_[0][0] == "struct_size"
            if size.value != ours and not (grows and size.value > ours):
                raise LibraryError(f"{self.path}: {name} has {size.value} bytes, this package declares {ours}")

    def call(self, name: str, *arguments: object) -> None:
        """Calls moe64_<name>; a status other than ok becomes the exception of that code."""
        status = self.functions[name](*arguments)
        if status != 0:
            raise self.refusal(status)

    def refusal(self, status: int) -> Moe64Error:
        word = self._dll.moe64_status_name(status).decode()
        message = self._dll.moe64_last_error().decode(errors="replace")
        return BY_CODE.get(status, Moe64Error)(message, status, word)

    def ask(self, name: str, *arguments: object) -> int:
        """A call whose last argument is the int64 that it answers."""
        answer = ctypes.c_int64()
        self.call(name, *arguments, answer)
        return answer.value

    def make(self, name: str, *arguments: object) -> int:
        """A call whose last argument is the handle that it makes."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, handle)
        assert handle.value is not None
        return handle.value


@lru_cache(maxsize=1)
def library() -> Library:
    """The library, found and loaded at the first call.

    Raises LibraryError with every place that was looked at.

        >>> moe64.library().path.name.startswith("libmoe64")
        True
    """
    tried = []
    for path in _candidates():
        if not path.is_file():
            tried.append(f"{path}: no such file")
            continue
        try:
            return Library(path)
        except OSError as problem:
            tried.append(f"{path}: {problem}")
    raise LibraryError("libmoe64 was not found (set MOE64_LIBRARY to its path, or run `make build`):\n  "
                       + "\n  ".join(tried))


def version() -> str:
    """The version of the loaded library.

        >>> moe64.version() == moe64.__version__
        True
    """
    return library().version


def cuda_devices() -> tuple[int, str]:
    """How many CUDA devices the library can use and, when it is none, why.

        >>> count, reason = moe64.cuda_devices()
    """
    reason = ctypes.create_string_buffer(512)
    count = ctypes.c_int64()
    library().call("cuda_devices", count, reason, len(reason))
    return count.value, reason.value.decode()


def tool() -> Path:
    """The `moe64` program that belongs to the loaded library.

    Raises LibraryError when there is none: a library of the system may come without it.

        >>> subprocess.run([moe64.tool(), "doctor"], check=True, capture_output=True)
    """
    named = os.environ.get("MOE64_TOOL")
    folder = library().path.resolve().parent
    places = [Path(named)] if named else [_PACKAGE / "bin" / "moe64", folder / "bin" / "moe64",
                                          folder.parent / "bin" / "moe64"]
    for place in places:
        if place.is_file():
            return place
    raise LibraryError("the moe64 tool was not found: " + ", ".join(map(str, places)))
