#pragma once

#include "moe64/index.hpp"

#include <cstdint>

namespace moe64::cuda {

/// scaling * u V^T (LoRA), with which a GEMM initialises its accumulators.
struct low_rank_operands {
  std::uint16_t const* u;  ///< bf16 or f16, as x; null: none
  index_t u_row, u_col;    ///< strides in elements
  index_t rank;
  void const* weights[2];  ///< V per part of n
  index_t expert[2], n[2], k[2];
  bool f32;  ///< V; otherwise it has the type of x
  float scaling;
};

}  // namespace moe64::cuda
