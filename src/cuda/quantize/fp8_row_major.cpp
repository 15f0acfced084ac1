#include "cuda/quantize/fp8_row_major.hpp"

#include "cuda/vec8.hpp"

#include <fmt/format.h>

namespace moe64::cuda {
namespace {

constexpr index_t most_steps = index_t{1} << 32;
constexpr index_t most_extent = index_t{1} << 31;

std::uint32_t short_of(index_t number) { return narrow<std::uint32_t>(number); }

bool in_groups(quantize_target const& target) { return target.block_cols == row_major_group; }

index_t row_bytes(tensor_view const& matrix) {
  return matrix.stride[matrix.rank - 2] * bits(matrix.type) / 8;
}

}  // namespace

support can_be_row_major(quantize_target const& target, int width) {
  tensor_view const& values = target.values;
  tensor_view const& scales = target.scales;
  if (values.type != dtype::e4m3 || scales.type != dtype::f32) {
    return support::no(fmt::format("to {} with scales of {}, not to e4m3 with scales of f32",
                                   name(values.type), name(scales.type)));
  }
  if (target.global.present()) return support::no("there is a global scale");
  index_t const rows = values.extent[1], cols = values.extent[2];
  if (values.extent[0] != 1) {
    return support::no(fmt::format("a stack of {} matrices, not one", values.extent[0]));
  }
  if (target.block_rows != 1 || !(in_groups(target) || target.block_cols >= cols)) {
    return support::no(fmt::format("a scale for every {} x {} elements, not for {} or for a row",
                                   target.block_rows, target.block_cols, row_major_group));
  }
  index_t const item_cols = index_t{16} * width;
  if (cols == 0 || cols % item_cols != 0) {
    return support::no(fmt::format("{} columns are no multiple of {}", cols, item_cols));
  }
  if (cols >= most_extent || rows >= most_extent ||
      checked_mul(rows, target.row_vec16s.by) >= row_major_most_items) {
    return support::no(fmt::format(
        "{} x {} elements: it counts those of a call with 31 bits, by {}", rows, cols, item_cols));
  }
  if (values.stride[1] >= most_steps || scales.stride[1] >= most_steps ||
      scales.stride[2] >= most_steps) {
    return support::no("rows or scales lie 2^32 elements apart");
  }
  return support::yes();
}

row_major_target row_major_target_of(quantize_target const& target, int width) {
  tensor_view const& values = target.values;
  tensor_view const& scales = target.scales;
  return {.codes = static_cast<std::uint8_t*>(values.data),
          .scales = static_cast<float*>(scales.data),
          .code_step = short_of(values.stride[1]),
          .scale_step = short_of(scales.stride[1]),
          .group_step = short_of(scales.stride[2]),
          .rows = short_of(values.extent[1]),
          .cols = short_of(values.extent[2]),
          .live_rows = static_cast<std::int64_t const*>(target.live_rows.data),
          .row_items = divide_by(target.row_vec16s.by / width),
          .in_groups = in_groups(target)};
}

support has_row_major_rows(char const* argument, tensor_view const& matrix) {
  if (bits(matrix.type) != 16) {
    return support::no(fmt::format("{} is {}, not bf16 or f16", argument, name(matrix.type)));
  }
  if (row_bytes(matrix) < most_steps) return support::yes();
  return support::no(fmt::format("rows of {} lie {} bytes apart, not less than 2^32", argument,
                                 row_bytes(matrix)));
}

row_major_rows row_major_rows_of(tensor_view const& matrix) {
  return {static_cast<std::uint8_t const*>(matrix.data), short_of(row_bytes(matrix))};
}

index_t row_major_ctas(launcher const& on, row_major_target const& to, index_t tile) {
  return on.ctas_for(ceil_div(index_t{to.rows} * to.row_items.by, tile), one_task_each);
}

row_major_cta row_major_cta_of(row_major_target const& to) {
  index_t const items = to.row_items.by;
  row_major_cta best = {align_up(items, 32), 1};
  // Up to four rows; the fewest that leave less than an eighth of the threads idle.
  for (index_t rows = 2; rows <= 4 && best.threads * 7 / 8 > best.rows * items; ++rows) {
    row_major_cta const more = {align_up(rows * items, 32), rows};
    bool const better = more.threads * best.rows < best.threads * more.rows;
    if (better && more.threads <= row_major_row_threads) best = more;
  }
  return best;
}

}  // namespace moe64::cuda
