"""Bugs at the border to configs, models and adapters of others: each makes moe64 assume what nothing states."""

from mutant import Mutant

FACTS = "src/checkpoint/config/activation_facts.cpp"
ACTIVATION = "src/checkpoint/config/layer_activation.cpp"
FAMILIES = "python/moe64/families.py"
LAYOUTS = "python/moe64/_adapter_layout.py"

BORDER = [
    # activations of checkpoints
    Mutant("unknown_keys_ignored", ACTIVATION,
           "    for (unknown_activation_key const& unknown : facts_.unknown) {",
           "    for (unknown_activation_key const& unknown : decltype(facts_.unknown)()) {",
           "unit", "layer_activation.*"),
    Mutant("objects_are_no_activation", FACTS,
           "    if (looks_like_activation(key, of_experts) ||",
           "    if ((!member.is(json_kind::object) && looks_like_activation(key, of_experts)) ||",
           "unit", "layer_activation.*"),
    Mutant("functions_of_inner_objects_ignored", FACTS,
           "      if (!result_.function || !same_function(other->text(), result_.function->value)) {",
           "      if (other == nullptr && !same_function(\"\", \"\")) {",
           "unit", "layer_activation.*"),
    Mutant("limit_of_the_first_layer_for_all", ACTIVATION,
           "    index_t at = query_.layer;", "    index_t at = query_.layer * 0;",
           "unit", "layer_activation.*"),
    Mutant("silu_where_nothing_states_it", ACTIVATION,
           "    if (facts_.mistral_native) return \"silu\";", "    if (family_ == nullptr) return \"silu\";",
           "unit", "layer_activation.*"),
    Mutant("clamped_before_silu", "src/checkpoint/config/activation_keys.cpp",
           "     .clamped = activation::step_glu,\n     .source = \"Step3p7Experts",
           "     .clamped = activation::clamped_silu_glu,\n     .source = \"Step3p7Experts",
           "unit", "layer_activation.*"),
    Mutant("soft_caps_of_inkling2_forgotten", "src/checkpoint/config/activation_keys.cpp",
           "    {.model_types = \"inkling2\",", "    {.model_types = \"inkling2_release\",",
           "unit", "layer_activation.*"),
    Mutant("transforms_of_running_models_ignored", "src/checkpoint/config/quant_scheme_reader.cpp",
           "  refuse_transforms(config, found);\n", "  static_cast<void>(&refuse_transforms);\n",
           "unit", "quant_declaration.*"),
    Mutant("configs_beside_a_file_not_read", "src/checkpoint/files/folder.cpp",
           "    opened->read_neighbours(system, options.links);\n", "    static_cast<void>(&state::read_neighbours);\n",
           "unit", "CheckpointFolder.*Beside*"),
    # gates of classes
    Mutant("gate_by_its_function_alone", FAMILIES,
           "    if any(getattr(module, name, None) is not None for name in row.unset):", "    if False:",
           "python", "python/tests/test_families.py -k soft_caps"),
    Mutant("unserved_experts_not_told", FAMILIES,
           "        if is_decorated(module) or kind in _told:", "        if kind not in _told:",
           "python", "python/tests/test_families.py -k told_once"),
    Mutant("norm_behind_the_experts_dropped", FAMILIES,
           "    if getattr(module, \"has_post_expert_norm\", False):\n        return None\n", "",
           "python", "python/tests/test_own_gates.py python/tests/test_families.py -k norm"),
    # adapters
    Mutant("stamp_of_the_layout_ignored", LAYOUTS,
           "        everywhere.update(_known(given[STAMP], \"all parameters\") for given in (source, detail) if STAMP in given)",
           "        everywhere.update(())",
           "python", "python/tests/test_adapter_layouts.py -k grouped_by_expert"),
]
