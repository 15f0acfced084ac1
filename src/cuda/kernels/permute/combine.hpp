#pragma once

#include "cuda/runtime/kernel.hpp"
#include "moe64/quant.hpp"
#include "moe64/routing.hpp"

namespace moe64::cuda {

/// Rows [1, rows, cols], plain or with one scale per row or group of columns: a quantized_view as
/// kernels see it.
struct scaled_rows {
  tensor_view values;
  tensor_view scales;  ///< absent when plain
  tensor_view global;  ///< [1] f32, or absent
  bool global_divides;
  index_t cols_per_scale;
};

struct combine_parameters {
  scaled_rows rows;
  routing_plan plan;
  bool weighted;
  tensor_view y;  ///< [tokens, cols]
};

/// A CTA per token at a time; any strides and types.
[[nodiscard]] kernel<combine_parameters> combine_reference_kernel();

/// Plain rows of `type`, which is also that of y, in vec8s: a CTA per token and this many columns,
/// the rows of several slots loaded at once.
inline constexpr int combine_threads = 128;
inline constexpr index_t combine_columns = 2048;
[[nodiscard]] kernel<combine_parameters> combine_vectors_kernel(dtype type, bool weighted);
/// The same for few tokens, where latency counts: fewer columns, more rows at once.
inline constexpr int combine_small_batch_threads = 64;
inline constexpr index_t combine_small_batch_columns = 512;
[[nodiscard]] kernel<combine_parameters> combine_small_batch_kernel(dtype type, bool weighted);

struct slot_weight_gradient_parameters {
  tensor_view left, right;      ///< [rows, cols]
  tensor_view bias_rows, bias;  ///< [rows, n] and [experts, n], or absent
  routing_plan plan;
  tensor_view d_weights;  ///< [tokens, top_k]
};

/// Threads that compute one dot product, each one of the partial sums of the CPU's.
inline constexpr int dot_lanes = 16;

/// dot_lanes threads per slot; any strides and types.
[[nodiscard]] kernel<slot_weight_gradient_parameters> slot_weight_gradient_reference_kernel();
/// The same for contiguous rows of one `type`, without a bias.
[[nodiscard]] kernel<slot_weight_gradient_parameters> slot_weight_gradient_kernel(dtype type);

}  // namespace moe64::cuda
