#include "support/checkpoint_builder.hpp"

#include "moe64/index.hpp"
#include "support/random.hpp"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <stdexcept>

namespace moe64::test {

checkpoint_builder& checkpoint_builder::config(std::string text) {
  texts_[0] = std::move(text);
  return *this;
}
checkpoint_builder& checkpoint_builder::hf_quant_config(std::string text) {
  texts_[1] = std::move(text);
  return *this;
}
checkpoint_builder& checkpoint_builder::params(std::string text) {
  texts_[2] = std::move(text);
  return *this;
}

checkpoint_builder& checkpoint_builder::add(std::string const& name, file_dtype type,
                                            std::vector<index_t> shape, index_t shard) {
  tensors_.insert_or_assign(name, stored_tensor{type, std::move(shape), shard});
  return *this;
}

checkpoint_builder& checkpoint_builder::remove(std::string const& name) {
  if (tensors_.erase(name) == 0) throw std::invalid_argument("no tensor " + name);
  return *this;
}

index_t checkpoint_builder::size_of(stored_tensor const& stored) {
  index_t elements = 1;
  for (index_t const extent : stored.shape) elements *= extent;
  return elements * checkpoint::bits(stored.type) / 8;
}

checkpoint::resolved_checkpoint checkpoint_builder::resolve(
    std::vector<std::string> const& assumed) {
  constexpr std::array<char const*, 3> names = {"config.json", "hf_quant_config.json",
                                                "params.json"};
  std::array<checkpoint::json_value const*, 3> roots = {};
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i].empty()) continue;
    documents_[i] = checkpoint::parse_json(texts_[i], names[i]);
    roots[i] = &documents_[i]->root();
  }
  entries_.clear();
  for (auto const& [name, stored] : tensors_) {
    entries_.push_back({name, stored.type, stored.shape, stored.shard, 0, size_of(stored)});
  }
  checkpoint::resolve_options options;
  options.assumed = checkpoint::parse_assumptions(assumed);
  return checkpoint::resolve(entries_, {roots[0], roots[1], roots[2]}, options);
}

std::vector<std::byte> checkpoint_builder::bytes_of(checkpoint::tensor_entry const& tensor) const {
  return bytes_of(std::string(tensor.name));
}

std::vector<std::byte> checkpoint_builder::bytes_of(std::string const& name) const {
  stored_tensor const& stored = tensors_.at(name);
  random_source const draw(std::hash<std::string>{}(name));
  std::vector<std::byte> bytes(static_cast<std::size_t>(size_of(stored)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(draw.bits(static_cast<index_t>(i)) & 0xffU);
  }
  return bytes;
}

std::vector<std::string> checkpoint_builder::names() const {
  std::vector<std::string> all;
  for (auto const& [name, stored] : tensors_) all.push_back(name);
  return all;
}

void add_experts(checkpoint_builder& into, expert_tensors const& tensors, index_t experts,
                 index_t hidden, index_t inter) {
  for (index_t expert = 0; expert < experts; ++expert) {
    for (std::size_t i = 0; i < 3; ++i) {
      index_t const rows = i == 2 ? hidden : inter;
      index_t const cols = i == 2 ? inter : hidden;
      std::string const module =
          fmt::format("{}{}.{}", tensors.prefix, expert, tensors.projections[i]);
      into.add(module + tensors.values, tensors.value_type,
               {rows, ceil_div(cols, tensors.values_per_element)});
      if (!tensors.scales.empty()) {
        into.add(module + tensors.scales, tensors.scale_type, tensors.scale_shape(rows, cols));
      }
      if (!tensors.global.empty()) into.add(module + tensors.global, file_dtype::f32, {});
      if (!tensors.activation.empty()) into.add(module + tensors.activation, file_dtype::f32, {});
      if (!tensors.shape.empty()) into.add(module + tensors.shape, file_dtype::i64, {2});
    }
  }
}

std::string case_config(std::string const& members, index_t layers, index_t hidden, index_t inter,
                        index_t experts) {
  return fmt::format(
      R"({{"hidden_size": {}, "moe_intermediate_size": {}, "num_experts": {},)"
      R"( "num_experts_per_tok": 2, "num_hidden_layers": {}, "hidden_act": "silu"{}{}}})",
      hidden, inter, experts, layers, members.empty() ? "" : ", ", members);
}

std::string all_texts(checkpoint::resolved_checkpoint const& resolved) {
  std::string texts;
  for (auto const& entry : resolved.found.kept()) {
    texts += fmt::format("{} {}: {}\n", name(entry.level), entry.rule, entry.text);
  }
  return texts;
}

checkpoint_builder dialect_case::build() const {
  checkpoint_builder builder;
  if (params.empty()) builder.config(case_config(config));
  if (!hf_quant_config.empty()) builder.hf_quant_config(hf_quant_config);
  if (!params.empty()) builder.params(params);
  tensors(builder);
  return builder;
}

}  // namespace moe64::test
