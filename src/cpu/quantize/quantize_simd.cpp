#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/quantize/quantize_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/codes.hpp"
#include "cpu/gemm/portable/stream.hpp"
#include "cpu/operations.hpp"
#include "cpu/quantize/codes_simd.hpp"
#include "cpu/quantize/panels.hpp"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {
namespace {

/// visit(row, col, count) over the rows of a panel in runs that fit a buffer.
template <class Visit>
HWY_INLINE void for_each_run(panel const& p, Visit const& visit) {
  for (index_t row = p.row_begin; row < p.row_end; ++row) {
    for (index_t col = p.first * p.block_cols; col < p.col_end; col += run_length) {
      visit(row, col, std::min(run_length, p.col_end - col));
    }
  }
}

/// visit(block, begin, end) for the part of each block that lies in columns [col, col + count);
/// begin and end count from col, block from the first of the panel.
template <class Visit>
HWY_INLINE void for_each_block(panel const& p, index_t col, index_t count, Visit const& visit) {
  index_t block = col / p.block_cols;
  for (index_t begin = 0; begin < count; ++block) {
    index_t const end = std::min(count, (block + 1) * p.block_cols - col);
    visit(block - p.first, begin, end);
    begin = end;
  }
}

/// Of one whole matrix; of its finite numbers where there are others.
magnitude measure_matrix(tensor_view const& x, index_t expert, index_t rows) {
  panel const all = {expert, 0, 0, rows, 0, 1, x.extent[2], x.extent[2], 0};
  float run[run_length];
  largest_of<f32_number> largest;
  largest.clear();
  for_each_run(all, [&](index_t row, index_t col, index_t count) HWY_ATTR {
    load_run(row_of(x, expert, row), col, count, run);
    for (index_t i = 0; i < count; ++i) run[i] = std::isfinite(run[i]) ? run[i] : 0.0F;
    largest.add(run, 0, count, 0);
  });
  return largest.size();
}

/// Numbers of a row of x from column col on, as type X: where they lie, or copied to `run` when X
/// is f32 because they do not lie side by side.
struct source {
  void const* data;
  index_t first;
};
HWY_INLINE source source_of(row_view const& x, index_t col, index_t count, float* run) {
  if (x.stride == 1) return {x.data, x.offset + col};
  load_row(x, col, count, run);
  return {run, 0};
}

/// The scales of a panel: factor[block] is what its codes will be multiplied with.
template <class X>
void write_scales(quantize_view const& p, panel const& at, float global, float* factor) {
  float run[run_length];
  largest_of<X> largest[panel_blocks];
  for (index_t block = 0; block < at.count; ++block) largest[block].clear();
  index_t const row_stride = p.x.stride[2] == 1 ? p.x.stride[1] : 0;
  for_each_run(at, [&](index_t row, index_t col, index_t count) HWY_ATTR {
    source const x = source_of(row_of(p.x, at.expert, row), col, count, run);
    for_each_block(at, col, count, [&](index_t block, index_t begin, index_t end) HWY_ATTR {
      largest[block].add(x.data, x.first + begin, end - begin, row_stride);
    });
  });
  for (index_t block = 0; block < at.count; ++block) {
    factor[block] = write_scale(p.target(), largest[block].size(), global, at.expert, at.grid_row,
                                at.first + block);
  }
}

template <class X, class Number>
void write_codes(quantize_view const& p, panel const& at, float const* factor, bool streamed) {
  float run[run_length];
  alignas(64) std::uint8_t staged[run_length];
  for_each_run(at, [&](index_t row, index_t col, index_t count) HWY_ATTR {
    source const x = source_of(row_of(p.x, at.expert, row), col, count, run);
    row_view const out = row_of(p.values, at.expert, row);
    bool const stages = !is_packed<Number> && streamed && out.stride == 1;
    row_view const target = stages ? row_view{staged, -col, 1, out.type} : out;
    for_each_block(at, col, count, [&](index_t block, index_t begin, index_t end) HWY_ATTR {
      quantize_run<X, Number>(x.data, x.first + begin, end - begin, factor[block], target,
                              col + begin, at.to_next);
    });
    if (stages) {
      copy_streamed(static_cast<std::uint8_t*>(out.data) + out.offset + col, staged, count);
    }
  });
}

template <class X>
void quantize_panel(quantize_view const& p, panel const& at, float global, bool streamed) {
  float factor[panel_blocks];
  write_scales<X>(p, at, global, factor);
  visit_code(p.values.type, [&](auto number) HWY_ATTR {
    write_codes<X, decltype(number)>(p, at, factor, streamed);
  });
}

}  // namespace

void quantize_simd(quantize_args const& args, stream where);
void quantize_simd(quantize_args const& args, stream where) {
  quantize_view const p(args);
  index_t const experts = p.x.extent[0];
  index_t const rows = count_rows("quantize", args.live_rows, p.x.extent[1]);
  write_globals(args, experts, where,
                [&](index_t expert) { return measure_matrix(p.x, expert, rows); });
  bool const streamed = is_streamed(p.values.type, experts * rows * p.x.extent[2]);
  dtype const x_type = p.x.stride[2] == 1 ? p.x.type : dtype::f32;
  for_each_panel(
      p, rows, where,
      [&](panel const& at, float global) {
        visit_float(x_type, [&](auto number) {
          quantize_panel<decltype(number)>(p, at, global, streamed);
        });
      },
      [&] { end_streaming(streamed); });
}

void dequantize_simd(dequantize_args const& args, stream where);
void dequantize_simd(dequantize_args const& args, stream where) {
  quantized_view const& q = args.q;
  tensor_view const out = args.out.as_stack();
  index_t const cols = q.cols();
  index_t const row_bytes = cols * (bits(q.type()) + bits(out.type)) / 8;
  bool const streamed = is_streamed(out.type, q.experts() * q.rows() * cols);
  parallel_ranges(where, q.experts() * q.rows(), row_bytes, [&](index_t begin, index_t end) {
    float run[run_length];
    for (index_t i = begin; i < end; ++i) {
      index_t const expert = i / q.rows();
      index_t const row = i % q.rows();
      for (index_t col = 0; col < cols; col += run_length) {
        index_t const count = std::min(run_length, cols - col);
        load_scaled_run(q, expert, row, col, count, run);
        store_run(row_of(out, expert, row), col, count, run, streamed);
      }
    }
    end_streaming(streamed);
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
