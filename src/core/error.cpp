#include "moe64/error.hpp"

#include "core/fail.hpp"
#include "moe64/index.hpp"
#include "moe64/version.hpp"

namespace moe64 {

std::string_view name(errc code) noexcept {
  switch (code) {
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::shape_mismatch:
      return "shape_mismatch";
    case errc::dtype_mismatch:
      return "dtype_mismatch";
    case errc::device_mismatch:
      return "device_mismatch";
    case errc::missing_scale:
      return "missing_scale";
    case errc::invalid_expert:
      return "invalid_expert";
    case errc::size_overflow:
      return "size_overflow";
    case errc::workspace_too_small:
      return "workspace_too_small";
    case errc::unsupported:
      return "unsupported";
    case errc::out_of_memory:
      return "out_of_memory";
    case errc::internal:
      return "internal";
    case errc::malformed_file:
      return "malformed_file";
    case errc::io_failure:
      return "io_failure";
    case errc::interrupted:
      return "interrupted";
    case errc::device_failure:
      return "device_failure";
  }
  return "unknown";
}

void throw_size_overflow(char const* operation, index_t left, index_t right) {
  fail(errc::size_overflow, "[size] {} of {} and {} does not fit", operation, left, right);
}

std::string_view version() noexcept { return MOE64_VERSION; }

}  // namespace moe64
