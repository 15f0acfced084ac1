#pragma once

#include "cuda/kernels/activate/activate_quantize.hpp"
#include "cuda/kernels/device/divisor.hpp"
#include "cuda/kernels/permute/gather_quantize.hpp"
#include "cuda/kernels/quantize/quantize.hpp"

/// Quantising as it is usually asked for, where addresses are a part of the cost: one matrix to
/// e4m3, with scales of f32 for every 128 columns or every row.
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
  /// What one thread takes at a time, of a row; of groups with gaps that complete the last one.
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
struct activate_row_major_parameters {
  activation_spec spec;
  row_major_rows gate, up;  ///< up without data when not gated
  row_major_target to;
};
struct gather_row_major_parameters {
  row_major_rows x;
  row_major_target to;
  std::int64_t const* slot_to_row;
  index_t tokens, top_k;
  index_t ahead_bytes;  ///< of x, or 0 where it does not lie in one piece
};

/// Sixteens side by side that are an item of quantize and gather, and of activate: where much is
/// computed, a group for few threads saves some of it.
inline constexpr int quantize_row_major_width = 1;
inline constexpr int activate_row_major_width = 2;

/// Threads of a block.
inline constexpr int row_major_threads = 64;
/// Items that a thread of quantize holds.
inline constexpr int quantize_row_major_held = 2;
/// At most so many threads hold a row with one scale, or a token.
inline constexpr int row_major_row_threads = 512;
inline constexpr int gather_groups_threads = 128;
/// Threads of a block that stays, and the inputs of each that are on their way.
inline constexpr int persistent_most_threads = 768;
[[nodiscard]] constexpr index_t persistent_item_bytes(activation kind) {
  return index_t{32} * activate_row_major_width * (is_gated(kind) ? 2 : 1);
}

/// Groups.
[[nodiscard]] kernel<quantize_row_major_parameters> quantize_row_major_kernel(dtype x);
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_kernel(activation kind,
                                                                              dtype type);
/// The same by a table, as activate_table_kernel: a block per multiprocessor, of at most
/// persistent_most_threads, with shared memory for the table and persistent_item_bytes for each
/// thread.
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_table_kernel(
    activation kind);
/// A scale per row: as many rows per block at a time as its threads have items for.
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_rows_kernel(activation kind,
                                                                                   dtype type);
/// The same by a table: threads for whole rows of warps.
[[nodiscard]] kernel<activate_row_major_parameters> activate_row_major_table_rows_kernel(
    activation kind);
/// A scale per row: a token per block at a time, two sixteens per thread.
[[nodiscard]] kernel<gather_row_major_parameters> gather_row_major_rows_kernel(dtype x);
/// Groups: a sixteen per thread of blocks of gather_groups_threads, over all tokens.
[[nodiscard]] kernel<gather_row_major_parameters> gather_row_major_groups_kernel(dtype x);

}  // namespace moe64::cuda
