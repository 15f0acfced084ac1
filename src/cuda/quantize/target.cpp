#include "cuda/quantize/target.hpp"

#include "core/number.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

namespace moe64::cuda {
namespace {

/// Columns of one block, no more than there are.
index_t cols_of_block(quantize_target const& target) {
  return std::min(target.block_cols, target.values.extent[2]);
}

bool is_power_of_2(index_t number) {
  return number > 0 && std::has_single_bit(static_cast<std::uint64_t>(number));
}

support refused(quantize_target const& target, char const* wanted) {
  return support::no("a scale for every " + std::to_string(target.block_rows) + " x " +
                     std::to_string(target.block_cols) + " elements, not for " + wanted);
}

}  // namespace

quantize_target target_of(coded const& to, global_scale const& global,
                          tensor_view const& live_rows) {
  tensor_view const values = to.values.as_stack();
  index_t const block_cols = to.layout.cols_per_scale(values.extent[2]);
  index_t const row_vec16s =
      ceil_div(align_up(values.extent[2], std::max<index_t>(block_cols, 1)), 16);
  return {.values = values,
          .scales = to.scales.as_stack(),
          .global = global.values,
          .live_rows = live_rows,
          .block_rows = to.layout.rows_per_scale(values.extent[1]),
          .block_cols = block_cols,
          .largest_code = largest_code(values.type),
          .global_divides = global.applied == global_scale::direction::divide,
          .row_vec16s = divide_by(row_vec16s),
          .tiles = divide_by(ceil_div(checked_mul(values.extent[1], row_vec16s), groups_tile))};
}

support can_make_groups(quantize_target const& target) {
  constexpr index_t most_vec16s = index_t{1} << 27;  // columns of 31 bits
  bool const whole_lanes =
      target.block_cols >= 16 && target.block_cols <= 512 && is_power_of_2(target.block_cols);
  if (target.row_vec16s.by > most_vec16s) {
    return support::no(fmt::format("rows of {} columns: it takes at most {}",
                                   target.values.extent[2], 16 * most_vec16s));
  }
  if (target.block_rows == 1 && whole_lanes) return support::yes();
  return refused(target, "1 x 16, 32, 64, 128, 256 or 512");
}

support can_make_blocks(quantize_target const& target, cta_capacity const& cta) {
  if (bits(target.values.type) != 8) {
    return support::no("codes are " + std::string(name(target.values.type)) + ", not of 8 bits");
  }
  // Looked at one by one: the product of both may not fit.
  index_t const largest = cta.threads * cta.held;
  bool const fits = target.block_rows <= largest && cols_of_block(target) <= largest &&
                    threads_of_block(target, cta) <= cta.threads;
  // A vec16 must not cross into the next block.
  bool const apart = target.block_cols % 16 == 0 || target.block_cols >= target.values.extent[2];
  bool const one_row = target.block_rows == 1 && apart;
  bool const whole_lanes = target.block_cols >= 16 && is_power_of_2(target.block_cols);
  if (fits && (one_row || whole_lanes)) return support::yes();
  return refused(target, "rows or blocks of 2^n columns that one CTA can hold");
}

index_t threads_of_block(quantize_target const& target, cta_capacity const& cta) {
  index_t const cols = target.block_rows == 1 ? cols_of_block(target) : target.block_cols;
  return align_up(ceil_div(target.block_rows * cols, cta.held), 32);
}

index_t tiles_of_groups(quantize_target const& target) {
  return checked_mul(target.values.extent[0], target.tiles.by);
}

}  // namespace moe64::cuda
