#pragma once

#include "checkpoint/naming/name_pattern.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace moe64::checkpoint {

/// How the entries of a list of modules are meant.
enum class rule_style : std::uint8_t {
  modules,     ///< the module or one above it (compressed-tensors `ignore`, `targets`)
  components,  ///< a run of whole dotted components anywhere ("mlp.gate"): modules_to_not_convert
  globs,       ///< over the module or one above it (ModelOpt `exclude_modules`)
};

/// The normalised form of every list of modules that a config may carry. An entry that starts with
/// "re:" is a regular expression in every style (see name_pattern for what it may contain).
/// A class name such as "Linear" names all modules: nothing else is known about classes here.
class name_rules {
 public:
  /// Fails with errc::unsupported for a regular expression that is not understood.
  void add(std::string_view entry, rule_style style);

  /// Whether an entry covers the module, given without the name of its tensor:
  /// "model.layers.3.mlp.experts.0.up_proj".
  [[nodiscard]] bool covers(std::string_view module) const;
  [[nodiscard]] bool empty() const noexcept { return entries_ == 0; }
  [[nodiscard]] index_t size() const noexcept { return entries_; }

 private:
  struct text_hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  using texts = std::unordered_set<std::string, text_hash, std::equal_to<>>;
  texts modules_;
  texts components_;
  std::vector<name_pattern> expressions_;
  std::vector<name_pattern> globs_;
  bool all_ = false;
  index_t entries_ = 0;
};

}  // namespace moe64::checkpoint
