#pragma once

#include "moe64/index.hpp"

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// A pattern over module names that comes from an untrusted file. All states are followed at once
/// instead of backtracking, so a match takes at most states * characters steps, and a pattern has
/// at most `max_pattern_states` states.
///
/// Regular expressions: characters, `.`, `\d \D \w \W \s \S`, escaped punctuation, `[a-z]`, `[^.]`,
/// `( )`, `(?: )`, `(?P<name> )`, `|`, `* + ? {m} {m,} {m,n}` and their lazy forms, `^`, `$`.
/// Refused with errc::unsupported: look-around, back references, `\b`, flags, counts above 64.
class name_pattern {
 public:
  /// As Python's re.match: it must match from the first character, not to the last.
  [[nodiscard]] static name_pattern regex(std::string_view text);
  /// As Python's fnmatch: `*`, `?`, `[seq]`, `[!seq]` over the whole name.
  [[nodiscard]] static name_pattern glob(std::string_view text);

  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  friend class pattern_compiler;
  using character_set = std::bitset<256>;
  enum class step : std::uint8_t { characters, split, jump, at_begin, at_end, accept };
  struct state {
    step kind = step::accept;
    index_t next = 0;   // for split and jump: a target
    index_t other = 0;  // split: the second target; characters: which set
  };
  std::vector<state> states_;
  std::vector<character_set> sets_;
};

inline constexpr index_t max_pattern_bytes = 1024;
inline constexpr index_t max_pattern_states = 4096;

}  // namespace moe64::checkpoint
