#include "cpu/gemm/vnni/grouped_gemm_vnni.hpp"

#include "cpu/gemm/epilogue.hpp"
#include "cpu/gemm/reference/dot.hpp"
#include "cpu/runtime/expert_ranges.hpp"
#include "cpu/runtime/expert_tasks.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "cpu/simd/avx512.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::cpu::vnni {
namespace {

/// Codes of one step of 16 lanes: four products go to each lane.
constexpr index_t step = 64;
constexpr index_t micro_rows = 4;
constexpr index_t micro_outs = 3;
constexpr index_t most_outs = 24;
constexpr index_t most_depth = 8192;
constexpr index_t most_segments = most_depth / step;
constexpr index_t weight_bytes = 64 * 1024;
constexpr index_t most_starts = 512;
constexpr index_t task_rows = 256;

/// Columns of the call and the segments of them that share both scales.
struct shape {
  index_t depth, padded, outs;
  index_t segments = 0;
  struct segment {
    index_t end, x_scale, weight_scale;
  } segment[most_segments];

  explicit shape(grouped_gemm_args const& args)
      : depth(args.weights.cols()), padded(round_up(depth, step)) {
    index_t const x_block = args.x.layout().cols_per_scale(depth);
    index_t const weight_block = args.weights.layout().cols_per_scale(depth);
    for (index_t k = 0; k < depth;) {
      index_t const end = segment_end(k, depth, x_block, weight_block);
      segment[segments++] = {end, k / x_block, k / weight_block};
      k = end;
    }
    index_t const fit = std::min(weight_bytes / std::max(padded, step),
                                 most_starts / std::max<index_t>(segments, 1));
    outs = std::clamp(fit / micro_outs * micro_outs, micro_outs, most_outs);
  }
};

bool is_in_steps(index_t block, index_t depth) { return block % step == 0 || block >= depth; }

}  // namespace

support takes(grouped_gemm_args const& args) {
  if (args.x.type() != dtype::int8 || args.weights.type() != dtype::int8) {
    return support::no("x is " + std::string(name(args.x.type())) + " and weights " +
                       std::string(name(args.weights.type())) + ", not both int8");
  }
  if (args.transpose) return support::no("does not take transpose");
  if (args.low_rank.u.present()) return support::no("does not take a low-rank term");
  bool adjacent = args.x.values().stride[2] == 1;
  for (int part = 0; part < args.weights.parts(); ++part) {
    adjacent = adjacent && args.weights.part(part).values().stride[2] == 1;
  }
  if (!adjacent) return support::no("columns of x or of weights are not adjacent");
  index_t const depth = args.weights.cols();
  if (depth > most_depth) {
    return support::no("weights have " + std::to_string(depth) + " columns, more than " +
                       std::to_string(most_depth));
  }
  index_t const x_block = args.x.layout().cols_per_scale(depth);
  index_t const weight_block = args.weights.layout().cols_per_scale(depth);
  if (!is_in_steps(x_block, depth) || !is_in_steps(weight_block, depth)) {
    return support::no("scales hold for " + std::to_string(x_block) + " columns of x and " +
                       std::to_string(weight_block) + " of weights, not for multiples of 64");
  }
  return support::yes();
}

MOE64_BEGIN_AVX512_VNNI

namespace {

/// What one task works on: 131 KiB of stack. Codes lie in steps of 64; starts are what the
/// accumulators of a segment begin with: x is stored 128 higher than it is, so 128 times the sum of
/// the weights of each lane is taken off first.
struct memory {
  alignas(64) std::int8_t weights[weight_bytes];
  alignas(64) std::uint8_t x[micro_rows * most_depth];
  alignas(64) std::int32_t starts[most_starts][lane_count];
  float weight_scales[most_starts];
  float x_scales[micro_rows][most_segments];
};

/// `count` codes to steps in which lane l holds elements l, l + 16, l + 32 and l + 48: that is
/// where f32 accumulators have them. Zeros behind the codes.
void load_steps(void const* data, index_t first, index_t count, std::int8_t flip, std::int8_t* to) {
  alignas(64) std::int8_t order[step];
  for (int i = 0; i < 64; ++i) order[i] = static_cast<std::int8_t>(i % 4 * 16 + i / 4);
  __m512i const places = _mm512_load_si512(order);
  __m512i const flips = _mm512_set1_epi8(flip);
  auto const* const codes = static_cast<std::int8_t const*>(data) + first;
  for (index_t k = 0; k < count; k += step) {
    index_t const left = std::min(step, count - k);
    __mmask64 const mask = left == step ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i const loaded = _mm512_maskz_loadu_epi8(mask, codes + k);
    __m512i const placed = _mm512_permutexvar_epi8(places, loaded);
    _mm512_store_si512(to + k, _mm512_xor_si512(placed, flips));
  }
}

/// A row of the grid of scales; int8 has no global scale.
void load_grid_row(quantized_view const& q, index_t expert, index_t grid_row, float* scales) {
  load_row(row_of(q.scales(), q.scales_at(expert), grid_row), 0, q.layout().grid_cols(q.cols()),
           scales);
}

void load_weights(grouped_gemm_args const& args, shape const& s, tile_place const& at, memory& m) {
  index_t const rows_per_scale = args.weights.layout().rows_per_scale(args.weights.part_rows());
  for (index_t n = 0; n < round_up(at.outs, micro_outs); ++n) {
    // Outputs that pad the tile repeat its last one and are not stored.
    index_t const out = at.out_begin + std::min(n, at.outs - 1);
    part_row const place = part_row_of(args.weights, out);
    quantized_view const& matrix = args.weights.part(place.part);
    std::int8_t* const codes = m.weights + n * s.padded;
    load_steps(matrix.values().data,
               offset_of(matrix.values(), matrix.values_at(at.expert), place.row), s.depth, 0,
               codes);
    float scales[most_segments];
    load_grid_row(matrix, at.expert, place.row / rows_per_scale, scales);
    for (index_t i = 0, k = 0; i < s.segments; ++i) {
      __m512i sum = _mm512_setzero_si512();
      for (; k < s.segment[i].end; k += step) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), _mm512_load_si512(codes + k));
      }
      _mm512_store_si512(m.starts[n * s.segments + i],
                         _mm512_sub_epi32(_mm512_setzero_si512(), sum));
      m.weight_scales[n * s.segments + i] = scales[s.segment[i].weight_scale];
    }
  }
}

void load_x(grouped_gemm_args const& args, shape const& s, index_t row, index_t rows, memory& m) {
  for (index_t r = 0; r < rows; ++r) {
    load_steps(args.x.values().data, offset_of(args.x.values(), 0, row + r), s.depth, -128,
               reinterpret_cast<std::int8_t*>(m.x) + r * s.padded);
    float scales[most_segments];
    load_grid_row(args.x, 0, row + r, scales);
    for (index_t i = 0; i < s.segments; ++i) m.x_scales[r][i] = scales[s.segment[i].x_scale];
  }
  for (index_t r = rows; r < micro_rows; ++r) {
    std::memset(m.x + r * s.padded, 0, static_cast<std::size_t>(s.padded));
    std::memset(m.x_scales[r], 0, sizeof(m.x_scales[r]));
  }
}

/// fold of dot.hpp.
float fold_in_halves(__m512 lanes) {
  __m256 const eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  __m128 const four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 const two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// acc[r][n] of micro_rows rows and micro_outs outputs from `out` on.
void multiply_micro_tile(shape const& s, memory const& m, index_t out, float* acc, index_t stride) {
  __m512 totals[micro_rows][micro_outs];
  for (auto& row : totals) {
    for (auto& total : row) total = _mm512_setzero_ps();
  }
  for (index_t i = 0, k = 0; i < s.segments; ++i) {
    __m512i products[micro_rows][micro_outs];
    for (index_t n = 0; n < micro_outs; ++n) {
      __m512i const start = _mm512_load_si512(m.starts[(out + n) * s.segments + i]);
      for (index_t r = 0; r < micro_rows; ++r) products[r][n] = start;
    }
    for (; k < s.segment[i].end; k += step) {
      for (index_t n = 0; n < micro_outs; ++n) {
        __m512i const weights = _mm512_load_si512(m.weights + (out + n) * s.padded + k);
        for (index_t r = 0; r < micro_rows; ++r) {
          __m512i const x = _mm512_load_si512(m.x + r * s.padded + k);
          products[r][n] = _mm512_dpbusd_epi32(products[r][n], x, weights);
        }
      }
    }
    for (index_t n = 0; n < micro_outs; ++n) {
      for (index_t r = 0; r < micro_rows; ++r) {
        float const scale = m.x_scales[r][i] * m.weight_scales[(out + n) * s.segments + i];
        totals[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[r][n]), _mm512_set1_ps(scale),
                                       totals[r][n]);
      }
    }
  }
  for (index_t r = 0; r < micro_rows; ++r) {
    for (index_t n = 0; n < micro_outs; ++n) {
      acc[r * stride + n] = fold_in_halves(totals[r][n]);
    }
  }
}

void multiply_tile(grouped_gemm_args const& args, shape const& s, tile_place const& task) {
  memory m;
  load_weights(args, s, task, m);
  for (index_t r = 0; r < task.rows; r += micro_rows) {
    tile_place at = task;
    at.row_begin += r;
    at.rows = std::min(micro_rows, task.rows - r);
    load_x(args, s, at.row_begin, at.rows, m);
    float acc[micro_rows * most_outs];
    for (index_t n = 0; n < task.outs; n += micro_outs) {
      multiply_micro_tile(s, m, n, acc + n, most_outs);
    }
    N_AVX3::store_tile_simd(args, at, acc, nullptr, most_outs);
  }
}

}  // namespace

MOE64_END_AVX512_VNNI

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  checked_ranges("grouped_gemm", args.expert_begin, args.x.rows());
  shape const s(args);
  index_t const outs = args.y.extent[1];
  index_t const tiles = ceil_div(outs, s.outs);
  auto const tasks_of = [&](index_t rows) { return ceil_div(rows, task_rows) * tiles; };
  expert_tasks const tasks(args.expert_begin, tasks_of);
  parallel_for(where, tasks.count(), [&](index_t number) {
    expert_tasks::place const mine = tasks.at(number, tasks_of);
    index_t const row = mine.task / tiles * task_rows;
    index_t const out = mine.task % tiles * s.outs;
    multiply_tile(args, s,
                  {mine.expert, mine.first_row + row, std::min(task_rows, mine.rows - row), out,
                   std::min(s.outs, outs - out)});
  });
}

}  // namespace moe64::cpu::vnni
