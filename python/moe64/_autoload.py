"""experts_implementation="moe64" without `import moe64.transformers`: that is imported when a model asks for the name.

`import torch` calls watch() where the wheel is installed (PyTorch loads the entry points of "torch.backends", unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0 says no), and `import moe64` does. Neither imports Transformers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
from typing import Any

_WHERE, _CLASS, _METHOD = "transformers.modeling_utils", "PreTrainedModel", "get_correct_experts_implementation"


def watch() -> None:
    """Makes models of Transformers, imported already or later, know the name "moe64"."""
    if _WHERE in sys.modules:
        _teach(sys.modules[_WHERE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself, and is gone when the module that it waits for has come."""

    _asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _WHERE or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _teach(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _teach(module: Any) -> None:
    kind = getattr(module, _CLASS, None)
    check = getattr(kind, _METHOD, None)
    if check is None or hasattr(check, "_moe64"):
        return

    @functools.wraps(check)
    def get_correct_experts_implementation(self: Any, requested_experts: Any, *args: Any, **options: Any) -> Any:
        if requested_experts == "moe64":
            importlib.import_module("moe64.transformers")
        return check(self, requested_experts, *args, **options)

    get_correct_experts_implementation._moe64 = True  # type: ignore[attr-defined]
    setattr(kind, _METHOD, get_correct_experts_implementation)
