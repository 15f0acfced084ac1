#pragma once

#include "moe64/problem.hpp"

/// The one table of tolerances: how far an output may be from the oracle, and why.
namespace moe64::cases {

/// What happens to the numbers on their way to an output, each counted with the square of its
/// influence, as independent errors add.
struct rounding_path {
  double stored = 0.0;  ///< roundings to the io type: of intermediates, and of dequantised weights
  double added = 0.0;   ///< roundings of f32 sums and functions
  double recoded =
      0.0;  ///< w8a8: numbers that were rounded differently are quantised; the step between codes
  bool tensor_cores = false;  ///< sums are of 8-bit products, added by tensor cores
};

/// Whether sums of op=layer and op=grouped_gemm that ran in `mode` may be those of tensor cores.
[[nodiscard]] bool on_tensor_cores(problem const& p, compute_mode mode);

/// Largest allowed error of a row, as output_error measures it. `codes` is the type that w8a8
/// quantises to.
[[nodiscard]] double allowed_error(dtype io, rounding_path const& path, dtype codes = dtype::e4m3);

/// Half the distance of neighbouring numbers, relative to them, at most: 2^-24, 2^-8 (bf16), 2^-11
/// (f16), ...
[[nodiscard]] double unit_roundoff(dtype type);

/// f32 roundings of a sum of `terms` products.
[[nodiscard]] double roundings_of_sum(index_t terms);

/// f32 roundings of an activation function or softmax: exp and its companions are good to a few
/// units.
inline constexpr double roundings_of_function = 16.0;

/// The outputs of a layer.
enum class layer_output { y, dx, d_weights, parameter };

/// Allowed error of an output of op=layer that ran in `mode`; `rows` is the longest sum over tokens
/// (parameters).
[[nodiscard]] double layer_tolerance(problem const& p, compute_mode mode, layer_output output,
                                     index_t rows);

}  // namespace moe64::cases
