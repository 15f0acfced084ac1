#include "cuda/kernels/gemm/expert_tiles.cuh"
#include "cuda/kernels/gemm/parameters.hpp"

namespace moe64::cuda {
namespace {

constexpr int tile = gemm_reference_tile;
/// Rows of dy and x of a stage in shared memory.
constexpr int stage_rows = 32;

/// dy(r, n) and x(r, c) of a tile, padded by a column against bank conflicts.
struct tile_memory {
  float dy[stage_rows][tile + 1];
  float x[stage_rows][tile + 1];
};

/// Weights [out_begin, + 16) x [col_begin, + 16) of one part of one expert.
struct gradient_place {
  index_t expert, first_row, rows;
  int part;
  index_t out_begin, col_begin;
};

__device__ tile_cut ranges_of(grouped_gemm_wgrad_parameters const& p) {
  return {p.expert_begin, p.dy.extent[0], 1, 1};
}

__device__ float value_or_zero(tensor_view const& matrix, index_t r, index_t c, bool there) {
  return there ? load_number(matrix.type, matrix.data, offset_of(matrix, r, c)) : 0.0F;
}

__device__ float accumulate(grouped_gemm_wgrad_parameters const& p, gradient_place const& at,
                            tile_memory& memory) {
  index_t const part_rows = p.dy.extent[1] / p.parts;
  int const n = thread_number() / tile, c = thread_number() % tile;
  float accumulator = 0.0F;
  for (index_t begin = 0; begin < at.rows; begin += stage_rows) {
    int const count = within(at.rows - begin, stage_rows);
    __syncthreads();
    for (int i = thread_number(); i < stage_rows * tile; i += tile * tile) {
      int const r = i / tile, j = i % tile;
      index_t const row = at.first_row + begin + r;
      memory.dy[r][j] = value_or_zero(p.dy, row, at.part * part_rows + at.out_begin + j,
                                      r < count && at.out_begin + j < part_rows);
      memory.x[r][j] =
          value_or_zero(p.x, row, at.col_begin + j, r < count && at.col_begin + j < p.x.extent[1]);
    }
    __syncthreads();
    for (int r = 0; r < count; ++r)
      accumulator = __fmaf_rn(memory.dy[r][n], memory.x[r][c], accumulator);
  }
  return accumulator;
}

/// Computes: d_weights = scaling * dy^T x per expert and part, rows added in order.
/// Grid: grid-stride over the tiles of 16 x 16 weights of all matrices.
/// Threads: 256, a weight each.
/// Shared memory: tile_memory.
/// Limits: none; any strides and types.
__global__ void __launch_bounds__(tile* tile)
    grouped_gemm_wgrad_reference(__grid_constant__ grouped_gemm_wgrad_parameters const p) {
  __shared__ tile_memory memory;
  tile_cut const ranges = ranges_of(p);
  index_t const part_rows = p.dy.extent[1] / p.parts;
  index_t const col_tiles = ceil_div(p.x.extent[1], index_t{tile});
  index_t const tiles = ceil_div(part_rows, index_t{tile}) * col_tiles;
  index_t const tasks = ranges.experts() * p.parts * tiles;
  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    index_t const expert = task / (p.parts * tiles);
    int const part = within(task / tiles % p.parts, 1);
    index_t const place = task % tiles;
    if (!p.d_weights[part].present()) continue;
    index_t const begin = ranges.begin(expert);
    gradient_place const at = {expert,
                               begin,
                               ranges.rows(expert, begin),
                               part,
                               place / col_tiles * tile,
                               place % col_tiles * tile};
    float accumulator = accumulate(p, at, memory);
    // Without rows the gradient is +0, whatever the sign of the factor.
    if (at.rows > 0) accumulator *= p.scaling;
    index_t const n = at.out_begin + thread_number() / tile;
    index_t const c = at.col_begin + thread_number() % tile;
    if (n < part_rows && c < p.x.extent[1]) {
      store_float(row_of(p.d_weights[part], expert, n), c, accumulator);
    }
  }
}

/// Computes: d_bias: the sum of the rows of dy per expert and part, in order.
/// Grid: a CTA per bias_gradient_threads columns of a part of an expert, grid-stride beyond.
/// Threads: bias_gradient_threads, a column each.
/// Shared memory: none.
/// Limits: none; any strides and types.
__global__ void __launch_bounds__(bias_gradient_threads)
    bias_gradient(__grid_constant__ grouped_gemm_wgrad_parameters const p) {
  tile_cut const ranges = ranges_of(p);
  index_t const part_rows = p.dy.extent[1] / p.parts;
  index_t const tiles = ceil_div(part_rows, bias_gradient_threads);
  index_t const tasks = ranges.experts() * p.parts * tiles;
  for (index_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    index_t const expert = task / (p.parts * tiles);
    int const part = within(task / tiles % p.parts, 1);
    index_t const n = task % tiles * bias_gradient_threads + threadIdx.x;
    if (n >= part_rows || !p.d_bias[part].present()) continue;
    float accumulator = 0.0F;
    index_t const begin = ranges.begin(expert), end = begin + ranges.rows(expert, begin);
    for (index_t r = begin; r < end; ++r)
      accumulator += load_number(row_of(p.dy, r), part * part_rows + n);
    store_float(row_of(p.d_bias[part], expert), n, accumulator);
  }
}

}  // namespace

kernel<grouped_gemm_wgrad_parameters> grouped_gemm_wgrad_reference_kernel() {
  return {"grouped_gemm_wgrad_reference", grouped_gemm_wgrad_reference};
}
kernel<grouped_gemm_wgrad_parameters> grouped_gemm_bias_gradient_kernel() {
  return {"grouped_gemm_bias_gradient", bias_gradient};
}

}  // namespace moe64::cuda
