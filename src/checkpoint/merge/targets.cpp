#include "checkpoint/merge/targets.hpp"

#include "checkpoint/config/facts.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>

namespace moe64::checkpoint {
namespace {

/// What the module around router and experts is called, in files and in memory.
constexpr std::array<std::string_view, 6> moe_modules = {
    ".mlp.", ".block_sparse_moe.", ".feed_forward.", ".ffn.", ".mixer.", ".moe."};

constexpr std::array<std::string_view, 6> prefixes = {
    "model.", "", "model.language_model.", "language_model.model.", "language_model.", "backbone."};

}  // namespace

merge_targets::merge_targets(checkpoint_reader::state const& base)
    : base_(base), weights_(weights_of(base.resolved)) {
  for (weight_module const& weight : weights_) {
    if (!weight.of_experts) {
      dense_.emplace(weight.module, &weight);
      continue;
    }
    if (weight.mtp) continue;
    experts_[weight.layer].push_back(&weight);
    bool const has_weight = weight.schema == key_schema::moe_stack ||
                            weight.schema == key_schema::block_sparse_moe_stack;
    if (has_weight) stacks_.emplace(weight.module, &weight);
  }
}

void merge_targets::require_prefix(std::string_view path, std::string_view prefix,
                                   index_t layer) const {
  auto const& modules = experts_of(path, layer);
  std::string_view const there = split_at_layers(modules.front()->module).prefix;
  if (prefix == there || (is_language_prefix(prefix) && is_language_prefix(there))) return;
  fail(errc::invalid_argument, "[merge] {}: the experts of the base are at {}", quoted(path),
       quoted(modules.front()->module));
}

std::vector<weight_module const*> const& merge_targets::experts_of(std::string_view path,
                                                                   index_t layer) const {
  auto const found = experts_.find(layer);
  if (found != experts_.end()) return found->second;
  fail(errc::invalid_argument,
       "[merge] {}: layer {} of the base has no routed experts: is it an adapter of another model?",
       quoted(path), layer);
}

index_t merge_targets::expert_count(index_t layer) const {
  layer_entry const* const entry = base_.resolved.layer(layer);
  return entry == nullptr ? 0 : entry->experts;
}

bool merge_targets::is_gated(index_t layer) const {
  layer_entry const* const entry = base_.resolved.layer(layer);
  return entry != nullptr && entry->up.present();
}

weight_module const* merge_targets::stack_named(std::string_view path) const {
  auto const found = stacks_.find(path);
  return found == stacks_.end() ? nullptr : found->second;
}

/// The same module under the names that files and classes have for it, its own first.
std::vector<std::string> merge_targets::names_of(std::string_view path) const {
  std::vector<std::string> names = {std::string(path)};
  split_path const split = split_at_layers(path);
  if (is_language_prefix(split.prefix)) {
    for (std::string_view const prefix : prefixes)
      names.push_back(fmt::format("{}{}", prefix, split.rest));
  }
  std::size_t const known = names.size();
  for (std::size_t i = 0; i < known; ++i) {
    for (std::string_view const word : moe_modules) {
      std::size_t const at = names[i].find(word);
      if (at == std::string::npos) continue;
      for (std::string_view const other : moe_modules) {
        std::string renamed = names[i];
        if (other != word) names.push_back(renamed.replace(at, word.size(), other));
      }
      break;
    }
  }
  return names;
}

dense_target merge_targets::dense(std::string_view path) const {
  if (path.ends_with("lm_head") && ties_embeddings()) {
    fail(errc::unsupported,
         "[merge] {}: the config ties it to the embedding, which the adapter does not change",
         quoted(path));
  }
  for (std::string const& name : names_of(path)) {
    if (auto const found = dense_.find(name); found != dense_.end()) {
      weight_module const& weight = *found->second;
      return {weight.values, weight.format};
    }
    tensor_entry const* const values = base_.files.find(name + ".weight");
    if (values == nullptr) continue;
    if (!is_plain(values->type) || values->shape.size() != 2) {
      fail(errc::unsupported, "[merge] {}: {} is {} {}, and not a matrix whose numbers can be read",
           quoted(path), quoted(values->name), checkpoint::name(values->type),
           shape_text(values->shape));
    }
    dense_target target;
    target.values = values;
    target.format.value_type = values->type;
    target.format.rows = values->shape[0];
    target.format.cols = values->shape[1];
    return target;
  }
  fail(errc::invalid_argument,
       "[merge] {}: the base has no weight of that name: is it an adapter of another model?",
       quoted(path));
}

bool merge_targets::keeps_gate_and_up_taking_turns() const {
  return base_.resolved.config.is_type("gpt_oss");
}

bool merge_targets::has_undeclared_stacks() const {
  return base_.resolved.config.is_one_of("llama4");
}

bool merge_targets::ties_embeddings() const {
  for (json_value const* const object :
       language_objects({base_.files.config(), nullptr, nullptr})) {
    json_value const* const tied = object->find("tie_word_embeddings");
    if (tied != nullptr && tied->is(json_kind::boolean)) return tied->boolean();
  }
  return false;
}

}  // namespace moe64::checkpoint
