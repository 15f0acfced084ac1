#include "cpu/quantize/quantize.hpp"

#include "core/number.hpp"
#include "cpu/quantize/vbmi/dequantize_vbmi.hpp"
#include "cpu/quantize/vbmi/quantize_vbmi.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(quantize_args, quantize_simd)
MOE64_DECLARE_WIDTHS(dequantize_args, dequantize_simd)

namespace {

float smallest_positive(dtype scale) {
  switch (scale) {
    case dtype::bf16:
      return decode_bf16(1);
    case dtype::f16:
      return decode_float<f16_format>(1);
    case dtype::e4m3:
      return decode_float<e4m3_format>(1);
    default:
      return std::numeric_limits<float>::denorm_min();
  }
}

}  // namespace

void magnitude::add(float const* run, index_t count) {
  for (index_t i = 0; i < count; ++i) {
    float const size = std::fabs(run[i]);
    if (!std::isfinite(size)) {
      finite = false;
    } else {
      largest = std::max(largest, size);
    }
  }
}

void divide_numbers(float* run, index_t count, float factor, float limit) {
  bool const zero = std::isnan(factor);
  for (index_t i = 0; i < count; ++i) {
    run[i] = zero ? 0.0F : std::clamp(run[i] / factor, -limit, limit);
  }
}

float write_scale(scale_target const& to, magnitude const& size, float global, index_t expert,
                  index_t grid_row, index_t grid_col) {
  tensor_view const& scales = to.scales;
  if (!size.finite) {
    store_number(scales, std::numeric_limits<float>::quiet_NaN(), expert, grid_row, grid_col);
    return std::numeric_limits<float>::quiet_NaN();
  }
  bool const divides = to.global.applied == global_scale::direction::divide;
  bool const has_global = to.global.values.present();
  float wanted = 1.0F;
  if (size.largest > 0.0F) {
    wanted = size.largest / largest_code(to.code);
    if (has_global) wanted = divides ? wanted * global : wanted / global;
  }
  store_number(scales, wanted, expert, grid_row, grid_col);
  float stored = load_number(scales, expert, grid_row, grid_col);
  if (stored == 0.0F) {
    stored = smallest_positive(scales.type);
    store_number(scales, stored, expert, grid_row, grid_col);
  }
  if (!has_global) return stored;
  return divides ? stored / global : stored * global;
}

float global_for(magnitude const& size, global_scale::direction applied) {
  constexpr float span = 6.0F * 448.0F;
  if (size.largest == 0.0F) return 1.0F;
  float const global =
      applied == global_scale::direction::multiply ? size.largest / span : span / size.largest;
  return std::isfinite(global) && global > 0.0F ? global : 1.0F;
}

namespace {

template <class Visit>
void for_each_run(block_range const& block, Visit const& visit) {
  for (index_t row = block.row_begin; row < block.row_end; ++row) {
    for (index_t col = block.col_begin; col < block.col_end; col += run_length) {
      visit(row, col, std::min(run_length, block.col_end - col));
    }
  }
}

magnitude measure(tensor_view const& x, index_t expert, block_range const& block) {
  magnitude result;
  float run[run_length];
  for_each_run(block, [&](index_t row, index_t col, index_t count) {
    load_row(row_of(x, expert, row), col, count, run);
    result.add(run, count);
  });
  return result;
}

}  // namespace

void write_codes(quantize_view const& p, index_t expert, block_range const& block, float factor) {
  float const limit = largest_code(p.values.type);
  float run[run_length];
  for_each_run(block, [&](index_t row, index_t col, index_t count) {
    load_row(row_of(p.x, expert, row), col, count, run);
    divide_numbers(run, count, factor, limit);
    store_row(row_of(p.values, expert, row), col, count, run);
  });
}

namespace {

void quantize_reference(quantize_args const& args, stream where) {
  quantize_view const p(args);
  index_t const experts = p.x.extent[0];
  index_t const rows = count_rows("quantize", args.live_rows, p.x.extent[1]);
  index_t const cols = p.x.extent[2];
  bool const has_global = args.global.values.present();
  write_globals(args, experts, where, [&](index_t expert) {
    return measure(p.x, expert, {0, rows, 0, cols});
  });
  index_t const block_rows = args.layout.rows_per_scale(p.x.extent[1]);
  index_t const block_cols = args.layout.cols_per_scale(cols);
  index_t const grid_rows = ceil_div(rows, block_rows);
  parallel_for(where, experts * grid_rows, [&](index_t task) {
    index_t const expert = task / grid_rows;
    index_t const grid_row = task % grid_rows;
    float const global = has_global ? load_number(args.global.values, expert) : 1.0F;
    index_t const row_begin = grid_row * block_rows;
    index_t const row_end = row_begin + std::min(block_rows, rows - row_begin);
    for (index_t col = 0, grid_col = 0; col < cols; col += block_cols, ++grid_col) {
      block_range const block = {row_begin, row_end, col, col + std::min(block_cols, cols - col)};
      magnitude const size = measure(p.x, expert, block);
      float const factor = write_scale(p.target(), size, global, expert, grid_row, grid_col);
      write_codes(p, expert, block, factor);
    }
  });
}

void dequantize_reference(dequantize_args const& args, stream where) {
  quantized_view const& q = args.q;
  tensor_view const out = args.out.as_stack();
  index_t const cols = q.cols();
  index_t const row_bytes = cols * (bits(q.type()) + bits(out.type)) / 8;
  parallel_ranges(where, q.experts() * q.rows(), row_bytes, [&](index_t begin, index_t end) {
    float run[run_length];
    for (index_t i = begin; i < end; ++i) {
      index_t const expert = i / q.rows();
      index_t const row = i % q.rows();
      for (index_t col = 0; col < cols; col += run_length) {
        index_t const count = std::min(run_length, cols - col);
        load_scaled_row(q, expert, row, col, count, run);
        store_row(row_of(out, expert, row), col, count, run);
      }
    }
  });
}

constexpr implementation<quantize_args> quantizers[] = {
#if defined(__x86_64__)
    {"avx512_vbmi", where<has_avx512_vbmi, quantize_args, bf16::takes_table>,
     bf16::quantize_by_table},
#endif
    MOE64_WIDTHS(quantize_args, quantize_simd, any_call<quantize_args>),
    {"reference", any_call<quantize_args>, quantize_reference},
};
constexpr implementation<dequantize_args> dequantizers[] = {
#if defined(__x86_64__)
    {"avx512_vbmi", where<has_avx512_vbmi, dequantize_args, bf16::takes_table>,
     bf16::dequantize_by_table},
#endif
    MOE64_WIDTHS(dequantize_args, dequantize_simd, any_call<dequantize_args>),
    {"reference", any_call<dequantize_args>, dequantize_reference},
};

}  // namespace

implementation_list<quantize_args> quantize_list() { return quantizers; }
implementation_list<dequantize_args> dequantize_list() { return dequantizers; }

}  // namespace moe64::cpu
