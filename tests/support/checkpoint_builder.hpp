#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/json/json.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace moe64::test {

using checkpoint::file_dtype;
using checkpoint::projection_kind;

/// A checkpoint without files: the texts of its configs and the entries of its tensors, whose bytes
/// are a function of their names.
class checkpoint_builder {
 public:
  checkpoint_builder& config(std::string text);
  checkpoint_builder& hf_quant_config(std::string text);
  checkpoint_builder& params(std::string text);
  checkpoint_builder& add(std::string const& name, file_dtype type, std::vector<index_t> shape,
                          index_t shard = 0);
  checkpoint_builder& remove(std::string const& name);
  [[nodiscard]] bool has(std::string const& name) const { return tensors_.contains(name); }

  /// Resolves what has been added so far; the result lives as long as this builder is not changed.
  [[nodiscard]] checkpoint::resolved_checkpoint resolve(
      std::vector<std::string> const& assumed = {});

  [[nodiscard]] std::vector<std::byte> bytes_of(checkpoint::tensor_entry const& tensor) const;
  [[nodiscard]] std::vector<std::byte> bytes_of(std::string const& name) const;
  [[nodiscard]] std::vector<index_t> const& shape_of(std::string const& name) const {
    return tensors_.at(name).shape;
  }
  [[nodiscard]] file_dtype type_of(std::string const& name) const { return tensors_.at(name).type; }
  [[nodiscard]] std::vector<std::string> names() const;  ///< of all tensors, sorted
  /// config.json, hf_quant_config.json, params.json; empty where there is none.
  [[nodiscard]] std::array<std::string, 3> const& texts() const { return texts_; }

 private:
  struct stored_tensor {
    file_dtype type;
    std::vector<index_t> shape;
    index_t shard = 0;
  };
  static index_t size_of(stored_tensor const& stored);

  std::map<std::string, stored_tensor> tensors_;
  std::vector<checkpoint::tensor_entry> entries_;
  std::array<std::string, 3> texts_;
  std::array<std::unique_ptr<checkpoint::json_document const>, 3> documents_;
};

/// Tensors of routed experts, one per expert and projection.
struct expert_tensors {
  std::string prefix = "model.layers.0.mlp.experts.";
  std::array<std::string, 3> projections = {"gate_proj", "up_proj", "down_proj"};
  std::string values = ".weight";
  file_dtype value_type = file_dtype::f8_e4m3;
  index_t values_per_element = 1;  ///< 2: two columns per stored element, 8: eight
  std::string scales;              ///< ".weight_scale"; empty: none
  file_dtype scale_type = file_dtype::f32;
  std::function<std::vector<index_t>(index_t rows, index_t cols)> scale_shape;
  std::string global;      ///< ".weight_scale_2"; empty: none
  std::string activation;  ///< ".input_scale"; empty: none
  std::string shape;       ///< ".weight_shape"; empty: none
};

/// Extents of all cases: inter is of the family whose blocks of 128 rows look like blocks of 96.
struct case_extents {
  static constexpr index_t hidden = 320;
  static constexpr index_t inter = 192;
  static constexpr index_t experts = 3;
};

void add_experts(checkpoint_builder& into, expert_tensors const& tensors,
                 index_t experts = case_extents::experts, index_t hidden = case_extents::hidden,
                 index_t inter = case_extents::inter);

/// config.json with the extents of the cases: `members` are further ones, such as
/// "\"model_type\": \"qwen3_moe\"".
[[nodiscard]] std::string case_config(std::string const& members, index_t layers = 1,
                                      index_t hidden = case_extents::hidden,
                                      index_t inter = case_extents::inter,
                                      index_t experts = case_extents::experts);

/// All findings, one per line: "error missing-scale: ...".
[[nodiscard]] std::string all_texts(checkpoint::resolved_checkpoint const& resolved);

/// One dialect of the table as a small checkpoint, and what it must be resolved to.
struct dialect_case {
  std::string id;
  std::string config;  ///< members beside the extents
  std::string hf_quant_config;
  std::string params;
  std::function<void(checkpoint_builder&)> tensors;
  checkpoint::key_schema schema = checkpoint::key_schema::mlp_proj;
  checkpoint::value_codec values = checkpoint::value_codec::e4m3;
  checkpoint::scale_codec scales = checkpoint::scale_codec::blk;
  std::string layout;  ///< of the gate part, as to_string(granularity) writes it

  [[nodiscard]] checkpoint_builder build() const;
  friend void PrintTo(dialect_case const& shown, std::ostream* out) { *out << shown.id; }
};
[[nodiscard]] std::vector<dialect_case> const& dialect_cases();

}  // namespace moe64::test
