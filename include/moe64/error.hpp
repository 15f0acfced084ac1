#pragma once

#include "moe64/export.hpp"

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace moe64 {

/// Why a call was refused. The numbers are also the status codes of the C ABI (0 there is success).
enum class errc : int {
  invalid_argument = 1,  ///< a value that no call can have: negative extent, unknown key, overlap
  shape_mismatch = 2,    ///< two extents that must agree do not
  dtype_mismatch = 3,    ///< an operand has a type that this place does not take
  device_mismatch = 4,   ///< an operand is not on the device of the stream
  missing_scale = 5,     ///< quantised values without the scale that gives them meaning
  invalid_expert = 6,    ///< a routing id that is neither an expert nor a sentinel
  size_overflow = 7,     ///< a count or byte size that does not fit 63 bits
  workspace_too_small = 8,  ///< less (or less aligned) memory than the size query asked for
  unsupported = 9,          ///< a legal request that this build or this device cannot serve
  out_of_memory = 10,       ///< the system gave no memory or no thread
  internal = 11,            ///< a broken promise of moe64 itself; please report it
  malformed_file = 12,      ///< a file that breaks a rule of its format
  io_failure = 13,          ///< a file that could not be read or written, or changed meanwhile
  interrupted = 14,         ///< the caller's own progress report asked to stop
  device_failure = 15,      ///< a GPU or its driver reported an error
};

/// The stable name of a code, such as "shape_mismatch".
[[nodiscard]] MOE64_API std::string_view name(errc code) noexcept;

/// The one exception of moe64. `what()` reads "[operation] argument and values": it names the
/// operation, the argument and the values that were refused. When it is thrown no output has been
/// written.
class MOE64_API error : public std::runtime_error {
 public:
  error(errc code, std::string const& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] errc code() const noexcept { return code_; }

 private:
  errc code_;
};

/// The answer to "could you run this?": yes, or the reason why not. Never throws by itself.
class support {
 public:
  static support yes() { return {}; }
  static support no(std::string reason) {
    support refused;
    refused.reason_ = std::move(reason);
    return refused;
  }
  explicit operator bool() const noexcept { return reason_.empty(); }
  [[nodiscard]] std::string const& reason() const noexcept { return reason_; }

 private:
  std::string reason_;
};

}  // namespace moe64
