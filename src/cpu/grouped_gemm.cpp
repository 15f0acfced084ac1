#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/gemm/epilogue.hpp"
#include "cpu/gemm/reference/tile.hpp"
#include "cpu/gemm/vnni/grouped_gemm_vnni.hpp"
#include "cpu/operations.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/widths.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(grouped_gemm_args, grouped_gemm_simd)

namespace {

/// Weight (out, depth) pairs of the tile: stack rows along `out`, or along depth when transposed.
void load_weights(product const& p, tile_place const& at, index_t depth_begin, index_t depth,
                  weight_tile& tile) {
  weight_stack const& weights = p.weights;
  auto const number_row = [&](index_t row, index_t col, index_t count, float* out) {
    part_row const place = part_row_of(weights, row);
    quantized_view const& matrix = weights.part(place.part);
    load_scaled_row(matrix, at.expert, place.row, col, count, out);
    if (!matrix.is_plain()) round_row(p.weights_as, count, out);
  };
  if (!p.transpose) {
    for (index_t n = 0; n < at.outs; ++n) {
      auto* const run = reinterpret_cast<float*>(tile.values[n]);
      number_row(at.out_begin + n, depth_begin, depth, run);
      pad_to_lanes(run, depth);
    }
    return;
  }
  for (index_t k = 0; k < depth; ++k) {
    float run[out_tile];
    number_row(depth_begin + k, at.out_begin, at.outs, run);
    for (index_t n = 0; n < at.outs; ++n) reinterpret_cast<float*>(tile.values[n])[k] = run[n];
  }
  for (index_t n = 0; n < at.outs; ++n) {
    pad_to_lanes(reinterpret_cast<float*>(tile.values[n]), depth);
  }
}

using results = float[row_tile][out_tile];

/// Plain x: one dot product over the whole depth.
void multiply(product const& p, tile_place const& at, results& out) {
  alignas(64) x_tile x;
  alignas(64) weight_tile weights = {};
  alignas(64) dot_tile acc = {};
  for (index_t begin = 0; begin < p.depth(); begin += depth_tile) {
    index_t const depth = std::min(depth_tile, p.depth() - begin);
    load_weights(p, at, begin, depth, weights);
    for (index_t r = 0; r < at.rows; ++r) {
      auto* const run = reinterpret_cast<float*>(x.values[r]);
      load_row(row_of(p.x.values(), 0, at.row_begin + r), begin, depth, run);
      pad_to_lanes(run, depth);
    }
    accumulate(acc, x, weights, at.rows, ceil_div(depth, lane_count));
  }
  for (index_t r = 0; r < at.rows; ++r) {
    for (index_t n = 0; n < at.outs; ++n) out[r][n] = fold(acc.lanes[r][n]);
  }
}

/// Quantised x: sums of code products over segments that share both scales, scaled and added in
/// f32.
void multiply_codes(product const& p, tile_place const& at, results& out) {
  alignas(64) x_tile x;
  alignas(64) weight_tile weights = {};
  std::memset(out, 0, sizeof(results));
  quantized_view const& first = p.weights.part(0);
  index_t const x_block = p.x.layout().cols_per_scale(p.depth());
  index_t const weight_block = first.layout().cols_per_scale(p.depth());
  index_t const block_rows = first.layout().rows_per_scale(p.weights.part_rows());
  for (index_t begin = 0; begin < p.depth();) {
    index_t const end = segment_end(begin, p.depth(), x_block, weight_block);
    float weight_scale[out_tile];
    for (index_t n = 0; n < at.outs; ++n) {
      part_row const place = part_row_of(p.weights, at.out_begin + n);
      quantized_view const& matrix = p.weights.part(place.part);
      auto* const run = reinterpret_cast<float*>(weights.values[n]);
      load_row(row_of(matrix.values(), matrix.values_at(at.expert), place.row), begin, end - begin,
               run);
      pad_to_lanes(run, end - begin);
      weight_scale[n] = matrix.is_plain() ? 1.0F
                                          : scale_at(matrix, at.expert, place.row / block_rows,
                                                     begin / weight_block);
    }
    for (index_t r = 0; r < at.rows; ++r) {
      auto* const run = reinterpret_cast<float*>(x.values[r]);
      load_row(row_of(p.x.values(), 0, at.row_begin + r), begin, end - begin, run);
      pad_to_lanes(run, end - begin);
    }
    alignas(64) dot_tile acc = {};
    accumulate(acc, x, weights, at.rows, ceil_div(end - begin, lane_count));
    for (index_t r = 0; r < at.rows; ++r) {
      float const x_scale = scale_at(p.x, 0, at.row_begin + r, begin / x_block);
      for (index_t n = 0; n < at.outs; ++n) {
        out[r][n] += fold(acc.lanes[r][n]) * (x_scale * weight_scale[n]);
      }
    }
    begin = end;
  }
}

/// y of one tile: product, low-rank addend and bias, rounded once.
void compute_tile(grouped_gemm_args const& args, tile_place const& at) {
  results sum;
  product const main = {args.x, args.weights, args.transpose, args.x.type()};
  if (args.x.is_plain()) {
    multiply(main, at, sum);
  } else {
    multiply_codes(main, at, sum);
  }
  results addend;
  bool const low_rank = args.low_rank.u.present();
  if (low_rank) {
    quantized_view const u = quantized_view::plain(args.low_rank.u);
    multiply({u, args.low_rank.weights, args.transpose, dtype::f32}, at, addend);
  }
  store_tile(args, at, sum[0], low_rank ? addend[0] : nullptr, out_tile);
}

void grouped_gemm_reference(grouped_gemm_args const& args, stream where) {
  ranges const begin = checked_ranges("grouped_gemm", args.expert_begin, args.x.rows());
  index_t const outs = args.y.extent[1];
  index_t const tiles = ceil_div(outs, out_tile);
  parallel_for(where, args.weights.experts() * tiles, [&](index_t task) {
    index_t const expert = task / tiles;
    index_t const out_begin = task % tiles * out_tile;
    for (index_t row = begin(expert); row < begin(expert + 1); row += row_tile) {
      index_t const rows = std::min(row_tile, begin(expert + 1) - row);
      compute_tile(args, {expert, row, rows, out_begin, std::min(out_tile, outs - out_begin)});
    }
  });
}

constexpr implementation<grouped_gemm_args> multipliers[] = {
#if defined(__x86_64__)
    {"amx_bf16", where<has_amx_bf16, grouped_gemm_args, bf16::takes>, amx::grouped_gemm},
    {"avx512_bf16", where<has_avx512_bf16, grouped_gemm_args, bf16::takes>, bf16::grouped_gemm},
    {"avx512_vnni", where<has_avx512_vnni, grouped_gemm_args, vnni::takes>, vnni::grouped_gemm},
#endif
    MOE64_WIDTHS(grouped_gemm_args, grouped_gemm_simd, any_call<grouped_gemm_args>),
    {"reference", any_call<grouped_gemm_args>, grouped_gemm_reference},
};

}  // namespace

implementation_list<grouped_gemm_args> grouped_gemm_list() { return multipliers; }

}  // namespace moe64::cpu
