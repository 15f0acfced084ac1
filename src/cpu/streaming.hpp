#pragma once

#include "moe64/dtype.hpp"
#include "moe64/index.hpp"

namespace moe64::cpu {

/// Outputs of at least so many bytes are streamed: written without first reading their lines, which
/// saves a third of the traffic of a copy but leaves nothing in the cache for the next reader.
inline constexpr index_t streamed_bytes = index_t{16} << 20;

[[nodiscard]] constexpr bool is_streamed(dtype type, index_t elements) {
  return elements / 8 * bits(type) >= streamed_bytes;
}

}  // namespace moe64::cpu
