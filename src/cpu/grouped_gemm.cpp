#include "core/fail.hpp"
#include "cpu/operations.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/tile.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::cpu {
namespace {

using ranges = view<std::int64_t, 1>;

/// The ranges of the experts, after a look that they are what they must be: a wrong one would write
/// anywhere.
ranges checked_ranges(char const* operation, tensor_view const& expert_begin, index_t capacity) {
  auto const begin = as<std::int64_t, 1>(expert_begin);
  index_t const experts = expert_begin.extent[0] - 1;
  bool legal = begin(0) == 0 && begin(experts) <= capacity;
  for (index_t e = 0; e < experts; ++e) legal = legal && begin(e) <= begin(e + 1);
  if (!legal) {
    fail(errc::invalid_argument,
         "[{}] expert_begin does not rise from 0 to at most {} (rows of the operands)", operation,
         capacity);
  }
  return begin;
}

/// One product of x rows by one side of a stack: what a tile is loaded from.
struct product {
  quantized_view const& x;
  weight_stack const& weights;
  bool transpose;
  dtype weights_as;  ///< quantised weights are rounded to this type; f32: not at all

  [[nodiscard]] index_t depth() const { return transpose ? weights.rows() : weights.cols(); }
};

/// Rows and outputs of one tile.
struct tile_place {
  index_t expert, row_begin, rows, out_begin, outs;
};

/// Weight (out, depth) pairs of the tile: stack rows along `out`, or along depth when transposed.
void load_weights(product const& p, tile_place const& at, index_t depth_begin, index_t depth,
                  weight_tile& tile) {
  weight_stack const& weights = p.weights;
  auto const number_row = [&](index_t row, index_t col, index_t count, float* out) {
    int const part = row < weights.part_rows() ? 0 : 1;
    quantized_view const& matrix = weights.part(part);
    load_scaled_row(matrix, at.expert, row - part * weights.part_rows(), col, count, out);
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
  alignas(64) dot_tile sums = {};
  for (index_t begin = 0; begin < p.depth(); begin += depth_tile) {
    index_t const depth = std::min(depth_tile, p.depth() - begin);
    load_weights(p, at, begin, depth, weights);
    for (index_t r = 0; r < at.rows; ++r) {
      auto* const run = reinterpret_cast<float*>(x.values[r]);
      load_row(row_of(p.x.values(), 0, at.row_begin + r), begin, depth, run);
      pad_to_lanes(run, depth);
    }
    accumulate(sums, x, weights, at.rows, ceil_div(depth, lane_count));
  }
  for (index_t r = 0; r < at.rows; ++r) {
    for (index_t n = 0; n < at.outs; ++n) out[r][n] = fold(sums.sums[r][n]);
  }
}

/// Most columns whose codes are added before they are scaled: where FP8 hardware promotes its sums
/// to f32.
constexpr index_t promotion = 128;

index_t segment_end(index_t begin, index_t depth, index_t x_block, index_t weight_block) {
  auto const next = [&](index_t block) { return (begin / block + 1) * block; };
  return std::min({depth, next(promotion), next(x_block), next(weight_block)});
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
      index_t const row = at.out_begin + n;
      int const part = row < p.weights.part_rows() ? 0 : 1;
      index_t const part_row = row - part * p.weights.part_rows();
      quantized_view const& matrix = p.weights.part(part);
      auto* const run = reinterpret_cast<float*>(weights.values[n]);
      load_row(row_of(matrix.values(), at.expert, part_row), begin, end - begin, run);
      pad_to_lanes(run, end - begin);
      weight_scale[n] = matrix.is_plain() ? 1.0F
                                          : scale_at(matrix, at.expert, part_row / block_rows,
                                                     begin / weight_block);
    }
    for (index_t r = 0; r < at.rows; ++r) {
      auto* const run = reinterpret_cast<float*>(x.values[r]);
      load_row(row_of(p.x.values(), 0, at.row_begin + r), begin, end - begin, run);
      pad_to_lanes(run, end - begin);
    }
    alignas(64) dot_tile sums = {};
    accumulate(sums, x, weights, at.rows, ceil_div(end - begin, lane_count));
    for (index_t r = 0; r < at.rows; ++r) {
      float const x_scale = scale_at(p.x, 0, at.row_begin + r, begin / x_block);
      for (index_t n = 0; n < at.outs; ++n) {
        out[r][n] += fold(sums.sums[r][n]) * (x_scale * weight_scale[n]);
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
  if (args.low_rank.u.present()) {
    results addend;
    quantized_view const u = quantized_view::plain(args.low_rank.u);
    multiply({u, args.low_rank.weights, args.transpose, dtype::f32}, at, addend);
    for (index_t r = 0; r < at.rows; ++r) {
      for (index_t n = 0; n < at.outs; ++n) sum[r][n] += args.low_rank.scaling * addend[r][n];
    }
  }
  for (index_t n = 0; n < at.outs; ++n) {
    index_t const row = at.out_begin + n;
    std::size_t const part = row < args.weights.part_rows() || args.transpose ? 0 : 1;
    if (args.transpose || !args.bias[part].present()) continue;
    index_t const part_row = row - static_cast<index_t>(part) * args.weights.part_rows();
    float const bias = load_number(args.bias[part], at.expert, part_row);
    for (index_t r = 0; r < at.rows; ++r) sum[r][n] += bias;
  }
  for (index_t r = 0; r < at.rows; ++r) {
    store_row(row_of(args.y, at.row_begin + r), at.out_begin, at.outs, sum[r]);
  }
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

/// Rows [out_begin, out_begin + outs) of one part of one expert's weight gradient. Rows of x are
/// added in order.
void compute_gradient(grouped_gemm_wgrad_args const& args, std::size_t part, tile_place const& at) {
  tensor_view const& d_weights = args.d_weights[part];
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(part) * part_rows + at.out_begin;
  float left[out_tile] = {};
  for (index_t begin = 0; begin < args.x.extent[1]; begin += depth_tile) {
    index_t const depth = std::min(depth_tile, args.x.extent[1] - begin);
    alignas(64) weight_tile sums = {};
    alignas(64) f32_lanes right[lane_steps];
    for (index_t r = at.row_begin; r < at.row_begin + at.rows; ++r) {
      load_row(row_of(args.dy, r), dy_begin, at.outs, left);
      auto* const run = reinterpret_cast<float*>(right);
      load_row(row_of(args.x, r), begin, depth, run);
      accumulate_outer(sums, left, right, pad_to_lanes(run, depth));
    }
    for (index_t n = 0; n < at.outs; ++n) {
      auto* const run = reinterpret_cast<float*>(sums.values[n]);
      // Without rows the sum is +0, whatever the sign of the factor.
      for (index_t k = 0; at.rows > 0 && k < depth; ++k) run[k] *= args.scaling;
      store_row(row_of(d_weights, at.expert, at.out_begin + n), begin, depth, run);
    }
  }
}

void compute_bias_gradient(grouped_gemm_wgrad_args const& args, std::size_t part,
                           tile_place const& at) {
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const dy_begin = static_cast<index_t>(part) * part_rows + at.out_begin;
  float sum[out_tile] = {};
  float run[out_tile];
  for (index_t r = at.row_begin; r < at.row_begin + at.rows; ++r) {
    load_row(row_of(args.dy, r), dy_begin, at.outs, run);
    for (index_t n = 0; n < at.outs; ++n) sum[n] += run[n];
  }
  store_row(row_of(args.d_bias[part], at.expert), at.out_begin, at.outs, sum);
}

void grouped_gemm_wgrad_reference(grouped_gemm_wgrad_args const& args, stream where) {
  ranges const begin = checked_ranges("grouped_gemm_wgrad", args.expert_begin, args.dy.extent[0]);
  index_t const experts = args.expert_begin.extent[0] - 1;
  index_t const part_rows = args.dy.extent[1] / args.parts;
  index_t const tiles = ceil_div(part_rows, out_tile);
  index_t const tasks = experts * args.parts * tiles;
  parallel_for(where, tasks, [&](index_t task) {
    index_t const expert = task / (args.parts * tiles);
    auto const part = static_cast<std::size_t>(task / tiles % args.parts);
    index_t const out_begin = task % tiles * out_tile;
    tile_place const at = {expert, begin(expert), begin(expert + 1) - begin(expert), out_begin,
                           std::min(out_tile, part_rows - out_begin)};
    if (args.d_weights[part].present()) compute_gradient(args, part, at);
    if (args.d_bias[part].present()) compute_bias_gradient(args, part, at);
  });
}

constexpr implementation<grouped_gemm_args> multipliers[] = {
    {"reference", any_call<grouped_gemm_args>, grouped_gemm_reference},
};
constexpr implementation<grouped_gemm_wgrad_args> gradients[] = {
    {"reference", any_call<grouped_gemm_wgrad_args>, grouped_gemm_wgrad_reference},
};

}  // namespace

implementation_list<grouped_gemm_args> grouped_gemm_list() { return multipliers; }
implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list() { return gradients; }

}  // namespace moe64::cpu
