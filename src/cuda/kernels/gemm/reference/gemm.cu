#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/parameters.hpp"

namespace moe64::cuda {
namespace {

constexpr int tile = gemm_reference_tile;
constexpr int lane_count = 16;
/// Columns of a stage in shared memory.
constexpr int stage_k = 64;
/// Most products of codes that are accumulated before they are promoted, times their scales.
constexpr index_t promotion_k = 128;

/// Operands of a tile as f32, padded by a column against bank conflicts.
struct tile_memory {
  float x[tile][stage_k + 1];
  float weights[tile][stage_k + 1];
};

/// One product of the call: the main one or the low-rank one.
struct product {
  matrix_operand const& x;
  matrix_operand const* weights;
  int parts;
  bool transpose;
  dtype weights_as;  ///< quantised weights are rounded to this type; f32: not at all

  [[nodiscard]] __device__ index_t part_rows() const { return weights[0].values.extent[1]; }
  [[nodiscard]] __device__ index_t k() const { return x.values.extent[2]; }
  [[nodiscard]] __device__ matrix_operand const& part_of(index_t& row) const {
    if (row < part_rows()) return weights[0];
    row -= part_rows();
    return weights[1];
  }
};

/// a / b, both not negative; by a 32-bit division where they are small.
__device__ index_t divide(index_t a, index_t b) {
  if (static_cast<std::uint64_t>(a | b) >> 32 != 0) return a / b;
  auto const dividend = static_cast<std::uint32_t>(a);  // narrow-ok: tested
  return dividend / static_cast<std::uint32_t>(b);      // narrow-ok: tested
}

__device__ float load(tensor_view const& tensor, index_t i, index_t j, index_t k) {
  return load_number(tensor.type, tensor.data, offset_of(tensor, i, j, k));
}

/// The scale of element (expert, row, col), the global one included; 1 for plain values, NaN where
/// the expert has no place.
__device__ float scale_of(matrix_operand const& m, index_t expert, index_t row, index_t col) {
  if (!m.scales.present()) return 1.0F;
  index_t const place = place_of(m.expert_place.scales, expert);
  if (place < 0) return not_a_number();
  float const scale =
      load(m.scales, place, divide(row, m.rows_per_scale), divide(col, m.cols_per_scale));
  if (!m.global.present()) return scale;
  float const global = load(m.global, expert, 0, 0);
  return m.global_divides ? __fdiv_rn(scale, global) : scale * global;
}

__device__ float round_to(dtype type, float value) {
  if (type == dtype::bf16) return decode_bf16(encode_bf16(value));
  if (type == dtype::f16) return decode_float<f16_format>(encode_float<f16_format>(value));
  return value;
}

/// The value of element (expert, row, col), NaN where the expert has no place.
__device__ float value_of(matrix_operand const& m, index_t expert, index_t row, index_t col) {
  index_t const place = place_of(m.expert_place.values, expert);
  return place < 0 ? not_a_number() : load(m.values, place, row, col);
}

/// Weight (row, col) of one expert, dequantised.
__device__ float weight(product const& p, index_t expert, index_t row, index_t col) {
  matrix_operand const& m = p.part_of(row);
  float const value = value_of(m, expert, row, col);
  if (!m.scales.present()) return value;
  return round_to(p.weights_as, value * scale_of(m, expert, row, col));
}

/// Code (row, col) of one expert as a value, without its scale.
__device__ float code(product const& p, index_t expert, index_t row, index_t col) {
  matrix_operand const& m = p.part_of(row);
  return value_of(m, expert, row, col);
}

/// Columns [begin, begin + count) of the operands into shared memory; zeros past their ends.
template <bool Codes>
__device__ void load_tile(product const& p, tile_place const& at, index_t outs, index_t begin,
                          int count, tile_memory& memory) {
  __syncthreads();
  index_t const out_begin = at.out_tile * tile;
  for (int i = thread_number(); i < tile * stage_k; i += tile * tile) {
    int const r = i / stage_k, c = i % stage_k;
    bool const live = r < at.rows && c < count;
    memory.x[r][c] = live ? load(p.x.values, 0, at.row_begin + r, begin + c) : 0.0F;
    // Neighbouring threads take neighbouring columns of the stack.
    int const n = p.transpose ? i % tile : i / stage_k;
    int const k = p.transpose ? i / tile : i % stage_k;
    float value = 0.0F;
    if (out_begin + n < outs && k < count) {
      index_t const row = p.transpose ? begin + k : out_begin + n;
      index_t const col = p.transpose ? out_begin + n : begin + k;
      value = Codes ? code(p, at.expert, row, col) : weight(p, at.expert, row, col);
    }
    memory.weights[n][k] = value;
  }
  __syncthreads();
}

/// The partial sums of one output: column c adds to entry c % lane_count, as in the CPU's SIMD.
struct lanes {
  float value[lane_count] = {};

  __device__ void add(tile_memory const& memory, int r, int n, int count) {
    for (int c = 0; c < count; c += lane_count) {
#pragma unroll
      for (int lane = 0; lane < lane_count; ++lane) {
        value[lane] = __fmaf_rn(memory.x[r][c + lane], memory.weights[n][c + lane], value[lane]);
      }
    }
  }
  [[nodiscard]] __device__ float fold() {
#pragma unroll
    for (int half = lane_count / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) value[i] += value[i + half];
    }
    return value[0];
  }
};

__device__ int columns(index_t begin, index_t end) { return within(end - begin, stage_k); }

/// Plain x: partial sums over k, or with transpose one running sum.
__device__ float multiply(product const& p, tile_place const& at, index_t outs,
                          tile_memory& memory) {
  int const r = thread_number() / tile, n = thread_number() % tile;
  lanes partials;
  float accumulator = 0.0F;
  for (index_t begin = 0; begin < p.k(); begin += stage_k) {
    int const count = columns(begin, p.k());
    load_tile<false>(p, at, outs, begin, count, memory);
    if (!p.transpose) {
      partials.add(memory, r, n, count);
    } else {
      for (int c = 0; c < count; ++c)
        accumulator = __fmaf_rn(memory.x[r][c], memory.weights[n][c], accumulator);
    }
  }
  return p.transpose ? accumulator : partials.fold();
}

/// Quantised x: partial sums of products of codes over the columns that share both scales, then
/// promoted: times both, added to the totals.
__device__ float multiply_codes(product const& p, tile_place const& at, index_t outs,
                                tile_memory& memory) {
  int const r = thread_number() / tile, n = thread_number() % tile;
  index_t row = at.out_tile * tile + n;
  bool const live = r < at.rows && row < outs;
  matrix_operand const& of_row = p.part_of(row);
  lanes totals;
  for (index_t begin = 0; begin < p.k();) {
    auto const next = [&](index_t block) { return (divide(begin, block) + 1) * block; };
    index_t end = p.k();
    for (index_t const limit :
         {next(promotion_k), next(p.x.cols_per_scale), next(p.weights[0].cols_per_scale)}) {
      end = limit < end ? limit : end;
    }
    lanes partials;
    for (index_t c = begin; c < end; c += stage_k) {
      int const count = columns(c, end);
      load_tile<true>(p, at, outs, c, count, memory);
      partials.add(memory, r, n, count);
    }
    if (live) {
      float const scale =
          scale_of(p.x, 0, at.row_begin + r, begin) * scale_of(of_row, at.expert, row, begin);
#pragma unroll
      for (int lane = 0; lane < lane_count; ++lane) {
        totals.value[lane] = __fmaf_rn(partials.value[lane], scale, totals.value[lane]);
      }
    }
    begin = end;
  }
  return totals.fold();
}

__device__ void store(grouped_gemm_parameters const& p, tile_place const& at, float accumulator,
                      float low_rank) {
  index_t const r = thread_number() / tile;
  index_t const out = at.out_tile * tile + thread_number() % tile;
  if (r >= at.rows || out >= p.y.extent[1]) return;
  if (p.low_rank_x.values.present()) accumulator += p.low_rank_scaling * low_rank;
  index_t const part_rows = p.weights[0].values.extent[1];
  bool const second = !p.transpose && out >= part_rows;
  tensor_view const& bias = p.bias[second ? 1 : 0];
  if (bias.present()) accumulator += load(bias, at.expert, second ? out - part_rows : out, 0);
  store_float(row_of(p.y, at.row_begin + r), out, accumulator);
}

/// Computes: y = x W^T (or x W), plus low-rank term and bias, with the operations of the portable
///   CPU implementation in their order.
/// Grid: grid-stride over the tiles of 16 x 16 outputs of all experts.
/// Threads: 256, an output each.
/// Shared memory: tile_memory, and prefix sums of tiles.
/// Limits: none; any strides and types.
__global__ void __launch_bounds__(tile* tile)
    grouped_gemm_reference(__grid_constant__ grouped_gemm_parameters const p) {
  __shared__ expert_tiles::memory tile_sums;
  __shared__ tile_memory memory;
  index_t const outs = p.y.extent[1];
  tile_cut const cut = {p.expert_begin, p.y.extent[0], tile, ceil_div(outs, index_t{tile})};
  expert_tiles const tiles(cut, tile_sums);
  product const main = {p.x, p.weights, p.parts, p.transpose, p.x.values.type};
  product const addend = {p.low_rank_x, p.low_rank_weights, p.low_rank_parts, p.transpose,
                          dtype::f32};
  for (index_t index = blockIdx.x; index < tiles.count(); index += gridDim.x) {
    tile_place const at = tiles.at(index);
    float const accumulator = p.x.scales.present() ? multiply_codes(main, at, outs, memory)
                                                   : multiply(main, at, outs, memory);
    bool const low_rank = p.low_rank_x.values.present();
    store(p, at, accumulator, low_rank ? multiply(addend, at, outs, memory) : 0.0F);
  }
}

}  // namespace

kernel<grouped_gemm_parameters> grouped_gemm_reference_kernel() {
  return {"grouped_gemm_reference", grouped_gemm_reference};
}

}  // namespace moe64::cuda
