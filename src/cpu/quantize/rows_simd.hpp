// quantize/rows.hpp with vectors. Included once per target, after simd.hpp.

#if defined(MOE64_CPU_QUANTIZE_ROWS_SIMD_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MOE64_CPU_QUANTIZE_ROWS_SIMD_HPP
#undef MOE64_CPU_QUANTIZE_ROWS_SIMD_HPP
#else
#define MOE64_CPU_QUANTIZE_ROWS_SIMD_HPP
#endif

#include "cpu/quantize/codes_simd.hpp"
#include "cpu/quantize/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// Numbers of one row on their way to codes of type `Number`: what would lie in memory as type X
/// lies on the stack, a block that shares a scale at a time; a block that does not fit is made
/// twice, in pieces.
template <class X, class Number, class Produce>
void quantize_produced_row(row_codes const& to, index_t row, dtype type, Produce const& produce) {
  constexpr index_t most = 16 * run_length;
  alignas(64) std::uint8_t staged[static_cast<std::size_t>(most) * sizeof(float)];
  index_t const cols = to.codes.extent[1];
  index_t const block_cols = to.layout.cols_per_scale(cols);
  row_view const out = row_of(to.codes, row);
  auto const stage = [&](index_t begin, index_t end) HWY_ATTR {
    for (index_t col = begin; col < end; col += run_length) {
      produce(row_view{staged, -begin, 1, type}, col, std::min(run_length, end - col));
    }
  };
  for (index_t begin = 0, grid_col = 0; begin < cols; begin += block_cols, ++grid_col) {
    index_t const end = begin + std::min(block_cols, cols - begin);
    bool const in_pieces = end - begin > most;
    index_t const step = in_pieces ? run_length : end - begin;
    largest_of<X> largest;
    largest.clear();
    for (index_t col = begin; col < end; col += step) {
      index_t const piece_end = std::min(end, col + step);
      stage(col, piece_end);
      largest.add(staged, 0, piece_end - col, 0);
    }
    float const factor =
        write_scale({to.scales.as_stack(), to.codes.type}, largest.size(), 1.0F, 0, row, grid_col);
    for (index_t col = begin; col < end; col += step) {
      index_t const piece_end = std::min(end, col + step);
      if (in_pieces) stage(col, piece_end);
      quantize_run<X, Number>(staged, 0, piece_end - col, factor, out, col, 0);
    }
  }
}

/// Codes and scales of one row. produce(to, col, count) writes its numbers [col, col + count), at
/// most run_length of them, to element col and on of a row of `type`.
template <class Produce>
void quantize_row_simd(row_codes const& to, index_t row, dtype type, Produce const& produce) {
  visit_float(type, [&](auto x) HWY_ATTR {
    visit_code(to.codes.type, [&](auto number) HWY_ATTR {
      quantize_produced_row<decltype(x), decltype(number)>(to, row, type, produce);
    });
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
