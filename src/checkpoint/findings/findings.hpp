#pragma once

#include "moe64/finding.hpp"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// What is legal about a file but worth telling: a warning about no tensor. What is not legal is
/// an error that is thrown.
template <class... Values>
[[nodiscard]] finding file_warning(std::string_view rule, fmt::format_string<Values...> format,
                                   Values&&... values) {
  return {.level = finding_level::warning,
          .rule = std::string(rule),
          .tensor = {},
          .text = fmt::format(format, std::forward<Values>(values)...)};
}

/// Collects everything instead of stopping at the first. Of each rule and level the first
/// `kept_per_rule` are kept; all are counted, so a broken checkpoint of a million tensors stays
/// readable.
class findings {
 public:
  explicit findings(index_t kept_per_rule = 32) : kept_per_rule_(kept_per_rule) {}

  template <class... Values>
  void error(errc code, std::string_view rule, std::string_view tensor,
             fmt::format_string<Values...> format, Values&&... values) {
    if (counted(finding_level::error, rule, tensor)) {
      keep(finding_level::error, code, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }
  template <class... Values>
  void warning(std::string_view rule, std::string_view tensor, fmt::format_string<Values...> format,
               Values&&... values) {
    if (counted(finding_level::warning, rule, tensor)) {
      keep(finding_level::warning, errc::invalid_argument, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }
  template <class... Values>
  void note(std::string_view rule, std::string_view tensor, fmt::format_string<Values...> format,
            Values&&... values) {
    if (counted(finding_level::note, rule, tensor)) {
      keep(finding_level::note, errc::invalid_argument, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }

  [[nodiscard]] std::span<finding const> kept() const noexcept { return kept_; }
  [[nodiscard]] index_t count(finding_level level) const noexcept {
    return counts_[static_cast<std::size_t>(level)];
  }
  [[nodiscard]] index_t count(std::string_view rule) const noexcept;
  /// All rules that spoke, in the order in which they first did.
  [[nodiscard]] std::span<rule_total const> rules() const noexcept { return rules_; }
  /// What the next findings are about, where the names of their tensors do not say it; a default
  /// one: the names count again.
  void set_place(finding_place place) { place_ = std::move(place); }
  /// All findings with a place, also those that were not kept; the first million of them.
  [[nodiscard]] std::span<finding_mark const> marks() const noexcept { return marks_; }

  /// How many were counted but not kept.
  [[nodiscard]] index_t omitted() const noexcept;

 private:
  /// Counts one, and says whether its text is wanted.
  bool counted(finding_level level, std::string_view rule, std::string_view tensor);
  void keep(finding_level level, errc code, std::string_view rule, std::string_view tensor,
            std::string text);

  index_t kept_per_rule_;
  std::array<index_t, 3> counts_ = {};
  std::vector<rule_total> rules_;
  std::vector<finding> kept_;
  finding_place place_;
  std::vector<finding_mark> marks_;
};

}  // namespace moe64::checkpoint
