"""save_pretrained and push_to_hub of models whose experts Transformers cannot write: refused before anything is written."""

from __future__ import annotations

import functools
from typing import Any

import transformers as hf

from ._adapter_layout import is_wrapper
from .codes import CodeExperts
from .errors import UnsupportedError
from .lora import is_ours


def _require_names(model: Any, verb: str, own_tensors: bool = False) -> None:
    """Transformers has no names for codes that it did not load: it would write blocks of a wrong shape and scales that no
    loader finds, or stop half-way. Experts inside of PEFT's wrappers it would write under the wrappers' names, and a load
    would fill them with random values; the caller's own tensors may have better ones. With adapters that it holds itself it
    saves those alone."""
    if getattr(model, "_hf_peft_config_loaded", False):
        return
    codes = [name for name, module in model.named_modules() if isinstance(module, CodeExperts)]
    wrapped = [name for name, module in model.named_modules() if is_wrapper(module) and is_ours(module.get_base_layer())]
    if not codes and (own_tensors or not wrapped):
        return
    found = codes or wrapped
    which = f"{found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''} of {type(model).__name__}"
    why = "are codes as their checkpoint has them" if codes else "have adapters of PEFT around them"
    raise UnsupportedError(
        f"[{verb}] {which} {why}, which Transformers cannot write in a form that loads again; nothing was written. They are in "
        "the checkpoint that the model was loaded from: adapters are saved by PeftModel.save_pretrained, other formats written "
        "by moe64 convert")


def install() -> None:
    """Puts the refusal before both methods of all models of Transformers."""
    save_pretrained, push_to_hub = hf.PreTrainedModel.save_pretrained, hf.PreTrainedModel.push_to_hub
    if hasattr(save_pretrained, "_moe64"):
        return

    @functools.wraps(save_pretrained)
    def _save_or_refuse(self: Any, *args: Any, **options: Any) -> Any:
        _require_names(self, "save_pretrained", own_tensors=options.get("state_dict") is not None or len(args) > 2)
        return save_pretrained(self, *args, **options)

    @functools.wraps(push_to_hub)
    def _push_or_refuse(self: Any, *args: Any, **options: Any) -> Any:
        _require_names(self, "push_to_hub")
        return push_to_hub(self, *args, **options)

    _save_or_refuse._moe64 = True  # type: ignore[attr-defined]
    hf.PreTrainedModel.save_pretrained = _save_or_refuse  # type: ignore[method-assign]
    hf.PreTrainedModel.push_to_hub = _push_or_refuse  # type: ignore[method-assign]
