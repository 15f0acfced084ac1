"""What moe64 raises: every refusal of the library carries its code, the operation, the argument and the values.

    >>> import moe64
    >>> try:
    ...     moe64.dequantize(codes, scales=None, layout="block:128x128")   # doctest: +SKIP
    ... except moe64.MissingScaleError as refusal:
    ...     print(refusal.code, refusal.name)
    5 missing_scale
"""

from __future__ import annotations


class Moe64Error(Exception):
    """A refused call. `code` is the library's status, `name` its stable word, `message` the whole text."""

    code: int = 0
    name: str = "error"

    def __init__(self, message: str, code: int | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if name is not None:
            self.name = name

    def __reduce__(self) -> tuple:
        return type(self), (self.message, self.code, self.name)


class InvalidArgumentError(Moe64Error, ValueError):
    code, name = 1, "invalid_argument"


class ShapeMismatchError(Moe64Error, ValueError):
    code, name = 2, "shape_mismatch"


class DtypeMismatchError(Moe64Error, TypeError):
    code, name = 3, "dtype_mismatch"


class DeviceMismatchError(Moe64Error, ValueError):
    code, name = 4, "device_mismatch"


class MissingScaleError(Moe64Error, ValueError):
    code, name = 5, "missing_scale"


class InvalidExpertError(Moe64Error, IndexError):
    code, name = 6, "invalid_expert"


class SizeOverflowError(Moe64Error, OverflowError):
    code, name = 7, "size_overflow"


class WorkspaceError(Moe64Error):
    code, name = 8, "workspace_too_small"


class UnsupportedError(Moe64Error, NotImplementedError):
    code, name = 9, "unsupported"


class OutOfMemoryError(Moe64Error, MemoryError):
    code, name = 10, "out_of_memory"


class InternalError(Moe64Error, RuntimeError):
    code, name = 11, "internal"


class MalformedFileError(Moe64Error, ValueError):
    code, name = 12, "malformed_file"


class IoFailureError(Moe64Error, OSError):
    code, name = 13, "io_failure"


class InterruptedCallError(Moe64Error):
    code, name = 14, "interrupted"


class DeviceFailureError(Moe64Error, RuntimeError):
    code, name = 15, "device_failure"


class LibraryError(Moe64Error, ImportError):
    """libmoe64 was not found, or is not the one that this package was made for."""

    code, name = -1, "library"


class GradientError(Moe64Error, RuntimeError):
    """A gradient was asked for that does not exist, such as that of quantised weights."""

    code, name = 9, "unsupported"


__all__ = ["Moe64Error", "InvalidArgumentError", "ShapeMismatchError", "DtypeMismatchError", "DeviceMismatchError",
           "MissingScaleError", "InvalidExpertError", "SizeOverflowError", "WorkspaceError", "UnsupportedError",
           "OutOfMemoryError", "InternalError", "MalformedFileError", "IoFailureError", "InterruptedCallError",
           "DeviceFailureError", "LibraryError", "GradientError"]

BY_CODE: dict[int, type[Moe64Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError, ShapeMismatchError, DtypeMismatchError, DeviceMismatchError, MissingScaleError,
        InvalidExpertError, SizeOverflowError, WorkspaceError, UnsupportedError, OutOfMemoryError, InternalError,
        MalformedFileError, IoFailureError, InterruptedCallError, DeviceFailureError,
    )
}
