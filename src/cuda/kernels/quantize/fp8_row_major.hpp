#pragma once

#include "cuda/kernels/device/divisor.hpp"
#include "cuda/kernels/quantize/quantize.hpp"

/// The fast path of quantising, where addresses are a part of the cost: one matrix of bf16 or f16
/// to e4m3, with scales of f32 for every 128 columns or every row. The kernels of activate and
/// gather that do so too have headers of their own.
namespace moe64::cuda {

inline constexpr std::uint32_t row_major_group = 128;

/// Where the codes and scales of one matrix go. A row times a step is of 64 bits.
struct row_major_target {
  std::uint8_t* codes;
  float* scales;
  std::uint32_t code_step;   ///< bytes to the next row
  std::uint32_t scale_step;  ///< elements to the next row
  std::uint32_t group_step;  ///< elements to the next group
  std::uint32_t rows, cols;
  std::int64_t const* live_rows;  ///< or null: all
  /// Items of a row: what one thread takes at a time. Of groups with gaps that complete the last
  /// one.
  divisor row_items;
  bool in_groups;
};

/// Rows of bf16 or f16: a row times a step is of 64 bits.
struct row_major_rows {
  std::uint8_t const* data;
  std::uint32_t step;  ///< bytes to the next row
};

struct quantize_row_major_parameters {
  row_major_rows x;
  row_major_target to;
};

/// Vectors of 16 elements in an item of quantize and gather.
inline constexpr int quantize_row_major_width = 1;
/// Items that a thread of quantize holds.
inline constexpr int quantize_row_major_held = 2;

/// Threads of a CTA of quantize and activate with groups.
inline constexpr int row_major_threads = 64;
/// Threads of a CTA that hold a row with one scale, at most.
inline constexpr int row_major_row_threads = 512;

[[nodiscard]] kernel<quantize_row_major_parameters> quantize_row_major_kernel(dtype x);

}  // namespace moe64::cuda
