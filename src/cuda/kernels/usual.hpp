#pragma once

#include "cuda/kernels/activate_quantize.hpp"
#include "cuda/kernels/divisor.hpp"
#include "cuda/kernels/gather_quantize.hpp"
#include "cuda/kernels/quantize.hpp"

#include <optional>

/// Quantising as it is usually asked for, where addresses are a part of the cost: one matrix to
/// e4m3, with scales of f32 for every 128 columns or every row.
namespace moe64::cuda {

inline constexpr std::uint32_t usual_group = 128;

/// Where the codes and scales of one matrix go. A row times a step is of 64 bits.
struct usual_target {
  std::uint8_t* codes;
  float* scales;
  std::uint32_t code_step;   ///< bytes to the next row
  std::uint32_t scale_step;  ///< elements to the next row
  std::uint32_t group_step;  ///< elements to the next group
  std::uint32_t rows, cols;
  std::int64_t const* live_rows;  ///< or null: all
  divisor row_sixteens;           ///< with gaps that complete the last group
  bool in_groups;
};

/// Rows of bf16 or f16: a row times a step is of 64 bits.
struct usual_rows {
  std::uint8_t const* data;
  std::uint32_t step;  ///< bytes to the next row
};

struct quantize_usual_parameters {
  usual_rows x;
  usual_target to;
};
struct activate_usual_parameters {
  activation_spec spec;
  usual_rows gate, up;  ///< up without data when not gated
  usual_target to;
};
struct gather_usual_parameters {
  usual_rows x;
  usual_target to;
  std::int64_t const* slot_to_row;
  index_t tokens, top_k;
  index_t ahead_bytes;  ///< of x, or 0 where it does not lie in one piece
};

/// Threads of a block, and sixteens that each holds.
inline constexpr int usual_threads = 64;
inline constexpr int usual_held = 2;
inline constexpr index_t usual_tile = index_t{usual_held} * usual_threads;
/// Columns of a row with one scale: two sixteens for each of at most these many threads.
inline constexpr int usual_row_threads = 512;

/// Groups, a tile per block at a time.
[[nodiscard]] kernel<quantize_usual_parameters> quantize_usual_kernel(dtype x);
[[nodiscard]] kernel<activate_usual_parameters> activate_usual_kernel(activation kind, dtype type);
/// The same by a table, as activate_table_kernel.
[[nodiscard]] kernel<activate_usual_parameters> activate_usual_table_kernel(activation kind);
/// A scale per row. Rows of one warp: two to a block; else a row per block at a time.
[[nodiscard]] kernel<activate_usual_parameters> activate_usual_rows_kernel(activation kind,
                                                                           dtype type,
                                                                           bool one_warp);
/// Groups or a scale per row; a token per block at a time.
[[nodiscard]] kernel<gather_usual_parameters> gather_usual_kernel(dtype x, bool in_groups);

}  // namespace moe64::cuda
