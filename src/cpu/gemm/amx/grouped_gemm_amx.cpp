// Grouped GEMMs with the matrix tiles of AMX. A sum is taken 32 columns at a time in ascending
// order, each step in the order that the processor has: it depends on the depth alone.

#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/gemm/bf16/outer.hpp"
#include "cpu/gemm/bf16/weights.hpp"
#include "cpu/gemm/epilogue.hpp"
#include "cpu/runtime/expert_tasks.hpp"
#include "cpu/runtime/parallel.hpp"
// after the headers of other instruction sets
#include "cpu/gemm/amx/amx_bf16.hpp"

namespace moe64::cpu::amx {

using bf16::first_words;
using bf16::outer_columns;
using bf16::outer_pairs;
using bf16::outer_rows;
using bf16::pair_tile;
using bf16::weight_reader;

MOE64_BEGIN_AMX_BF16

namespace {

/// Outputs of a task, rows of x that are packed at a time, and columns of both.
constexpr index_t task_outs = 64;
constexpr index_t packed_rows = 128;
constexpr index_t chunk = 512;

/// The columns of a chunk of some rows of x, as pairs: [chunk / 2, rows].
struct packed_x {
  alignas(64) std::uint32_t pairs[chunk / 2][packed_rows];
};
/// The same columns of sixteen rows of weights; the odd stride spreads rows over the cache.
struct weight_rows {
  static constexpr index_t stride = chunk + 32;
  alignas(64) std::uint16_t values[tile_rows * stride];
};
/// Sums by output, then by row of x: the tiles have the weights on their left.
using accumulators_by_out = float[task_outs][packed_rows];

index_t whole_steps(index_t depth) { return ceil_div(depth, tile_depth) * tile_depth; }
index_t whole_tiles(index_t rows) { return ceil_div(rows, tile_rows) * tile_rows; }

/// x [1, rows, depth] bf16: columns [begin, begin + depth) of rows [row, row + rows); zeros around.
void pack(tensor_view const& x, index_t row, index_t rows, index_t begin, index_t depth,
          packed_x& packed) {
  auto const* const data = static_cast<std::uint16_t const*>(x.data);
  for (index_t r = 0; r < rows; r += tile_rows) {
    for (index_t k = 0; k < depth; k += tile_depth) {
      __m512i patch[tile_rows];
      for (index_t i = 0; i < tile_rows; ++i) {
        patch[i] = r + i >= rows
                       ? _mm512_setzero_si512()
                       : _mm512_maskz_loadu_epi16(first_words(depth - k),
                                                  data + offset_of(x, 0, row + r + i, begin + k));
      }
      transpose(patch, &packed.pairs[k / 2][r], packed_rows);
    }
  }
}

/// acc += x times the weights of the outputs of `at`, whose rows are at most packed_rows.
void multiply_dots(tensor_view const& x, weight_stack const& weights, tile_place const& at,
                   accumulators_by_out& acc) {
  weight_reader reader(weights, at.expert);
  packed_x packed;
  weight_rows left;
  std::memset(left.values, 0, sizeof(left.values));
  for (index_t begin = 0; begin < weights.cols(); begin += chunk) {
    index_t const depth = std::min(chunk, weights.cols() - begin);
    pack(x, at.row_begin, at.rows, begin, depth, packed);
    for (index_t n = 0; n < at.outs; n += tile_rows) {
      for (index_t i = 0; i < std::min(tile_rows, at.outs - n); ++i) {
        reader.read(at.out_begin + n + i, begin, depth, left.values + i * weight_rows::stride);
      }
      for (index_t r = 0; r < at.rows; r += 64) {
        multiply(&acc[n][r], packed_rows, left.values, weight_rows::stride, &packed.pairs[0][r],
                 packed_rows, whole_steps(depth),
                 std::min<index_t>(4, ceil_div(at.rows - r, tile_rows)));
      }
    }
  }
}

/// out [rows, outs] = the transpose of acc, for whole tiles of rows.
void store_transposed(accumulators_by_out const& acc, index_t rows,
                      float (&out)[packed_rows][task_outs]) {
  for (index_t n = 0; n < task_outs; n += tile_rows) {
    for (index_t r = 0; r < rows; r += tile_rows) {
      __m512i patch[tile_rows];
      for (index_t i = 0; i < tile_rows; ++i) patch[i] = _mm512_loadu_si512(&acc[n + i][r]);
      transpose(patch, reinterpret_cast<std::uint32_t*>(&out[r][n]), task_outs);
    }
  }
}

void compute_dots(grouped_gemm_args const& args, tile_place const& at) {
  alignas(64) float by_row[packed_rows][task_outs];
  alignas(64) float addend[packed_rows][task_outs];
  bool const low_rank = args.low_rank.u.present();
  auto const product = [&](tensor_view const& x, weight_stack const& weights,
                           float(&out)[packed_rows][task_outs]) {
    alignas(64) accumulators_by_out acc;
    for (auto& row : acc) {
      std::memset(row, 0, sizeof(float) * static_cast<std::size_t>(whole_tiles(at.rows)));
    }
    multiply_dots(x, weights, at, acc);
    store_transposed(acc, at.rows, out);
  };
  product(args.x.values(), args.weights, by_row);
  if (low_rank) product(args.low_rank.u.as_stack(), args.low_rank.weights, addend);
  N_AVX3::store_tile_simd(args, at, &by_row[0][0], low_rank ? &addend[0][0] : nullptr, task_outs);
}

/// Columns of x that one tile of weight pairs meets.
constexpr index_t outer_depth = 2 * outer_pairs;

/// acc += x [1, rows, depth] times the weights of an expert, for the columns of `at`.
void multiply_outer(tensor_view const& x, weight_stack const& weights, tile_place const& at,
                    bf16::outer_accumulators& acc) {
  weight_reader reader(weights, at.expert);
  pair_tile right;
  alignas(64) std::uint16_t left[tile_rows][outer_depth];
  index_t const depth = weights.rows();
  auto const* const data = static_cast<std::uint16_t const*>(x.data);
  for (index_t begin = 0; begin < depth; begin += outer_depth) {
    index_t const length = std::min(outer_depth, depth - begin);
    index_t const padded = whole_steps(length);
    index_t const pairs = ceil_div(length, index_t{2});
    bf16::read_pairs(reader, depth, begin / 2, pairs, at.out_begin, at.outs, right);
    for (index_t p = pairs; p < padded / 2; ++p) {
      std::memset(right.values[p], 0, sizeof(right.values[p]));
    }
    for (index_t r = 0; r < at.rows; r += tile_rows) {
      for (index_t i = 0; i < tile_rows; ++i) {
        for (index_t k = 0; k < padded; k += tile_depth) {
          auto const there = r + i < at.rows ? first_words(length - k) : 0;
          std::uint16_t const* const from =
              there == 0 ? data : data + offset_of(x, 0, at.row_begin + r + i, begin + k);
          _mm512_store_si512(&left[i][k], _mm512_maskz_loadu_epi16(there, from));
        }
      }
      for (index_t c = 0; c < at.outs; c += 64) {
        multiply(&acc[r][c], outer_columns, &left[0][0], outer_depth, &right.values[0][c],
                 outer_columns, padded, std::min<index_t>(4, ceil_div(at.outs - c, tile_rows)));
      }
    }
  }
}

void compute_outer(grouped_gemm_args const& args, tile_place const& at) {
  alignas(64) bf16::outer_accumulators acc = {};
  if (args.low_rank.u.present()) {
    // The accumulators begin with the low-rank addend.
    multiply_outer(args.low_rank.u.as_stack(), args.low_rank.weights, at, acc);
    for (index_t r = 0; r < at.rows; ++r) {
      for (float& value : acc[r]) value *= args.low_rank.scaling;
    }
  }
  multiply_outer(args.x.values(), args.weights, at, acc);
  N_AVX3::store_tile_simd(args, at, &acc[0][0], nullptr, outer_columns);
}

}  // namespace

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  static_cast<void>(checked_ranges("grouped_gemm", args.expert_begin, args.x.rows()));
  index_t const outs = args.y.extent[1];
  index_t const width = args.transpose ? outer_columns : task_outs;
  index_t const most_rows = args.transpose ? outer_rows : packed_rows;
  auto const pieces = [&](index_t rows) { return rows == 0 ? 0 : ceil_div(outs, width); };
  expert_tasks const tasks(args.expert_begin, pieces);
  parallel_for(where, tasks.count(), [&](index_t task) {
    auto const [expert, first_row, rows, piece] = tasks.at(task, pieces);
    tiles const configured;
    for (index_t row = 0; row < rows; row += most_rows) {
      tile_place const at = {expert, first_row + row, std::min(most_rows, rows - row),
                             piece * width, std::min(width, outs - piece * width)};
      args.transpose ? compute_outer(args, at) : compute_dots(args, at);
    }
  });
}

MOE64_END_AMX_BF16

}  // namespace moe64::cpu::amx
