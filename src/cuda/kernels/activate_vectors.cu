#include "cuda/kernels/activate.hpp"
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/scale.cuh"
#include "cuda/kernels/vector8.cuh"

namespace moe64::cuda {
namespace {

constexpr int warps = activate_threads / 32;
constexpr int rows_each = activate_tile_rows / warps;
static_assert(activate_tile_cols == 32 * 8 && rows_each * warps == activate_tile_rows);
static_assert(activate_backward_tile_rows == warps);

/// Where the eight numbers at (row, col) lie.
template <dtype Type>
__device__ std::uint8_t* eight_at(tensor_view const& matrix, index_t row, index_t col) {
  return static_cast<std::uint8_t*>(matrix.data) +
         (offset_of(matrix, row) + col) * (bits(Type) / 8);
}

/// visit(row, col) for the eight numbers of this thread in every tile of `tile_rows` rows, one row
/// after the other per warp; the lanes of a warp stay together, behind the last column too.
template <class Visit>
__device__ void for_each_tile(index_t rows, index_t inter, index_t tile_rows, Visit const& visit) {
  index_t const across = ceil_div(inter, activate_tile_cols);
  index_t const tiles = ceil_div(rows, tile_rows) * across;
  index_t const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    index_t const row = tile / across * tile_rows + warp * (tile_rows / warps);
    visit(row, tile % across * activate_tile_cols + lane * 8);
  }
}

template <activation Kind, dtype Type>
__global__ void __launch_bounds__(activate_threads) activate_vectors(activate_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]), inter = p.gate.extent[1];
  for_each_tile(rows, inter, activate_tile_rows, [&](index_t row, index_t col) {
    raw8<Type> gates[rows_each] = {}, ups[rows_each] = {};
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      if (row + r >= rows || col >= inter) continue;
      gates[r] = load8<Type>(eight_at<Type>(p.gate, row + r, col));
      if (is_gated(Kind)) ups[r] = load8<Type>(eight_at<Type>(p.up, row + r, col));
    }
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      float gate[8], up[8];
      decode8<Type>(gates[r], gate);
      decode8<Type>(ups[r], up);
#pragma unroll
      for (int i = 0; i < 8; ++i) gate[i] = activated<Kind>(p.spec, gate[i], up[i], powers);
      if (row + r >= rows || col >= inter) continue;
      store8<Type>(eight_at<Type>(p.out, row + r, col), encode8<Type>(gate));
    }
  });
}

template <activation Kind, dtype Type>
__global__ void __launch_bounds__(activate_threads)
    activate_backward_vectors(activate_backward_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]), inter = p.gate.extent[1];
  for_each_tile(rows, inter, activate_backward_tile_rows, [&](index_t row, index_t col) {
    raw8<Type> gates = {}, ups = {}, d_outs = {};
    float weight = 1.0F;
    bool const exists = row < rows && col < inter;
    if (exists) {
      gates = load8<Type>(eight_at<Type>(p.gate, row, col));
      if (is_gated(Kind)) ups = load8<Type>(eight_at<Type>(p.up, row, col));
      d_outs = load8<Type>(eight_at<Type>(p.d_out, row, col));
      if (p.row_to_slot.present()) {
        weight = element<float>(p.slot_weight, element<index_t>(p.row_to_slot, row));
      }
    }
    float gate[8], up[8], d_out[8];
    decode8<Type>(gates, gate);
    decode8<Type>(ups, up);
    decode8<Type>(d_outs, d_out);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      gate_up_gradient const g =
          gradient_of<Kind>(p.spec, gate[i], up[i], weight * d_out[i], powers);
      gate[i] = g.gate;
      up[i] = g.up;
    }
    if (!exists) return;
    store8<Type>(eight_at<Type>(p.d_gate, row, col), encode8<Type>(gate));
    if (is_gated(Kind)) store8<Type>(eight_at<Type>(p.d_up, row, col), encode8<Type>(up));
  });
}

}  // namespace

kernel<activate_parameters> activate_vectors_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return kernel<activate_parameters>{
        "activate_vectors", type == dtype::bf16 ? activate_vectors<constant(), dtype::bf16>
                                                : activate_vectors<constant(), dtype::f16>};
  });
}

kernel<activate_backward_parameters> activate_backward_vectors_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return kernel<activate_backward_parameters>{
        "activate_backward_vectors", type == dtype::bf16
                                         ? activate_backward_vectors<constant(), dtype::bf16>
                                         : activate_backward_vectors<constant(), dtype::f16>};
  });
}

}  // namespace moe64::cuda
