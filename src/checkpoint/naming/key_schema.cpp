#include "checkpoint/naming/key_schema.hpp"

#include <array>
#include <cstddef>

namespace moe64::checkpoint {
namespace {

/// Consumes a name from the front; every step says whether it could.
class name_reader {
 public:
  explicit name_reader(std::string_view text) : text_(text) {}

  bool take(std::string_view word) noexcept {
    if (!rest().starts_with(word)) return false;
    position_ += word.size();
    return true;
  }

  bool number(index_t& value) noexcept {
    constexpr std::size_t max_digits = 9;
    std::size_t digits = 0;
    value = 0;
    while (digits < rest().size() && rest()[digits] >= '0' && rest()[digits] <= '9') {
      if (digits == max_digits || (digits == 1 && rest()[0] == '0')) return false;
      value = value * 10 + (rest()[digits++] - '0');
    }
    position_ += digits;
    return digits != 0;
  }

  [[nodiscard]] std::string_view rest() const noexcept { return text_.substr(position_); }
  [[nodiscard]] std::string_view before() const noexcept { return text_.substr(0, position_); }

 private:
  std::string_view text_;
  std::size_t position_ = 0;
};

struct part_word {
  std::string_view word;
  tensor_part part;
};

constexpr part_word words[] = {
    {"weight", tensor_part::weight},
    {"weight_packed", tensor_part::weight},
    {"weight_scale_inv", tensor_part::weight_scale_inv},
    {"weight_scale", tensor_part::weight_scale},
    {"scale", tensor_part::scale},
    {"qscale_weight", tensor_part::qscale_weight},
    {"weight_scale_2", tensor_part::weight_scale_2},
    {"weight_global_scale", tensor_part::weight_global_scale},
    {"input_scale", tensor_part::activation_scale},
    {"activation_scale", tensor_part::activation_scale},
    {"act_scale", tensor_part::activation_scale},
    {"input_global_scale", tensor_part::activation_scale},
    {"qscale_act", tensor_part::activation_scale},
    {"weight_shape", tensor_part::weight_shape},
    {"bias", tensor_part::bias},
};

constexpr part_word stack_words[] = {
    {"", tensor_part::weight},
    {"_blocks", tensor_part::weight},
    {"_scale_inv", tensor_part::weight_scale_inv},
    {"_weight_scale_inv", tensor_part::weight_scale_inv},
    {"_weight_scale", tensor_part::weight_scale},
    {"_scale", tensor_part::scale},
    {"_scales", tensor_part::scales},
    {"_weight_scale_2", tensor_part::weight_scale_2},
    {"_input_scale", tensor_part::activation_scale},
    {"_activation_scale", tensor_part::activation_scale},
    {"_bias", tensor_part::bias},
};

template <std::size_t Count>
tensor_part part_named(part_word const (&list)[Count], std::string_view text) noexcept {
  for (part_word const& entry : list) {
    if (entry.word == text) return entry.part;
  }
  return tensor_part::unknown;
}

bool take_projection(name_reader& name, projection_kind& kind) noexcept {
  if (name.take("gate_proj")) {
    kind = projection_kind::gate;
  } else if (name.take("up_proj")) {
    kind = projection_kind::up;
  } else if (name.take("down_proj")) {
    kind = projection_kind::down;
  } else {
    return false;
  }
  return true;
}

bool take_numbered(name_reader& name, projection_kind& kind) noexcept {
  if (name.take("w1")) {
    kind = projection_kind::gate;
  } else if (name.take("w3")) {
    kind = projection_kind::up;
  } else if (name.take("w2")) {
    kind = projection_kind::down;
  } else {
    return false;
  }
  return true;
}

bool take_ungated(name_reader& name, projection_kind& kind) noexcept {
  return take_projection(name, kind) && kind != projection_kind::gate;
}

bool take_fused(name_reader& name, projection_kind& kind) noexcept {
  if (name.take("gate_up_proj")) {
    kind = projection_kind::gate_up;
  } else if (name.take("down_proj")) {
    kind = projection_kind::down;
  } else {
    return false;
  }
  return true;
}

/// What follows a module with a dot: ".weight", ".weight_scale", ...
bool finish_dotted(name_reader& name, tensor_key& key) noexcept {
  key.module = name.before();
  if (!name.take(".")) return false;
  key.part = part_named(words, name.rest());
  if (name.rest() == "weight_packed") {
    if (key.schema != key_schema::mlp_proj) return false;
    key.schema = key_schema::mlp_proj_packed;
  }
  return true;
}

/// "E.gate_proj.weight" with the projections that `take` knows.
template <class Take>
bool finish_expert(name_reader& name, tensor_key& key, Take const& take) noexcept {
  return name.number(key.expert) && name.take(".") && take(name, key.projection) &&
         finish_dotted(name, key);
}

/// "gate_up_proj_scale": the part follows without a dot.
bool finish_stack(name_reader& name, tensor_key& key) noexcept {
  if (!take_fused(name, key.projection)) return false;
  key.module = name.before();
  std::string_view const end = name.rest();
  if (!end.empty() && end[0] != '_') return false;
  key.part = part_named(stack_words, end);
  if (key.schema == key_schema::mlp_stack && end == "_blocks")
    key.schema = key_schema::mlp_stack_blocks;
  return key.schema != key_schema::feed_forward_stack || (end != "_blocks" && end != "_scales");
}

/// "w13_weight", "w2_weight_scale": a stack of gate and up, or of down.
bool finish_numbered_stack(name_reader& name, tensor_key& key) noexcept {
  bool const both = name.take("w13_weight");
  if (!both && !name.take("w2_weight")) return false;
  key.projection = both ? projection_kind::gate_up : projection_kind::down;
  key.module = name.before();
  std::string_view const end = name.rest();
  if (!end.empty() && end[0] != '_') return false;
  key.part = part_named(stack_words, end);
  return end != "_blocks" && end != "_scales";
}

enum class prefix : std::uint8_t {
  bare,
  model,
  language_model,
  model_language,
  model_llm,
  backbone,
  mtp
};

bool match_layer(name_reader& name, prefix where, tensor_key& key) noexcept {
  bool const language = where == prefix::language_model;
  if (where == prefix::bare) {
    key.schema = name.take("ffn.experts.") ? key_schema::ffn_w123 : key_schema::experts_w123;
    if (key.schema == key_schema::experts_w123 && !name.take("experts.")) return false;
    return finish_expert(name, key, take_numbered);
  }
  if (name.take("mlp.experts.")) {
    char const first = name.rest().empty() ? '\0' : name.rest()[0];
    if (first >= '0' && first <= '9') {
      key.schema = where == prefix::mtp ? key_schema::mtp_mlp_proj : key_schema::mlp_proj;
      return finish_expert(name, key, take_projection);
    }
    if (where != prefix::mtp && first == 'w') {
      key.schema = key_schema::mlp_stack_w13;
      return finish_numbered_stack(name, key);
    }
    key.schema = key_schema::mlp_stack;
    return where != prefix::mtp && finish_stack(name, key);
  }
  if (where == prefix::model_llm) return false;
  if (name.take("mixer.experts.")) {
    key.schema = key_schema::mixer_proj;
    return finish_expert(name, key, take_ungated);
  }
  if (where == prefix::mtp || where == prefix::model_language || where == prefix::backbone) {
    return false;
  }
  if (name.take("block_sparse_moe.")) {
    if (name.take("experts.")) {
      key.schema = key_schema::block_sparse_moe_w123;
      return finish_expert(name, key, take_numbered);
    }
    key.schema = key_schema::block_sparse_moe_stack;
    key.projection = name.take("input_linear") ? projection_kind::gate_up : projection_kind::down;
    if (key.projection == projection_kind::down && !name.take("output_linear")) return false;
    return !language && finish_dotted(name, key);
  }
  if (name.take("feed_forward.experts.")) {
    char const first = name.rest().empty() ? '\0' : name.rest()[0];
    if (first >= '0' && first <= '9') {
      if (!name.number(key.expert) || !name.take(".")) return false;
      bool const numbered = !language && take_numbered(name, key.projection);
      key.schema = numbered ? key_schema::feed_forward_w123 : key_schema::feed_forward_proj;
      return (numbered || take_projection(name, key.projection)) && finish_dotted(name, key);
    }
    key.schema = key_schema::feed_forward_stack;
    return language && finish_stack(name, key);
  }
  key.schema = key_schema::moe_stack;
  return !language && name.take("moe.") && take_projection(name, key.projection) &&
         finish_dotted(name, key);
}

}  // namespace

std::string_view name(key_schema schema) noexcept {
  constexpr std::string_view names[key_schema_count] = {
      "mlp_proj",
      "mlp_proj_packed",
      "block_sparse_moe_w123",
      "ffn_w123",
      "mlp_stack",
      "mlp_stack_blocks",
      "feed_forward_proj",
      "feed_forward_stack",
      "moe_stack",
      "block_sparse_moe_stack",
      "experts_w123",
      "mtp_mlp_proj",
      "feed_forward_w123",
      "mixer_proj",
      "mlp_stack_w13",
  };
  auto const i = static_cast<std::size_t>(schema);
  return schema <= key_schema::mlp_stack_w13 ? names[i] : "unknown";
}

std::string_view name(projection_kind kind) noexcept {
  constexpr std::array<std::string_view, 4> names = {"gate", "up", "down", "gate_up"};
  auto const i = static_cast<std::size_t>(kind);
  return i < names.size() ? names[i] : "unknown";
}

std::string_view name(tensor_part part) noexcept {
  constexpr std::array<std::string_view, tensor_part_count> names = {
      "weight",           "weight_scale_inv", "weight_scale",   "scale",
      "scales",           "qscale_weight",    "weight_scale_2", "weight_global_scale",
      "activation_scale", "weight_shape",     "bias",           "unknown"};
  auto const i = static_cast<std::size_t>(part);
  return i < names.size() ? names[i] : "unknown";
}

std::optional<tensor_key> match_key(std::string_view text) noexcept {
  name_reader name(text);
  tensor_key key;
  prefix where = prefix::bare;
  if (name.take("model.language_model.")) {
    where = prefix::model_language;
  } else if (name.take("model.llm.")) {
    where = prefix::model_llm;
  } else if (name.take("backbone.") || name.take("language_model.backbone.")) {
    where = prefix::backbone;
  } else if (name.take("language_model.model.")) {
    where = prefix::language_model;
  } else if (name.take("model.")) {
    where = prefix::model;
  } else if (name.take("mtp.")) {
    key.mtp = true;
    where = name.rest().starts_with("layers.") ? prefix::mtp : prefix::bare;
  }
  // ffn_w123 numbers MTP layers without the word: mtp.0.ffn.experts...
  bool const numbered = key.mtp && where == prefix::bare;
  if (!numbered && !name.take("layers.")) return std::nullopt;
  if (!name.number(key.layer) || !name.take(".")) return std::nullopt;
  if (!match_layer(name, where, key)) return std::nullopt;
  if (numbered && key.schema != key_schema::ffn_w123) return std::nullopt;
  return key;
}

dense_key match_dense_key(std::string_view text) noexcept {
  auto const dot = text.rfind('.');
  if (dot == std::string_view::npos) return {tensor_part::unknown, false, text};
  std::string_view const word = text.substr(dot + 1);
  return {part_named(words, word), word == "weight_packed", text.substr(0, dot)};
}

}  // namespace moe64::checkpoint
