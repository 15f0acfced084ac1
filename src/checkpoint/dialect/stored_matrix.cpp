#include "checkpoint/dialect/stored_matrix.hpp"

#include "checkpoint/load/repack.hpp"
#include "core/fail.hpp"
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"

#include <algorithm>
#include <new>

namespace moe64::checkpoint {
namespace {

/// Rows [begin, end) of an array of `pitch` bytes a row, bytes [from, from + width) of each, into
/// rows without gaps.
struct byte_region {
  tensor_entry const& tensor;
  index_t first;  ///< byte of the tensor where row 0 starts
  index_t pitch;
  index_t begin, end;
  index_t from, width;
};

void read_region(folder const& files, byte_region const& region, std::span<std::byte> into) {
  index_t const start = region.first + region.begin * region.pitch + region.from;
  if (region.width == region.pitch || region.end - region.begin == 1) {
    files.read(region.tensor, start,
               into.first(static_cast<std::size_t>((region.end - region.begin) * region.width)));
    return;
  }
  for (index_t row = 0; row < region.end - region.begin; ++row) {
    files.read(region.tensor, start + row * region.pitch,
               into.subspan(static_cast<std::size_t>(row * region.width),
                            static_cast<std::size_t>(region.width)));
  }
}

tensor_view matrix_at(void* data, dtype type, index_t rows, index_t cols, index_t row_stride,
                      index_t col_stride) {
  tensor_view view;
  view.data = data;
  view.type = type;
  view.rank = 3;
  view.extent[0] = 1;
  view.extent[1] = rows;
  view.extent[2] = cols;
  view.stride[0] = 0;
  view.stride[1] = row_stride;
  view.stride[2] = col_stride;
  return view;
}

granularity layout_of(index_t block_rows, index_t block_cols, index_t rows, index_t cols) {
  if (block_rows >= rows && block_cols >= cols) return granularity::tensor();
  if (block_rows == 1) {
    return block_cols >= cols ? granularity::row() : granularity::group(block_cols);
  }
  return granularity::block(block_rows, block_cols);
}

/// The grid positions of a region.
struct grid_region {
  index_t row_begin, row_end, col_begin, col_end;
  [[nodiscard]] index_t cols() const { return col_end - col_begin; }
  [[nodiscard]] index_t size() const { return (row_end - row_begin) * cols(); }
};

grid_region grid_of(stored_matrices const& from, stored_region const& region) {
  if (region.rows() == 0 || region.cols() == 0) return {0, 0, 0, 0};
  return {from.row_blocks.grid(region.row_begin), from.row_blocks.grid(region.row_end - 1) + 1,
          from.col_blocks.grid(region.col_begin), from.col_blocks.grid(region.col_end - 1) + 1};
}

/// Bytes of a region's row in memory: whole rows are read with their padding.
index_t row_bytes(stored_matrices const& from, stored_region const& region) {
  index_t const elements = region.cols() == from.cols ? from.pitch : region.cols();
  return ceil_div(checked_mul(elements, bits(from.type)), 8);
}

float read_global(folder const& files, tensor_entry const& global) {
  float value = 0.0F;
  files.read(global, 0, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace

index_t axis_blocks::run_end(index_t i, index_t end) const noexcept {
  index_t const limit = half != 0 && i < half ? std::min(half, end) : end;
  index_t const start = half != 0 && i >= half ? half : 0;
  index_t const inside = (i - start) % block;
  return inside == 0 ? limit : std::min(limit, i - inside + block);
}

stored_matrices matrices_of(module_format const& format, tensor_entry const* values,
                            tensor_entry const* scales, tensor_entry const* global) {
  stored_matrices result;
  result.values = values;
  result.type = library_type(format.values, format.value_type);
  result.count = format.stacked ? format.experts : 1;
  result.rows = format.transposed ? format.cols : format.rows;
  result.cols = format.transposed ? format.rows : format.cols;
  result.offset_nibbles = format.values == value_codec::int4x8;
  result.pitch = result.offset_nibbles ? align_up(format.cols, 8) : result.cols;
  if (format.scales == scale_codec::none) return result;
  result.scales = scales;
  result.scale_type = library_scale_type(format.scale_type);
  if (format.scales == scale_codec::tensor) {
    result.row_blocks.block = result.rows;
    result.col_blocks.block = result.cols;
    return result;
  }
  bool const per_block = format.block_rows > 0;
  bool const per_group = format.block_cols > 0;
  axis_blocks outputs{per_block ? format.block_rows : 1, 0};
  axis_blocks const inputs{per_group ? format.block_cols : format.cols, 0};
  if (format.fused && format.grid == fused_grid::halves && per_block)
    outputs.half = format.rows / 2;
  result.row_blocks = format.transposed ? inputs : outputs;
  result.col_blocks = format.transposed ? outputs : inputs;
  result.grid_cols = result.col_blocks.grid(result.cols - 1) + 1;
  if (format.stacked) {
    result.grid_slice = checked_mul(result.row_blocks.grid(result.rows - 1) + 1, result.grid_cols);
  }
  bool const nv = format.scales == scale_codec::nv16_mul || format.scales == scale_codec::nv16_div;
  if (nv) result.global = global;
  if (format.scales == scale_codec::nv16_div) result.direction = global_scale::direction::divide;
  return result;
}

piece_buffer::piece_buffer(index_t bytes) : bytes_(bytes) {
  constexpr std::size_t alignment = 64;
  auto const size = static_cast<std::size_t>(align_up(std::max<index_t>(bytes, 1), 64));
  data_.reset(static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment})));
}

void piece_buffer::release::operator()(std::byte* data) const noexcept {
  ::operator delete (data, std::align_val_t{64});
}

std::span<std::byte> piece_buffer::first(index_t bytes) {
  if (bytes < 0 || bytes > bytes_) {
    fail(errc::internal, "[buffer] {} bytes wanted of {}", bytes, bytes_);
  }
  return {data_.get(), static_cast<std::size_t>(bytes)};
}

region_bytes bytes_of(stored_matrices const& from, stored_region const& region) {
  region_bytes result;
  result.values = checked_mul(region.rows(), row_bytes(from, region));
  if (!from.plain()) {
    result.scales = checked_mul(grid_of(from, region).size(), bits(from.scale_type) / 8);
  }
  return result;
}

void read_numbers(folder const& files, stored_matrices const& from, stored_region const& region,
                  std::span<std::byte> value_memory, std::span<std::byte> scale_memory,
                  tensor_view const& out) {
  index_t const value_bits = bits(from.type);
  index_t const file_pitch = ceil_div(checked_mul(from.pitch, value_bits), 8);
  index_t const pitch_bytes = row_bytes(from, region);
  index_t const slice_bytes = checked_mul(from.rows, file_pitch);
  read_region(files,
              {*from.values, region.slice * slice_bytes, file_pitch, region.row_begin,
               region.row_end, region.col_begin * value_bits / 8, pitch_bytes},
              value_memory);
  if (from.offset_nibbles) {
    int4_from_offset(value_memory.first(static_cast<std::size_t>(region.rows() * pitch_bytes)));
  }
  stream const here = cpu_stream();
  index_t const pitch = pitch_bytes * 8 / value_bits;
  if (from.plain()) {
    tensor_view const values =
        matrix_at(value_memory.data(), from.type, region.rows(), region.cols(), pitch, 1);
    dequantize({quantized_view::plain(values), out}, here);
    return;
  }
  grid_region const grid = grid_of(from, region);
  index_t const number = bits(from.scale_type) / 8;
  read_region(files,
              {*from.scales, region.slice * from.grid_slice * number, from.grid_cols * number,
               grid.row_begin, grid.row_end, grid.col_begin * number, grid.cols() * number},
              scale_memory);
  float global_number = 0.0F;
  global_scale global;
  if (from.global != nullptr) {
    global_number = read_global(files, *from.global);
    global.values = tensor_view::contiguous(&global_number, dtype::f32, {1});
    global.applied = from.direction;
  }
  // The library counts blocks from the first row and column of what it is given.
  for (index_t row = region.row_begin; row < region.row_end;) {
    index_t const row_end = from.row_blocks.run_end(row, region.row_end);
    for (index_t col = region.col_begin; col < region.col_end;) {
      index_t const col_end = from.col_blocks.run_end(col, region.col_end);
      index_t const i = row - region.row_begin;
      index_t const j = col - region.col_begin;
      index_t const rows = row_end - row;
      index_t const cols = col_end - col;
      granularity const layout =
          layout_of(from.row_blocks.block, from.col_blocks.block, rows, cols);
      tensor_view const values =
          matrix_at(value_memory.data() + i * pitch_bytes + j * value_bits / 8, from.type, rows,
                    cols, pitch, 1);
      index_t const first = (from.row_blocks.grid(row) - grid.row_begin) * grid.cols() +
                            from.col_blocks.grid(col) - grid.col_begin;
      tensor_view const scales =
          matrix_at(scale_memory.data() + first * number, from.scale_type, layout.grid_rows(rows),
                    layout.grid_cols(cols), grid.cols(), 1);
      tensor_view target = out.rank == 2 ? out.as_stack() : out;
      target = target.slice(1, i, i + rows).slice(2, j, j + cols);
      dequantize({quantized_view::scaled(values, scales, layout, global), target}, here);
      col = col_end;
    }
    row = row_end;
  }
}

}  // namespace moe64::checkpoint
