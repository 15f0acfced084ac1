"""save_pretrained and push_to_hub of models whose experts are codes: a checkpoint that is whole, or nothing."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import transformers as hf

from .._adapter_layout import is_wrapper
from ..codes import CodeExperts
from ..errors import UnsupportedError
from ..lora import is_ours
from .checkpoint import save, source_of

_save_pretrained, _push_to_hub = hf.PreTrainedModel.save_pretrained, hf.PreTrainedModel.push_to_hub
_ARGUMENTS = inspect.signature(_save_pretrained)
# What would make another checkpoint than the one that the codes are from.
_OTHERWISE = {"variant": None, "save_original_format": True, "distributed_checkpoint": False, "push_to_hub": False}


def _codes_of(model: Any) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, CodeExperts)]


def _require_bare(model: Any, has_codes: bool) -> None:
    """What is inside of PEFT's wrappers Transformers would write under the wrappers' names, and a load would fill experts with
    random values."""
    around = [(name, module) for name, module in model.named_modules() if hasattr(module, "get_base_layer")]
    wrapped = [name for name, module in around if has_codes or (is_wrapper(module) and is_ours(module.get_base_layer()))]
    if wrapped:
        which = f"{wrapped[0]}{f' and {len(wrapped) - 1} more' if len(wrapped) > 1 else ''} of {type(model).__name__}"
        raise UnsupportedError(f"[save_pretrained] {which} have adapters of PEFT around them, so that no load would find them; "
                               "nothing was written. PeftModel.save_pretrained saves adapters; unload() them to save the base")


@contextmanager
def _without_requantising(model: Any) -> Iterator[None]:
    """While it saves Transformers makes codes of its own of matrices that it has expanded when it loaded, and of others. What
    it has expanded is compared with the codes of the source instead."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None or getattr(model, "hf_quantizer", None) is not None:
        yield
        return
    kept = [one for one in conversions
            if not getattr(one, "operations", ()) or not all(hasattr(op, "hf_quantizer") for op in one.operations)]
    model._weight_conversions = kept
    try:
        yield
    finally:
        model._weight_conversions = conversions


@functools.wraps(_save_pretrained)
def _save_whole(self: Any, *args: Any, **options: Any) -> Any:
    if getattr(self, "_hf_peft_config_loaded", False):  # adapters that Transformers holds itself are saved alone
        return _save_pretrained(self, *args, **options)
    codes = _codes_of(self)
    given = _ARGUMENTS.bind(self, *args, **options).arguments
    state = given.get("state_dict")
    if codes or state is None:  # the caller's own tensors may have better names
        _require_bare(self, bool(codes))
    if not codes:
        return _save_pretrained(self, *args, **options)
    if not given.get("is_main_process", True):
        return None
    for name, usual in _OTHERWISE.items():
        if given.get(name, usual) != usual:
            instead = "; model.push_to_hub(repo_id) uploads it" if name == "push_to_hub" else ""
            raise UnsupportedError(f"[save_pretrained] {name} is {given[name]!r}: a model whose experts are codes is "
                                   f"saved in its dialect, with {usual!r} alone{instead}; nothing was written")

    def write_rest(folder: Path) -> None:
        kept = {} if state is None else {"state_dict": {
            name: tensor for name, tensor in state.items() if not name.startswith(tuple(f"{code}." for code in codes))}}
        more = {name: value for name, value in given.items() if name in ("max_shard_size", "token")}
        with _without_requantising(self):
            _save_pretrained(self, folder, **kept, **more)

    return save(self, given["save_directory"], given.get("max_shard_size", "50GB"), write_rest)


@functools.wraps(_push_to_hub)
def _push_whole(self: Any, *args: Any, **options: Any) -> Any:
    """It saves into a folder and uploads that; what will be refused for sure is, before a repository is made for it."""
    if not getattr(self, "_hf_peft_config_loaded", False) and _codes_of(self):
        _require_bare(self, has_codes=True)
        source_of(self)
    return _push_to_hub(self, *args, **options)


def install() -> None:
    """Puts both before the methods of all models of Transformers."""
    hf.PreTrainedModel.save_pretrained = _save_whole  # type: ignore[method-assign]
    hf.PreTrainedModel.push_to_hub = _push_whole  # type: ignore[method-assign]
