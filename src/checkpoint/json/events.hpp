#pragma once

#include "moe64/index.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// What a JSON text says, in its order. An implementation refuses by throwing.
class json_events {
 public:
  virtual ~json_events() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void natural(std::uint64_t value) = 0;  ///< an integer without a sign that fits
  /// Any other number, as it is spelt: negative, larger than 2^64 - 1, or with a fraction or
  /// exponent (then it is not an integer).
  virtual void number(std::string_view text, bool integer) = 0;
  virtual void text(std::string_view value) = 0;
  virtual void begin_object() = 0;
  virtual void key(std::string_view name) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
};

struct json_event_limits {
  index_t depth;          ///< of arrays and objects inside each other
  index_t literal_bytes;  ///< of one string or number as it is spelt
  /// NaN, Infinity and -Infinity are numbers, as Python's json writes them: not strict JSON.
  bool non_finite = false;
};

/// Reads the whole text, without recursion and with memory for one literal (for the whole text
/// where it has a number that is not finite). A text that is not strict JSON in UTF-8 without a
/// byte order mark, or is past a limit, is errc::malformed_file with the byte where that shows.
/// Keys that appear twice are for `events` to find. `file` is printable.
void read_json(std::string_view text, std::string_view file, json_event_limits const& limits,
               json_events& events);

}  // namespace moe64::checkpoint
