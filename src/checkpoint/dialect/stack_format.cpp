#include "checkpoint/dialect/stack_format.hpp"

#include "core/fail.hpp"

namespace moe64::checkpoint {
namespace {

granularity layout_of(module_format const& format) {
  switch (format.scales) {
    case scale_codec::none:
      return granularity::none();
    case scale_codec::blk:
    case scale_codec::blk_pow2:
    case scale_codec::blk4d:
      return granularity::block(format.block_rows, format.block_cols);
    case scale_codec::mx32:
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
    case scale_codec::grp:
      return granularity::group(format.block_cols);
    case scale_codec::row:
    case scale_codec::col3d:
      return granularity::row();
    case scale_codec::tensor:
      return granularity::tensor();
  }
  return granularity::none();
}

/// Rows of one part of a fused tensor start here and are this far apart, in rows.
struct part_rows {
  index_t first = 0;
  index_t step = 1;
};

part_rows rows_of_part(module_format const& format, int part, index_t rows) {
  if (!format.fused) return {};
  if (format.gate_up == gate_up_layout::interleaved) return {part, 2};
  return {part * rows, 1};
}

placement place_values(module_format const& format, part_rows where) {
  placement place;
  if (format.transposed) {
    place = {where.first, where.step, format.rows, checked_mul(format.rows, format.cols)};
  } else {
    // eight nibbles share a word, and a row starts with a new one
    index_t const pitch =
        format.values == value_codec::int4x8 ? align_up(format.cols, 8) : format.cols;
    place = {checked_mul(where.first, pitch), checked_mul(where.step, pitch), 1,
             checked_mul(format.rows, pitch)};
  }
  return place;
}

/// The stored grid as a whole, from its first number.
placement place_grid(module_format const& format) {
  scale_grid grid = grid_of(format, format.rows);
  if (format.fused && format.grid == fused_grid::halves) {
    grid = grid_of(format, format.rows / 2);
    grid.rows *= 2;
  }
  index_t const slice = checked_mul(grid.rows, grid.cols);
  if (format.scales == scale_codec::col3d) return {0, 1, 1, slice};
  if (format.transposed) return {0, 1, grid.rows, slice};
  return {0, grid.cols, 1, slice};
}

void place_scales(module_format const& format, int part, index_t rows, stack_format& into) {
  into.layout = layout_of(format);
  into.scale_type = library_scale_type(format.scale_type);
  if (format.scales == scale_codec::tensor) {
    into.scales = {0, 0, 0, format.stacked ? 0 : 1};  // a stack has one number for all experts
    into.stored_scales = into.scales;
    return;
  }
  into.stored_scales = place_grid(format);
  into.scales = into.stored_scales;
  if (straddles(format)) {
    index_t const cols = grid_of(format, rows).cols;
    into.expand_scale_rows = true;
    into.expand_offset = part * rows;
    into.expand_block = format.block_rows;
    into.layout = granularity::group(format.block_cols);
    into.scales = {0, cols, 1, checked_mul(rows, cols)};
    return;
  }
  part_rows where = rows_of_part(format, part, rows);
  if (format.fused && format.block_rows > 0) {
    where.first = part * ceil_div(rows, format.block_rows);  // in rows of the grid
  }
  into.scales.first = where.first * into.stored_scales.row_stride;
  into.scales.row_stride = where.step * into.stored_scales.row_stride;
}

tensor_view view_of(void* data, dtype type, index_t const (&extents)[3], placement const& place,
                    device where) {
  tensor_view view;
  view.data = static_cast<std::byte*>(data) + place.first * bits(type) / 8;
  view.type = type;
  view.rank = 3;
  view.device = where;
  index_t const strides[3] = {place.slice, place.row_stride, place.col_stride};
  for (int d = 0; d < 3; ++d) {
    view.extent[d] = extents[d];
    view.stride[d] = strides[d];
  }
  return view;
}

}  // namespace

dtype library_scale_type(file_dtype type) {
  switch (type) {
    case file_dtype::f32:
      return dtype::f32;
    case file_dtype::bf16:
      return dtype::bf16;
    case file_dtype::f16:
      return dtype::f16;
    case file_dtype::u8:
    case file_dtype::f8_e8m0:
      return dtype::e8m0;
    case file_dtype::f8_e4m3:
      return dtype::e4m3;
    default:
      fail(errc::internal, "[stack_format] {} holds no scales", name(type));
  }
}

dtype library_type(value_codec codec, file_dtype type) {
  switch (codec) {
    case value_codec::plain:
      return library_scale_type(type);
    case value_codec::e4m3:
      return dtype::e4m3;
    case value_codec::fp4x2:
    case value_codec::fp4blk:
      return dtype::fp4;
    case value_codec::int4x8:
      return dtype::int4;
  }
  fail(errc::internal, "[stack_format] no such codec");
}

stack_format part_format(module_format const& format, int part) {
  stack_format result;
  result.type = library_type(format.values, format.value_type);
  result.rows = format.fused ? format.rows / 2 : format.rows;
  result.cols = format.cols;
  result.values = place_values(format, rows_of_part(format, part, result.rows));
  if (format.values == value_codec::int4x8) result.repack = value_repack::int4_from_offset;
  if (format.scales == scale_codec::none) return result;
  place_scales(format, part, result.rows, result);
  result.has_global =
      format.row->global != tensor_part::unknown &&
      (format.scales == scale_codec::nv16_mul || format.scales == scale_codec::nv16_div);
  if (format.scales == scale_codec::nv16_div) {
    result.direction = global_scale::direction::divide;
  }
  return result;
}

index_t value_slice_bytes(stack_format const& format) {
  return checked_mul(format.values.slice, bits(format.type)) / 8;
}

index_t scale_slice_bytes(stack_format const& format) {
  index_t const numbers = format.stored_scales.slice > 0 ? format.stored_scales.slice : 1;
  return format.layout.kind == scale_kind::none ? 0
                                                : checked_mul(numbers, bits(format.scale_type)) / 8;
}

quantized_view make_view(stack_format const& format, stack_memory const& memory) {
  tensor_view const values =
      view_of(memory.values, format.type, {memory.experts, format.rows, format.cols}, format.values,
              memory.where);
  if (format.layout.kind == scale_kind::none) return quantized_view::plain(values);
  tensor_view const scales = view_of(
      memory.scales, format.scale_type,
      {memory.experts, format.layout.grid_rows(format.rows), format.layout.grid_cols(format.cols)},
      format.scales, memory.where);
  global_scale global;
  if (format.has_global) {
    global.applied = format.direction;
    global.values =
        tensor_view::contiguous(memory.globals, dtype::f32, {memory.experts}, memory.where);
  }
  return quantized_view::scaled(values, scales, format.layout, global);
}

}  // namespace moe64::checkpoint
