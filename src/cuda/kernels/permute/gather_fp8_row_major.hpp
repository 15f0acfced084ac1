#pragma once

#include "cuda/kernels/quantize/fp8_row_major.hpp"

namespace moe64::cuda {

struct gather_row_major_parameters {
  row_major_rows x;
  row_major_target to;
  std::int64_t const* slot_to_row;
  index_t tokens, top_k;
  index_t prefetch_bytes;  ///< of x, or 0 where it is not contiguous
};

inline constexpr int gather_groups_threads = 128;

/// A scale per row.
[[nodiscard]] kernel<gather_row_major_parameters> gather_row_major_rows_kernel(dtype x);
[[nodiscard]] kernel<gather_row_major_parameters> gather_row_major_groups_kernel(dtype x);

}  // namespace moe64::cuda
