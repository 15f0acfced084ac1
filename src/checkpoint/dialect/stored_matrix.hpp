#pragma once

#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/files/folder.hpp"
#include "moe64/quant.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace moe64::checkpoint {

/// Which scale covers position i of one axis: i / block, where a `half` that is not 0 starts the
/// blocks anew.
struct axis_blocks {
  index_t block = 1;
  index_t half = 0;

  [[nodiscard]] index_t grid(index_t i) const noexcept {
    if (half == 0 || i < half) return i / block;
    return ceil_div(half, block) + (i - half) / block;
  }
  /// The first position behind i that a run starting at i may not pass: where blocks start at i,
  /// the next `half` or the end; elsewhere the end of the block.
  [[nodiscard]] index_t run_end(index_t i, index_t end) const noexcept;
};

/// Matrices of one tensor in the orientation of the file: a stack of all experts, or one matrix.
/// The tensors are read in pieces, so that none has to fit into memory.
struct stored_matrices {
  tensor_entry const* values = nullptr;
  tensor_entry const* scales = nullptr;  ///< null: plain
  tensor_entry const* global = nullptr;
  dtype type = dtype::bf16;
  dtype scale_type = dtype::f32;
  bool offset_nibbles = false;  ///< int4 stored as value + 8
  index_t count = 1;
  index_t rows = 0;
  index_t cols = 0;
  index_t pitch = 0;  ///< elements from row to row
  axis_blocks row_blocks;
  axis_blocks col_blocks;
  index_t grid_cols = 1;   ///< numbers from row to row of the grid
  index_t grid_slice = 0;  ///< numbers from matrix to matrix; 0: all share them
  global_scale::direction direction = global_scale::direction::multiply;

  [[nodiscard]] bool plain() const noexcept { return scales == nullptr; }
};

[[nodiscard]] stored_matrices matrices_of(module_format const& format, tensor_entry const* values,
                                          tensor_entry const* scales, tensor_entry const* global);

/// Rows [row_begin, row_end) and columns [col_begin, col_end) of matrix `slice`.
struct stored_region {
  index_t slice = 0;
  index_t row_begin = 0;
  index_t row_end = 0;
  index_t col_begin = 0;  ///< of packed types at a whole byte
  index_t col_end = 0;

  [[nodiscard]] index_t rows() const noexcept { return row_end - row_begin; }
  [[nodiscard]] index_t cols() const noexcept { return col_end - col_begin; }
};

/// Aligned memory of a fixed size.
class piece_buffer {
 public:
  explicit piece_buffer(index_t bytes);
  [[nodiscard]] std::span<std::byte> first(index_t bytes);

 private:
  struct release {
    void operator()(std::byte* data) const noexcept;
  };
  std::unique_ptr<std::byte, release> data_;
  index_t bytes_;
};

/// What read_numbers() needs for a region.
struct region_bytes {
  index_t values = 0;
  index_t scales = 0;
};
[[nodiscard]] region_bytes bytes_of(stored_matrices const& from, stored_region const& region);

/// The numbers of a region, dequantised by the library into `out`: [rows, cols] of the region, f32,
/// bf16 or f16, with any strides.
void read_numbers(folder const& files, stored_matrices const& from, stored_region const& region,
                  std::span<std::byte> value_memory, std::span<std::byte> scale_memory,
                  tensor_view const& out);

}  // namespace moe64::checkpoint
