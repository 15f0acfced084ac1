#include "cuda/usual.hpp"

#include "cuda/eights.hpp"

namespace moe64::cuda {
namespace {

constexpr index_t most_steps = index_t{1} << 32;
constexpr index_t most_items = index_t{1} << 31;

std::uint32_t short_of(index_t number) { return narrow<std::uint32_t>(number); }

}  // namespace

std::optional<usual_target> usual_target_of(quantize_target const& target) {
  tensor_view const& values = target.values;
  tensor_view const& scales = target.scales;
  index_t const rows = values.extent[1], cols = values.extent[2];
  bool const in_groups = target.block_cols == usual_group;
  if (values.type != dtype::e4m3 || scales.type != dtype::f32 || target.global.present() ||
      values.extent[0] != 1 || target.block_rows != 1 ||
      !(in_groups || target.block_cols >= cols)) {
    return std::nullopt;
  }
  index_t const row_sixteens = target.row_sixteens.by;
  if (rows >= most_items || cols >= most_items || cols == 0 ||
      checked_mul(rows, row_sixteens) > most_items - usual_tile) {
    return std::nullopt;
  }
  if (values.stride[1] >= most_steps || scales.stride[1] >= most_steps ||
      scales.stride[2] >= most_steps) {
    return std::nullopt;
  }
  return usual_target{.codes = static_cast<std::uint8_t*>(values.data),
                      .scales = static_cast<float*>(scales.data),
                      .code_step = short_of(values.stride[1]),
                      .scale_step = short_of(scales.stride[1]),
                      .group_step = short_of(scales.stride[2]),
                      .rows = short_of(rows),
                      .cols = short_of(cols),
                      .live_rows = static_cast<std::int64_t const*>(target.live_rows.data),
                      .row_sixteens = target.row_sixteens,
                      .in_groups = in_groups};
}

std::optional<usual_rows> usual_rows_of(tensor_view const& matrix) {
  index_t const step = matrix.stride[matrix.rank - 2] * bits(matrix.type) / 8;
  if (step >= most_steps) return std::nullopt;
  return usual_rows{static_cast<std::uint8_t const*>(matrix.data), short_of(step)};
}

grid usual_groups_grid(launcher const& on, usual_target const& to) {
  index_t const tiles = ceil_div(index_t{to.rows} * to.row_sixteens.by, usual_tile);
  return {on.blocks_for(tiles, one_task_each), usual_threads};
}

index_t usual_threads_of_row(usual_target const& to) {
  return align_up(ceil_div(index_t{to.cols}, index_t{32}), 32);
}

}  // namespace moe64::cuda
