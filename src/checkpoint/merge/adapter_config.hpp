#pragma once

#include "checkpoint/json/json.hpp"
#include "checkpoint/merge/adapter_layout.hpp"
#include "checkpoint/naming/name_pattern.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// What an adapter_config.json of PEFT says about a LoRA adapter.
class adapter_config {
 public:
  /// errc::malformed_file for what is of the wrong kind, errc::unsupported for what would change
  /// the numbers in a way that is not implemented: DoRA, other kinds of adapters, saved modules,
  /// initialisations that change the base, and keys that nobody knows.
  [[nodiscard]] static adapter_config read(json_value const& root);

  /// Of the module or parameter with that path in the model.
  [[nodiscard]] index_t rank_of(std::string_view path) const;
  /// alpha / rank, or alpha / sqrt(rank).
  [[nodiscard]] double scaling_of(std::string_view path) const;
  /// Whether `target_parameters` names it, or ends a dotted part of it.
  [[nodiscard]] bool targets_parameter(std::string_view path) const;
  [[nodiscard]] layout_statement const& layout() const noexcept { return layout_; }

 private:
  struct exception {
    name_pattern names;
    double value;
  };
  static std::vector<exception> exceptions_in(json_value const* table);
  static double chosen(std::vector<exception> const& from, std::string_view path, double otherwise);

  index_t rank_ = 0;
  double alpha_ = 0;
  bool by_root_ = false;
  std::vector<exception> ranks_;
  std::vector<exception> alphas_;
  std::vector<std::string> parameters_;
  layout_statement layout_;
};

}  // namespace moe64::checkpoint
