#pragma once

#include "moe64/error.hpp"
#include "moe64/index.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

enum class severity : std::uint8_t { note = 0, warning = 1, error = 2 };
[[nodiscard]] std::string_view name(severity level) noexcept;

/// The matrix that a finding is about.
struct matrix_place {
  index_t layer = -1;  ///< -1: none
  bool mtp = false;
  std::string_view projection = {};  ///< "gate", "gate_up"; empty: all of the layer
  index_t expert = -1;               ///< -1: all

  friend bool operator==(matrix_place const&, matrix_place const&) = default;
};

/// One thing that was found about the meaning of a checkpoint.
struct diagnostic {
  severity level = severity::error;
  errc code = errc::invalid_argument;  ///< what require_sound throws
  std::string_view rule;               ///< a stable word to filter by: "missing-scale"
  std::string tensor;                  ///< the tensor or module as the file spells it, or empty
  std::string text;                    ///< a sentence with the values; safe to print
  matrix_place place = {};
};

/// Collects everything instead of stopping at the first. Of each rule and severity the first
/// `kept_per_rule` are kept; all are counted, so a broken checkpoint of a million tensors stays
/// readable.
class diagnostics {
 public:
  explicit diagnostics(index_t kept_per_rule = 32) : kept_per_rule_(kept_per_rule) {}

  template <class... Values>
  void error(errc code, std::string_view rule, std::string_view tensor,
             fmt::format_string<Values...> format, Values&&... values) {
    if (counted(severity::error, rule, tensor)) {
      keep(severity::error, code, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }
  template <class... Values>
  void warning(std::string_view rule, std::string_view tensor, fmt::format_string<Values...> format,
               Values&&... values) {
    if (counted(severity::warning, rule, tensor)) {
      keep(severity::warning, errc::invalid_argument, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }
  template <class... Values>
  void note(std::string_view rule, std::string_view tensor, fmt::format_string<Values...> format,
            Values&&... values) {
    if (counted(severity::note, rule, tensor)) {
      keep(severity::note, errc::invalid_argument, rule, tensor,
           fmt::format(format, std::forward<Values>(values)...));
    }
  }

  [[nodiscard]] std::span<diagnostic const> kept() const noexcept { return kept_; }
  [[nodiscard]] index_t count(severity level) const noexcept {
    return counts_[static_cast<std::size_t>(level)];
  }
  [[nodiscard]] index_t count(std::string_view rule) const noexcept;
  struct rule_count {
    severity level = severity::error;
    std::string_view rule;
    index_t count = 0;
  };
  /// All rules that spoke, in the order in which they first did.
  [[nodiscard]] std::span<rule_count const> rules() const noexcept { return rules_; }
  /// What the next findings are about, where the names of their tensors do not say it; a default
  /// one: the names count again.
  void set_place(matrix_place place) noexcept { place_ = place; }
  struct mark {
    severity level = severity::error;
    matrix_place place;
  };
  /// All findings with a place, also those that were not kept; the first million of them.
  [[nodiscard]] std::span<mark const> marks() const noexcept { return marks_; }

  /// How many were counted but not kept.
  [[nodiscard]] index_t omitted() const noexcept;

 private:
  /// Counts one, and says whether its text is wanted.
  bool counted(severity level, std::string_view rule, std::string_view tensor);
  void keep(severity level, errc code, std::string_view rule, std::string_view tensor,
            std::string text);

  index_t kept_per_rule_;
  std::array<index_t, 3> counts_ = {};
  std::vector<rule_count> rules_;
  std::vector<diagnostic> kept_;
  matrix_place place_;
  std::vector<mark> marks_;
};

}  // namespace moe64::checkpoint
