"""How B of an adapter for a stack of experts is laid out, as the adapter's file states it.

PEFT lays B out as [out, rank, experts], the expert fastest. unsloth before 2026.9.6 trained [out, experts, rank], and its
files said nothing about it; since then adapter_config.json has a stamp. What the file states is kept with each adapter of
each wrapper, and goes into the file again when the adapter is saved: PEFT drops keys that it does not know.
"""

from __future__ import annotations

import functools
import json
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .errors import InvalidArgumentError, MalformedFileError, UnsupportedError

LAYOUTS = ("peft", "unsloth")
STAMP, DETAIL = "lora_B_layout", "unsloth_fused_expert_lora"
_WORDS = {"rank_major": "peft", "grouped_by_expert": "unsloth"}
_STAMPS = {layout: word for word, layout in _WORDS.items()}

# The families whose experts unsloth_zoo computed with B grouped by expert before 2026.9.6. For any other family an unstamped
# file may be either (its own list: _LEGACY_GROUPED_LORA_B_FAMILIES in temporary_patches/moe_utils.py of 2026.10.9).
_GROUPED_BEFORE_STAMPS = frozenset((
    "deepseek_v3", "ernie4_5_moe", "ernie4_5_vl_moe", "gemma4", "glm4_moe", "glm4_moe_lite", "gpt_oss", "lfm2_moe", "mixtral",
    "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl_moe"))


@dataclass(frozen=True)
class Statement:
    """What an adapter_config.json says: one word for all parameters, or one for each; or that unsloth wrote it before it
    wrote stamps."""

    everywhere: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    unstamped: bool = False

    def word(self, parameter: str) -> str | None:
        return self.parameters.get(parameter, self.everywhere)


@dataclass
class Layout:
    """The layout of one adapter of one wrapper. `name` is None where nobody knows it."""

    name: str | None
    source: str
    binding: bool = False  # a file states it: set_layout may not say otherwise
    config: Any = None  # the adapter's config, which is what gets saved
    before: torch.Tensor | None = None  # a row of B as it was read, where unsloth may lay it out anew afterwards


def stated_in(content: dict[str, Any]) -> Statement:
    """The statement of an adapter_config.json; whatever contradicts itself or is no layout is refused."""
    mapping = content.get("auto_mapping")
    mapping = mapping if isinstance(mapping, dict) else {}
    everywhere: set[str] = set()
    parameters: dict[str, set[str]] = {}
    for source in (content, mapping):
        detail = source.get(DETAIL)
        if detail is not None and not isinstance(detail, dict):
            raise MalformedFileError(f"[lora] {DETAIL} of adapter_config.json is {detail!r}, not an object")
        detail = detail or {}
        a = detail.get("lora_A_layout", "grouped_by_expert")
        if a != "grouped_by_expert":
            raise UnsupportedError(f"[lora] adapter_config.json states lora_A_layout = {a!r}: only grouped_by_expert is known")
        everywhere.update(_known(given[STAMP], "all parameters") for given in (source, detail) if STAMP in given)
        for name, entry in (detail.get("parameters") or {}).items():
            if isinstance(entry, dict) and STAMP in entry:
                parameters.setdefault(name, set()).add(_known(entry[STAMP], name))
    for name, words in (("all parameters", everywhere), *((n, w | everywhere) for n, w in parameters.items())):
        if len(words) > 1:
            raise MalformedFileError(f"[lora] adapter_config.json contradicts itself: {STAMP} of {name} is "
                                     f"{' and '.join(sorted(words))}")
    stamped = bool(everywhere or parameters)
    return Statement(next(iter(everywhere), None), {name: next(iter(words)) for name, words in parameters.items()},
                     not stamped and bool(content.get("target_parameters")) and bool(mapping.get("unsloth_fixed")))


def _known(word: object, where: str) -> str:
    if word not in _WORDS:
        raise UnsupportedError(f"[lora] adapter_config.json states {STAMP} = {word!r} for {where}, which is neither of "
                               f"{', '.join(_WORDS)}")
    return str(word)


def is_wrapper(module: nn.Module) -> bool:
    return hasattr(module, "parameter_name") and any(kind.__name__ == "ParamWrapper" for kind in type(module).__mro__)


def layouts_of(wrapper: Any) -> dict[str, Layout]:
    """By adapter; empty where the wrapper was made before anybody looked."""
    return wrapper.__dict__.setdefault("_moe64_layouts", {})


def _either(wrapper: Any, adapter: str) -> bool:
    """Whether both layouts are the same, because there is one expert or one rank."""
    return wrapper.num_experts <= 1 or wrapper.lora_B[adapter].weight.shape[1] <= wrapper.num_experts


def layout_of(wrapper: Any, adapter: str) -> str:
    """"peft" or "unsloth"; refused where it is not known."""
    if _either(wrapper, adapter):
        return "peft"
    known = layouts_of(wrapper).get(adapter)
    if known is None:
        raise UnsupportedError(
            f"[lora] adapter '{adapter}' of {wrapper.parameter_name} was there before moe64.transformers was imported, so that "
            "what its file states about the layout of B was not seen: import it first, or state the layout with "
            "moe64.lora.set_layout(model, \"peft\")")
    if known.before is not None:
        _settle(wrapper, adapter, known)
    if known.name is None:
        raise UnsupportedError(f"[lora] the layout of B of adapter '{adapter}' of {wrapper.parameter_name} is not known: "
                               f"{known.source}. State it with moe64.lora.set_layout(model, \"peft\") or \"unsloth\"")
    if known.name == "unsloth" and _unsloth_loads():
        raise UnsupportedError(
            f"[lora] B of adapter '{adapter}' of {wrapper.parameter_name} is grouped by expert, and unsloth, which has "
            "replaced PEFT's loading, has not laid it out anew and would stamp it as PEFT's when it is saved: unset "
            "UNSLOTH_MOE_LORA_B_LAYOUT, or load it without unsloth")
    return known.name


def is_pefts(wrapper: Any, adapter: str) -> bool:
    """Whether PEFT's own arithmetic reads B as it is. Where nobody looked that is PEFT's affair."""
    return adapter not in layouts_of(wrapper) or layout_of(wrapper, adapter) == "peft"


def _unsloth_loads() -> bool:
    """Whether unsloth has replaced PEFT's loading: it then lays B out as PEFT does after the weights were read."""
    from peft import PeftModel
    return bool(getattr(PeftModel.load_adapter, "_unsloth_moe_layout_patched", False))


def _first_row(wrapper: Any, adapter: str) -> torch.Tensor:
    return wrapper.lora_B[adapter].weight.detach()[0]


def _settle(wrapper: Any, adapter: str, known: Layout) -> None:
    """Whether unsloth has laid B out anew since it was read is seen from its first row."""
    now, before = _first_row(wrapper, adapter), known.before
    assert before is not None
    before = before.to(now.device, now.dtype)
    if torch.equal(now, before.view(wrapper.num_experts, -1).t().reshape(-1)):
        known.name, known.source = "peft", "unsloth laid it out as PEFT does when it was loaded"
        _stamp(known.config, wrapper.parameter_name, "peft")
    elif not torch.equal(now, before):
        known.name, known.source = None, "it was changed after unsloth may have laid it out anew"
    known.before = None


def note(model: nn.Module, adapter: str, config: Any) -> None:
    """Keeps the layout of an adapter, as the file of its config states it, with each of its wrappers."""
    if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA":
        return
    statement = config.__dict__.get("_moe64_statement")
    fresh = statement is None
    if fresh:  # made by hand, or read from a file before anybody looked
        statement = stated_in({"auto_mapping": config.auto_mapping,
                               "target_parameters": getattr(config, "target_parameters", None)})
    for wrapper in model.modules():
        if is_wrapper(wrapper) and adapter in wrapper.lora_B:  # type: ignore[operator]
            layouts_of(wrapper)[adapter] = _resolved(wrapper, adapter, config, statement, fresh)


def _resolved(wrapper: Any, adapter: str, config: Any, statement: Statement, fresh: bool) -> Layout:
    parameter, word = wrapper.parameter_name, statement.word(wrapper.parameter_name)
    if word is not None:
        found = Layout(_WORDS[word], f"its file states {STAMP} = {word}", True, config)
    elif statement.parameters:
        found = Layout(None, f"its file states the layout of {', '.join(sorted(statement.parameters))} alone", False, config)
    elif not statement.unstamped:
        return Layout("peft", "PEFT's own", False, config)
    elif fresh:
        found = Layout(None, "unsloth has marked its config, and its file was not seen", False, config)
    elif _family(wrapper) in _GROUPED_BEFORE_STAMPS:
        found = Layout("unsloth", "unsloth wrote its file before it stamped layouts", False, config)
    else:
        found = Layout(None, "unsloth wrote its file before it stamped layouts, and how it trained experts of "
                             f"'{_family(wrapper)}' is not known", False, config)
    if found.name == "unsloth":
        if getattr(wrapper.lora_B[adapter].weight, "_unsloth_lora_b_repacked", None) is not None:
            found.name, found.source = "peft", "unsloth laid it out as PEFT does when it was loaded"
        elif _unsloth_loads() and not wrapper.lora_B[adapter].weight.is_meta and not _either(wrapper, adapter):
            found.before = _first_row(wrapper, adapter).clone()
    if found.name is not None:
        _stamp(config, parameter, found.name)
    return found


def _family(wrapper: Any) -> str | None:
    """model_type of the experts' config; that of a text model inside of another without its ending."""
    config = getattr(wrapper.get_base_layer(), "config", None)
    kind = config.get("model_type") if isinstance(config, dict) else getattr(config, "model_type", None)
    return kind.removesuffix("_text") if isinstance(kind, str) else None


# ---- stating and saving it ----------------------------------------------------------------------

def state(model: nn.Module, layout: str, adapter: str | None) -> int:
    """What moe64.lora.set_layout does: checks all, then changes all."""
    chosen = [(wrapper, [name for name in wrapper.lora_B if adapter in (None, name)])  # type: ignore[union-attr]
              for wrapper in model.modules() if is_wrapper(wrapper)]
    if adapter is not None and not any(names for _, names in chosen):
        raise InvalidArgumentError(f"[set_layout] adapter is '{adapter}', which no expert parameter of {type(model).__name__} "
                                   "has")
    for wrapper, names in chosen:
        for name in names:
            known = layouts_of(wrapper).get(name)
            if known is not None and known.before is not None:
                _settle(wrapper, name, known)
            if known is not None and known.binding and known.name not in (None, layout):
                raise InvalidArgumentError(f"[set_layout] layout is '{layout}', but adapter '{name}' of "
                                           f"{wrapper.parameter_name} has '{known.name}': {known.source}")
    for wrapper, names in chosen:
        for name in names:
            old = layouts_of(wrapper).get(name)
            config = old.config if old is not None else _config_of(model, name)
            layouts_of(wrapper)[name] = Layout(layout, "set_layout", old is not None and old.binding, config)
            _stamp(config, str(wrapper.parameter_name), layout)
    return sum(1 for _, names in chosen if names)


def _config_of(model: nn.Module, adapter: str) -> Any:
    tables = [module.__dict__.get("peft_config") for module in model.modules()]
    return next((table[adapter] for table in tables if isinstance(table, dict) and adapter in table), None)


def _stamp(config: Any, parameter: str, layout: str) -> None:
    """What the file shall say when the adapter is saved."""
    if config is not None:
        config.__dict__.setdefault("_moe64_stamps", {})[parameter] = _STAMPS[layout]


def _write_stamp(path: str, stamps: dict[str, str]) -> None:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    content[DETAIL] = {"lora_A_layout": "grouped_by_expert",
                       "parameters": {name: {STAMP: word} for name, word in sorted(stamps.items())}}
    if len(set(stamps.values())) == 1:
        content[STAMP] = content[DETAIL][STAMP] = next(iter(stamps.values()))
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, sort_keys=True))


# ---- where PEFT reads and writes ----------------------------------------------------------------

def install() -> None:
    """Looks on where PEFT reads configs, makes and loads adapters, and writes configs."""
    from peft import LoraConfig, PeftModel
    from peft.config import PeftConfigMixin
    from peft.tuners.lora import LoraModel
    from peft.utils import hotswap

    read, write = PeftConfigMixin.from_peft_type.__func__, PeftConfigMixin.save_pretrained  # type: ignore[attr-defined]
    inject, load = LoraModel.inject_adapter, PeftModel.load_adapter
    compare = hotswap.check_hotswap_configs_compatible

    @functools.wraps(read)
    def from_peft_type(cls: Any, **content: Any) -> Any:
        statement = stated_in(content)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", rf"Unexpected keyword arguments \['({STAMP}|{DETAIL})'(, '{DETAIL}')?\] ")
            config = read(cls, **content)
        if isinstance(config, LoraConfig):
            config.__dict__["_moe64_statement"] = statement
        return config

    @functools.wraps(write)
    def save_pretrained(self: Any, save_directory: str, **options: Any) -> Any:
        answer = write(self, save_directory, **options)
        stamps = self.__dict__.get("_moe64_stamps")
        if stamps:
            _write_stamp(os.path.join(save_directory, "adapter_config.json"), stamps)
        return answer

    @functools.wraps(inject)
    def inject_adapter(self: Any, model: nn.Module, adapter_name: str, *args: Any, **options: Any) -> None:
        inject(self, model, adapter_name, *args, **options)
        note(model, adapter_name, self.peft_config[adapter_name])

    @functools.wraps(load)
    def load_adapter(self: Any, model_id: Any, adapter_name: str, *args: Any, **options: Any) -> Any:
        statement = None
        if adapter_name in self.peft_config:  # PEFT reads weights alone into an adapter that is there
            statement = _statement_of_file(self, model_id, options)
        answer = load(self, model_id, adapter_name, *args, **options)
        config = self.peft_config[adapter_name]
        if statement is not None:
            config.__dict__["_moe64_statement"] = statement
            config.__dict__.pop("_moe64_stamps", None)
        note(self, adapter_name, config)  # of the weights that are there now
        return answer

    @functools.wraps(compare)
    def check_hotswap_configs_compatible(config0: Any, config1: Any) -> None:
        compare(config0, config1)
        old, new = (config.__dict__.get("_moe64_statement", Statement()) for config in (config0, config1))
        if old != new:
            raise UnsupportedError(f"[lora] an adapter whose file states {old} about the layout of B cannot be swapped for one "
                                   f"whose file states {new}: load it as another adapter")

    PeftConfigMixin.from_peft_type = classmethod(from_peft_type)  # type: ignore[assignment]
    PeftConfigMixin.save_pretrained = save_pretrained  # type: ignore[method-assign]
    LoraModel.inject_adapter = inject_adapter  # type: ignore[method-assign]
    PeftModel.load_adapter = load_adapter  # type: ignore[method-assign]
    hotswap.check_hotswap_configs_compatible = check_hotswap_configs_compatible


def _statement_of_file(model: Any, model_id: Any, options: dict[str, Any]) -> Statement | None:
    from peft import PeftConfig
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT has said it when it read this file before
            config = PeftConfig.from_pretrained(str(model_id), **model._split_kwargs(options)[0])
    except ValueError as error:
        if isinstance(error, (MalformedFileError, InvalidArgumentError)):
            raise
        return None  # weights without a config state nothing
    return config.__dict__.get("_moe64_statement")
