#pragma once

#include "moe64/index.hpp"

namespace moe64::cuda {

/// A 64-bit division takes a hundred instructions, a 32-bit one a few.
__device__ inline index_t divide(index_t count, index_t by) {
  if (((count | by) >> 32) != 0) return count / by;
  return static_cast<std::uint32_t>(count) / static_cast<std::uint32_t>(by);  // narrow-ok: tested
}

}  // namespace moe64::cuda
