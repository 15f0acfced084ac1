#include "checkpoint/check/architecture_table.hpp"
#include "checkpoint/check/findings.hpp"
#include "checkpoint/config/facts.hpp"
#include "checkpoint/dialect/module_format.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/load/opened.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace moe64::checkpoint {
namespace {

/// A line of architecture::tensors.
struct required_tensor {
  std::vector<std::string_view> conditions;
  std::string_view part;
  std::vector<std::string_view> names;

  [[nodiscard]] bool per_layer() const { return names.front().starts_with('~'); }
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    auto const end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

required_tensor parse(std::string_view line) {
  required_tensor tensor;
  std::vector<std::string_view> const words = split(line, ' ');
  for (std::string_view const word : words) {
    if (word.ends_with(':')) tensor.conditions.push_back(word.substr(0, word.size() - 1));
  }
  tensor.part = words[tensor.conditions.size()];
  tensor.names = split(words.back(), '|');
  return tensor;
}

architecture const* architecture_of(model_config const& config, bool has_params) {
  for (architecture const& known : architecture_table()) {
    for (std::string_view const type : split(known.model_types, ' ')) {
      bool const native = type == "params.json";
      if (native ? has_params && config.model_type.empty() : config.is_type(type)) return &known;
    }
  }
  return nullptr;
}

/// "0 to 3, 5, 9": at most a few runs.
std::string layers_text(std::vector<index_t> const& layers) {
  constexpr std::size_t shown = 6;
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    runs.push_back(end - i > 1 ? fmt::format("{} to {}", layers[i], layers[end - 1])
                               : fmt::format("{}", layers[i]));
    i = end;
  }
  bool const more = runs.size() > shown;
  if (more) runs.resize(shown);
  return fmt::format("{}{}", fmt::join(runs, ", "), more ? ", ..." : "");
}

class required_tensors {
 public:
  required_tensors(checkpoint_reader::state const& opened, architecture const& known,
                   findings& ignored)
      : files_(opened.files),
        resolved_(opened.resolved),
        known_(known),
        facts_(language_objects({files_.config(), files_.hf_quant_config(), files_.params()}),
               ignored) {}

  /// A router for another number of experts than its layer has.
  struct odd_router {
    tensor_entry const* matrix;
    index_t layer;
    index_t experts;
  };
  [[nodiscard]] std::vector<odd_router> const& odd_routers() const { return routers_; }

  /// Looks at the routers on the way.
  std::vector<missing_tensor> missing() {
    std::vector<missing_tensor> result;
    if (!find_prefix()) return result;
    for (std::string_view const lines : known_.tensors) {
      for (std::string_view const line : split(lines, '\n')) {
        missing_tensor one = look_for(parse(line));
        if (!one.names.empty()) result.push_back(std::move(one));
      }
    }
    return result;
  }

 private:
  /// Where the backbone's layers are: in front of "layers.N." of its experts.
  bool find_prefix() {
    for (layer_entry const& layer : resolved_.layers) {
      if (layer.mtp) continue;
      for (projection_entry const* const entry : projections_of(layer)) {
        for (expert_source const& source : entry->experts) {
          if (!source.present()) continue;
          std::string const own = fmt::format("layers.{}.", layer.layer);
          auto const at = source.values->name.find(own);
          if (at == std::string_view::npos) continue;
          prefix_ = source.values->name.substr(0, at);
          return true;
        }
      }
    }
    return false;
  }

  /// The matrix of a router has a row for each expert.
  void look_at_router(required_tensor const& tensor, index_t layer) {
    layer_entry const* const experts = resolved_.layer(layer);
    if (experts == nullptr || experts->experts == 0) return;
    for (std::size_t i = 0; i < tensor.names.size(); ++i) {
      tensor_entry const* const matrix = files_.find(name_of(tensor, i, layer));
      if (matrix == nullptr || matrix->shape.size() != 2) continue;
      if (!tensor.names[i].ends_with(".weight") || matrix->shape[0] == experts->experts) continue;
      routers_.push_back({matrix, layer, experts->experts});
    }
  }

  [[nodiscard]] missing_tensor look_for(required_tensor const& tensor) {
    missing_tensor result;
    result.part = tensor.part;
    result.source = known_.source;
    fact<index_t> const& stated = resolved_.config.geometry.layers;
    index_t const layers = stated ? std::min(stated->value, most_layers) : 0;
    index_t const begin = tensor.per_layer() ? 0 : -1;
    index_t const end = tensor.per_layer() ? layers : 0;
    for (index_t layer = begin; layer < end; ++layer) {
      if (!fits(tensor, layer)) continue;
      ++result.wanted;
      if (tensor.part == "router") look_at_router(tensor, layer);
      if (is_there(tensor, layer)) continue;
      result.names.push_back(name_of(tensor, 0, layer));
      result.layers.push_back(layer);
    }
    return result;
  }

  [[nodiscard]] bool fits(required_tensor const& tensor, index_t layer) const {
    return std::all_of(tensor.conditions.begin(), tensor.conditions.end(),
                       [&](std::string_view condition) { return holds(condition, layer); });
  }

  [[nodiscard]] bool holds(std::string_view condition, index_t layer) const {
    if (condition == "moe") return has_experts(layer);
    if (condition == "dense") return !has_experts(layer);
    if (condition == "full" || condition == "linear" || condition == "conv") {
      return attention_of(layer, condition);
    }
    if (condition == "indexer") return has_indexer(layer);
    auto const equal = condition.find('=');
    if (equal != std::string_view::npos) {
      json_value const* const value = facts_.value({condition.substr(0, equal)});
      std::string_view const word = condition.substr(equal + 1);
      return value != nullptr && value->is(json_kind::boolean) &&
             value->boolean() == (word == "true");
    }
    json_value const* const value = facts_.value({condition.substr(0, condition.find('>'))});
    return value != nullptr && value->is(json_kind::integer) && value->real() > 0.0;
  }

  [[nodiscard]] bool has_experts(index_t layer) const {
    auto const& stated = resolved_.config.moe_layers;
    if (layer < std::ssize(stated)) return stated[static_cast<std::size_t>(layer)];
    return resolved_.layer(layer) != nullptr;
  }

  [[nodiscard]] bool attention_of(index_t layer, std::string_view kind) const {
    json_value const* const types = facts_.value({"layer_types"});
    if (types == nullptr || !types->is(json_kind::array) || layer >= types->size()) return false;
    json_value const& type = types->item(layer);
    return type.is(json_kind::text) && type.text().starts_with(kind);
  }

  /// Layers of DSA attention share what another one chose where the config says so: by their names,
  /// by letters, or every n-th one behind an offset.
  [[nodiscard]] bool has_indexer(index_t layer) const {
    json_value const* const types = facts_.value({"indexer_types"});
    if (types != nullptr && types->is(json_kind::array)) {
      if (layer >= types->size()) return false;
      json_value const& type = types->item(layer);
      return type.is(json_kind::text) && type.text() == "full";
    }
    json_value const* const letters = facts_.value({"index_topk_pattern"});
    if (letters != nullptr && letters->is(json_kind::text)) {
      std::string_view const text = letters->text();
      return layer < std::ssize(text) && text[static_cast<std::size_t>(layer)] == 'F';
    }
    index_t const step = number_of("index_topk_freq", 1);
    index_t const offset = number_of("index_skip_topk_offset", 2);
    if (step < 1 || offset < 0 || offset > most_layers) return false;
    return std::max<index_t>(layer - offset + 1, 0) % step == 0;
  }

  [[nodiscard]] index_t number_of(std::string_view key, index_t otherwise) const {
    auto const value = facts_.integer({key});
    return value ? value->value : otherwise;
  }

  [[nodiscard]] std::string name_of(required_tensor const& tensor, std::size_t which,
                                    index_t layer) const {
    std::string_view const name = tensor.names[which];
    if (name.starts_with('^')) return fmt::format("{}{}", prefix_, name.substr(1));
    if (!name.starts_with('~')) return std::string(name);
    return fmt::format("{}layers.{}.{}", prefix_, layer, name.substr(1));
  }

  [[nodiscard]] bool is_there(required_tensor const& tensor, index_t layer) const {
    for (std::size_t i = 0; i < tensor.names.size(); ++i) {
      std::string name = name_of(tensor, i, layer);
      if (name.ends_with('*')) {
        name.pop_back();
        if (any_begins(name)) return true;
        continue;
      }
      if (files_.find(name) != nullptr) return true;
      if (!name.ends_with(".weight")) continue;
      // the spellings of quantised weights
      if (files_.find(name + "_packed") != nullptr) return true;
      name.replace(name.size() - 6, 6, "qweight");
      if (files_.find(name) != nullptr) return true;
    }
    return false;
  }

  [[nodiscard]] bool any_begins(std::string_view name) const {
    auto const tensors = files_.tensors();
    auto const at = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](tensor_entry const& entry, std::string_view wanted) { return entry.name < wanted; });
    return at != tensors.end() && at->name.starts_with(name);
  }

  static constexpr index_t most_layers = 100'000;  // a number from an untrusted file

  folder const& files_;
  resolved_checkpoint const& resolved_;
  architecture const& known_;
  config_facts facts_;
  std::string prefix_;
  std::vector<odd_router> routers_;
};

/// Nothing for a single file of many, and for a model type that the table does not have.
std::optional<required_tensors> required_of(checkpoint_reader::state const& opened,
                                            findings& ignored) {
  auto const shards = opened.files.shards();
  if (shards.size() == 1 && shards.front().name == opened.files.path().native()) return {};
  architecture const* const known =
      architecture_of(opened.resolved.config, opened.files.params() != nullptr);
  if (known == nullptr) return {};
  return required_tensors(opened, *known, ignored);
}

}  // namespace

std::vector<missing_tensor> missing_tensors(checkpoint_reader::state const& opened) {
  findings ignored;
  auto required = required_of(opened, ignored);
  return required ? required->missing() : std::vector<missing_tensor>();
}

void find_missing_tensors(checkpoint_reader::state const& opened, findings& found) {
  findings ignored;  // what is wrong with the config was said when it was opened
  auto required = required_of(opened, ignored);
  if (!required) return;
  for (missing_tensor const& one : required->missing()) {
    found.error(errc::invalid_argument, "missing-tensor", one.names.front(),
                "tensor {} ({}) is not there{}; the architecture has it ({})",
                quoted(one.names.front()), one.part,
                one.names.size() == 1
                    ? std::string()
                    : fmt::format(", nor those of {} of {} layers: {}", one.names.size(),
                                  one.wanted, layers_text(one.layers)),
                one.source);
  }
  for (auto const& router : required->odd_routers()) {
    found.error(errc::invalid_argument, "router-shape", router.matrix->name,
                "tensor {} {} is the router of layer {}, which has {} experts: expected a row for "
                "each of them",
                quoted(router.matrix->name), shape_text(router.matrix->shape), router.layer,
                router.experts);
  }
}

}  // namespace moe64::checkpoint
