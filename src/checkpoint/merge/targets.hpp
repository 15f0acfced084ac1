#pragma once

#include "checkpoint/load/opened.hpp"
#include "checkpoint/load/weight_list.hpp"
#include "checkpoint/naming/adapter_path.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// A matrix beside the routed experts.
struct dense_target {
  tensor_entry const* values = nullptr;
  module_format format;
};

/// What adapters call the weights of a checkpoint: paths of modules as Transformers holds them in
/// memory. Whatever cannot be found is errc::invalid_argument with the path.
class merge_targets {
 public:
  explicit merge_targets(checkpoint_reader::state const& base);

  /// The path must belong to the model that the checkpoint's experts are of.
  void require_prefix(std::string_view path, std::string_view prefix, index_t layer) const;
  /// All matrices of the experts of a backbone layer.
  [[nodiscard]] std::vector<weight_module const*> const& experts_of(std::string_view path,
                                                                    index_t layer) const;
  [[nodiscard]] index_t expert_count(index_t layer) const;
  [[nodiscard]] bool is_gated(index_t layer) const;
  /// A stack of experts that is a module with a `weight`, or null.
  [[nodiscard]] weight_module const* stack_named(std::string_view path) const;
  [[nodiscard]] dense_target dense(std::string_view path) const;

  /// In memory gate and up of fused experts take turns: gpt-oss.
  [[nodiscard]] bool keeps_gate_and_up_taking_turns() const;
  /// In memory stacks are [experts, in, out], and the module does not say so: Llama-4.
  [[nodiscard]] bool has_undeclared_stacks() const;

 private:
  [[nodiscard]] std::vector<std::string> names_of(std::string_view path) const;
  [[nodiscard]] bool ties_embeddings() const;

  checkpoint_reader::state const& base_;
  std::vector<weight_module> weights_;
  std::map<index_t, std::vector<weight_module const*>> experts_;  ///< by backbone layer
  std::map<std::string_view, weight_module const*> dense_;        ///< quantised ones, by module
  std::map<std::string_view, weight_module const*> stacks_;       ///< with a `weight`, by module
};

}  // namespace moe64::checkpoint
