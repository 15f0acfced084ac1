#include "checkpoint/config/model_config.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace moe64::checkpoint {
namespace {

constexpr index_t max_layers = 100'000;

std::optional<library_version> parse_version(std::string_view text) {
  library_version version;
  auto const* const end = text.data() + text.size();
  auto const major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return std::nullopt;
  auto const minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc{}) return std::nullopt;
  return version;
}

/// moe_intermediate_size may be one number or a list of one per layer (Hunyuan).
fact<index_t> read_inter(config_facts const& facts) {
  constexpr std::string_view own_names[] = {"moe_intermediate_size", "expert_ffn_hidden_size",
                                            "moe_ffn_hidden_size", "expert_hidden_dim"};
  for (std::string_view const own_name : own_names) {
    json_value const* const value = facts.value({own_name});
    if (value == nullptr) continue;
    if (!value->is(json_kind::array)) return facts.integer({own_name});
    fact<index_t> result;
    for (json_value const& item : *value) {
      if (!item.is(json_kind::integer)) return std::nullopt;
      if (result && result->value != item.integer()) return std::nullopt;
      result = stated<index_t>{item.integer(), value->path()};
    }
    return result;
  }
  return facts.integer({"intermediate_size"});
}

model_geometry read_geometry(config_facts const& facts) {
  model_geometry geometry;
  geometry.hidden = facts.integer({"moe_latent_size"});  // Nemotron-3
  if (!geometry.hidden) geometry.hidden = facts.integer({"hidden_size", "dim"});
  geometry.inter = read_inter(facts);
  geometry.experts =
      facts.integer({"n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"});
  geometry.top_k = facts.integer({"num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k"});
  geometry.layers = facts.integer({"num_hidden_layers", "num_layers", "n_layers"});
  geometry.mtp_layers = facts.integer(
      {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"});
  for (auto const* const extent :
       {&geometry.hidden, &geometry.inter, &geometry.experts, &geometry.top_k}) {
    if (*extent && (*extent)->value < 1) {
      facts.found().error(errc::invalid_argument, "config-value", "",
                          "{} is {}, expected at least 1", (*extent)->source, (*extent)->value);
    }
  }
  if (geometry.layers && (geometry.layers->value < 0 || geometry.layers->value > max_layers)) {
    facts.found().error(errc::invalid_argument, "config-value", "", "{} is {}, expected 0 to {}",
                        geometry.layers->source, geometry.layers->value, max_layers);
    geometry.layers.reset();
  }
  return geometry;
}

/// The different ways of saying which layers have experts, each of which can only take away.
class layer_reader {
 public:
  layer_reader(config_facts const& facts, model_config& config)
      : facts_(facts), config_(config), layers_(config.geometry.layers->value) {}

  void read() {
    flags_.assign(static_cast<std::size_t>(layers_), true);
    if (auto const first = facts_.integer({"first_k_dense_replace", "moe_layer_start_index"})) {
      keep(first->source, [&](index_t layer) { return layer >= first->value; });
    }
    if (auto const step = facts_.integer(
            {"decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"});
        step && step->value > 0) {
      keep(step->source, [&](index_t layer) { return (layer + 1) % step->value == 0; });
    }
    if (auto const dense = facts_.integer({"num_dense_layers"})) {  // LFM2
      keep(dense->source, [&](index_t layer) { return layer >= dense->value; });
    }
    if (auto const period = facts_.integer({"expert_layer_period"}); period && period->value > 0) {
      auto const offset = facts_.integer({"expert_layer_offset"});  // Jamba
      index_t const first = offset ? offset->value : 0;
      keep(period->source, [&](index_t layer) { return (layer - first) % period->value == 0; });
    }
    if (auto const* const dense = facts_.value({"mlp_only_layers"})) {
      auto const list = numbers(*dense);
      keep(dense->path(), [&](index_t layer) { return !contains(list, layer); });
    }
    if (auto const* const sparse = facts_.value({"moe_layers"})) {
      auto const list = numbers(*sparse);
      keep(sparse->path(), [&](index_t layer) { return contains(list, layer); });
    }
    read_frequency();
    read_enumeration();
    read_types();
    read_blocks();
    if (!config_.moe_layers_source.empty()) config_.moe_layers = std::move(flags_);
  }

 private:
  template <class Keeps>
  void keep(std::string const& source, Keeps const& keeps) {
    for (index_t layer = 0; layer < layers_; ++layer) {
      auto const i = static_cast<std::size_t>(layer);
      flags_[i] = flags_[i] && keeps(layer);
    }
    if (config_.moe_layers_source.empty()) config_.moe_layers_source = source;
  }

  /// moe_layer_freq: every n-th layer, or one flag per layer (MiMo).
  void read_frequency() {
    json_value const* const frequency = facts_.value({"moe_layer_freq"});
    if (frequency == nullptr) return;
    if (frequency->is(json_kind::array)) {
      auto const list = numbers(*frequency);
      keep(frequency->path(), [&](index_t layer) {
        auto const i = static_cast<std::size_t>(layer);
        return i >= list.size() || list[i] != 0;
      });
    } else if (frequency->is(json_kind::integer) && frequency->integer() > 0) {
      index_t const step = frequency->integer();
      keep(frequency->path(), [&](index_t layer) { return layer % step == 0; });
    }
  }

  /// moe_layers_enum: "3,4,5" (Step).
  void read_enumeration() {
    auto const text = facts_.text({"moe_layers_enum"});
    if (!text) return;
    std::vector<index_t> list;
    char const* at = text->value.data();
    char const* const end = at + text->value.size();
    while (at < end) {
      index_t layer = 0;
      auto const parsed = std::from_chars(at, end, layer);
      if (parsed.ec != std::errc{}) return;
      list.push_back(layer);
      at = parsed.ptr + 1;
    }
    std::sort(list.begin(), list.end());
    keep(text->source,
         [&](index_t layer) { return std::binary_search(list.begin(), list.end(), layer); });
  }

  /// mlp_layer_types: "dense" or "sparse" per layer (GLM).
  void read_types() {
    json_value const* const types = facts_.value({"mlp_layer_types"});
    if (types == nullptr || !types->is(json_kind::array)) return;
    std::vector<bool> dense;
    for (json_value const& type : *types) {
      dense.push_back(type.is(json_kind::text) && type.text() == "dense");
    }
    keep(types->path(), [&](index_t layer) {
      auto const i = static_cast<std::size_t>(layer);
      return i >= dense.size() || !dense[i];
    });
  }

  /// What a layer is, where it is only one thing (Nemotron-H): "E" in a pattern, or "moe" in a
  /// list.
  void read_blocks() {
    if (auto const pattern = facts_.text({"hybrid_override_pattern"})) {
      std::string_view const letters = pattern->value;
      keep(pattern->source, [&](index_t layer) {
        auto const i = static_cast<std::size_t>(layer);
        return i >= letters.size() || letters[i] == 'E';
      });
    }
    json_value const* const blocks = facts_.value({"layers_block_type"});
    if (blocks == nullptr || !blocks->is(json_kind::array) || !config_.is_type("nemotron_h")) {
      return;
    }
    std::vector<bool> sparse;
    for (json_value const& block : *blocks) {
      sparse.push_back(block.is(json_kind::text) && block.text() == "moe");
    }
    keep(blocks->path(), [&](index_t layer) {
      auto const i = static_cast<std::size_t>(layer);
      return i >= sparse.size() || sparse[i];
    });
  }

  [[nodiscard]] std::vector<index_t> numbers(json_value const& list) const {
    std::vector<index_t> result;
    for (json_value const& item : list) {
      if (item.is(json_kind::integer)) result.push_back(item.integer());
    }
    return result;
  }
  static bool contains(std::vector<index_t> const& list, index_t layer) {
    return std::find(list.begin(), list.end(), layer) != list.end();
  }

  config_facts const& facts_;
  model_config& config_;
  index_t layers_;
  std::vector<bool> flags_;
};

std::string type_of(json_value const* object) {
  if (object == nullptr || !object->is(json_kind::object)) return {};
  json_value const* const type = object->find("model_type");
  return type != nullptr && type->is(json_kind::text) ? escaped(type->text(), 60) : std::string();
}

}  // namespace

bool model_config::is_type(std::string_view type) const noexcept {
  auto const matches = [&](std::string_view own) {
    if (own.ends_with("_text")) own.remove_suffix(5);
    return own == type;
  };
  return matches(model_type) || matches(text_model_type);
}

bool model_config::is_one_of(std::string_view types) const noexcept {
  while (!types.empty()) {
    auto const blank = types.find(' ');
    if (is_type(types.substr(0, blank))) return true;
    types = blank == std::string_view::npos ? std::string_view() : types.substr(blank + 1);
  }
  return false;
}

model_config read_model_config(config_sources const& sources, findings& found) {
  model_config config;
  config_facts const facts(language_objects(sources), found);
  config.model_type = type_of(sources.config);
  if (sources.config != nullptr && !sources.config->is(json_kind::object)) {
    found.warning("config-kind", "", "{} is {}, expected an object", sources.config->path(),
                  name(sources.config->kind()));
  }
  if (sources.config != nullptr && sources.config->is(json_kind::object)) {
    for (std::string_view const part : {"text_config", "language_config", "llm_config"}) {
      if (config.text_model_type.empty()) {
        config.text_model_type = type_of(sources.config->find(part));
      }
    }
  }
  if (auto const version = facts.text({"transformers_version"})) {
    config.transformers = parse_version(version->value);
  }
  config.geometry = read_geometry(facts);
  if (config.geometry.layers) layer_reader(facts, config).read();
  config.activation = read_activation(sources, config);
  config.quant = read_quant_declaration(sources, found);
  return config;
}

activation_scheme activation_scheme_of(model_config const& config) noexcept {
  auto const& stated = config.quant.activation_scheme;
  return stated && stated->value == "dynamic" ? activation_scheme::dynamic
                                              : activation_scheme::unstated;
}

weight_placement weight_placement_of(model_config const& config) noexcept {
  return config.is_type("llama4") ? weight_placement::input : weight_placement::output;
}

}  // namespace moe64::checkpoint
