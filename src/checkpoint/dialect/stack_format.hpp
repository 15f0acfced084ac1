#pragma once

#include "checkpoint/dialect/module_format.hpp"
#include "moe64/quant.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace moe64::checkpoint {

/// Element (row, col) of one expert's matrix lies at first + row * row_stride + col * col_stride of
/// its slice, and slices of successive experts are `slice` elements apart. Counted in elements.
struct placement {
  index_t first = 0;
  index_t row_stride = 0;
  index_t col_stride = 0;
  index_t slice = 0;  ///< 0: all experts share one

  friend constexpr bool operator==(placement const&, placement const&) noexcept = default;
};

/// What must be done to bytes on their way from a file into a stack.
enum class value_repack : std::uint8_t {
  none,             ///< the library reads them as stored
  int4_from_offset  ///< nibble - 8 becomes two's complement: see repack.hpp
};

/// How the matrices of one part (gate, up or down) of all experts are stated to the library: the
/// formats of include/moe64/quant.hpp, with the strides of the file's own layout, so that bytes go
/// from a file straight into their place.
///
///   as stored                 D1-D12, D14-D31 and plain weights: blocks, rows, groups and whole
///                             tensors of any of f32, bf16, f16, e8m0, e4m3 scales are formats of
///                             the library; transposed and interleaved stacks are strides; U8
///                             exponents are e8m0; blk4d and col3d are views of the same numbers
///   nibbles repacked          D13 (int4x8)
///   scale rows expanded       fused stacks (D10) whose gate rows do not fill whole blocks
struct stack_format {
  dtype type = dtype::bf16;
  index_t rows = 0;
  index_t cols = 0;
  placement values;
  value_repack repack = value_repack::none;

  granularity layout;  ///< none: plain
  dtype scale_type = dtype::f32;
  placement scales;  ///< in memory, and in the file unless rows are expanded
  /// Expanded: part row r takes its scales from row (expand_offset + r) / expand_block of the
  /// stored grid, which lies row after row (or column after column when transposed).
  bool expand_scale_rows = false;
  index_t expand_offset = 0;
  index_t expand_block = 0;
  placement stored_scales;

  bool has_global = false;
  global_scale::direction direction = global_scale::direction::multiply;

  friend bool operator==(stack_format const&, stack_format const&) noexcept = default;
};

/// The stack of one part of a module: part 0 is gate (or the only one), part 1 is up.
[[nodiscard]] stack_format part_format(module_format const& format, int part);

/// Bytes of one expert's slice, as read from the file.
[[nodiscard]] index_t value_slice_bytes(stack_format const& format);
[[nodiscard]] index_t scale_slice_bytes(stack_format const& format);

/// The library's type of a stored one; U8 are exponents of scales here.
[[nodiscard]] dtype library_type(value_codec codec, file_dtype type);
[[nodiscard]] dtype library_scale_type(file_dtype type);

/// Where a loader has put the slices: expert e at values + e * value_slice_bytes, and so on.
struct stack_memory {
  void* values = nullptr;
  void* scales = nullptr;   ///< after expansion
  void* globals = nullptr;  ///< [experts] f32
  index_t experts = 0;
  moe64::device where = {};
};
[[nodiscard]] quantized_view make_view(stack_format const& format, stack_memory const& memory);

}  // namespace moe64::checkpoint
