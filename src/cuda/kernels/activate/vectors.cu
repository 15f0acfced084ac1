#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/activate/activation_table.cuh"
#include "cuda/kernels/device/scale.cuh"
#include "cuda/kernels/device/vec8.cuh"

namespace moe64::cuda {
namespace {

/// The address of the vec8 at (row, col).
template <dtype Type>
__device__ std::uint8_t* vec8_at(tensor_view const& matrix, index_t row, index_t col) {
  return static_cast<std::uint8_t*>(matrix.data) +
         (offset_of(matrix, row) + col) * (bits(Type) / 8);
}

/// visit(row, col, exists) for every vec8 of every `rows_each`-th row, grid-stride; the lanes of a
/// warp stay converged, past the last one too.
template <class Visit>
__device__ void for_each_vec8(index_t rows, divisor const& across, int rows_each,
                              Visit const& visit) {
  index_t const vec8s = ceil_div(rows, rows_each) * across.by;
  index_t const step = index_t{gridDim.x} * blockDim.x;
  for (index_t first = index_t{blockIdx.x} * blockDim.x; first < vec8s; first += step) {
    index_t const vec8 = first + threadIdx.x, band = divided(vec8, across);
    visit(band * rows_each, (vec8 - band * across.by) * 8, vec8 < vec8s);
  }
}

/// activate(gates, ups) for all vec8s of a problem, those of two rows at a time; all lanes of a
/// warp together.
template <activation Kind, dtype Type, class Activate>
__device__ void activate_all(activate_parameters const& p, Activate const& activate) {
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]);
  constexpr int rows_each = activate_rows_each;
  for_each_vec8(rows, p.row_vec8s, rows_each, [&](index_t row, index_t col, bool exists) {
    std::uint8_t const* const gate_at = vec8_at<Type>(p.gate, row, col);
    std::uint8_t const* const up_at = vec8_at<Type>(p.up, row, col);
    std::uint8_t* const out_at = vec8_at<Type>(p.out, row, col);
    constexpr index_t size = bits(Type) / 8;
    raw8<Type> gates[rows_each] = {}, ups[rows_each] = {};
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      if (row + r >= rows || !exists) continue;
      gates[r] = load8<Type>(gate_at + r * p.gate.stride[0] * size);
      if (is_gated(Kind)) ups[r] = load8<Type>(up_at + r * p.up.stride[0] * size);
    }
    activate(gates, ups);
#pragma unroll
    for (int r = 0; r < rows_each; ++r) {
      if (row + r >= rows || !exists) continue;
      store8<Type>(out_at + r * p.out.stride[0] * size, gates[r]);
    }
  });
}

/// Computes: out = activation(gate, up), rounded.
/// Grid: a CTA for a vec8 of two rows per thread, grid-stride beyond.
/// Threads: activate_threads.
/// Shared memory: none.
/// Limits: all operands bf16 or all f16, can_take_vec8() of each.
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(activate_threads, 5)
    activate_vectors(activate_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  activate_all<Kind, Type>(
      p, [&](auto& gates, auto& ups) { activate_vec8<Kind>(p.spec, gates, ups, powers); });
}

/// Computes: the same for gelu and gelu_glu of bf16, by a table of gates.
/// Grid: persistent, a CTA per SM.
/// Threads: gate_table_threads.
/// Shared memory: the table, 32 KiB.
/// Limits: bf16, can_take_vec8() of each operand.
template <activation Kind>
__global__ void __launch_bounds__(gate_table_threads)
    activate_by_table(activate_parameters const p) {
  __shared__ float entries[gate_table_entries];
  gate_table<Kind> const table(entries, p.spec);
  activate_all<Kind, dtype::bf16>(
      p, [&](auto& gates, auto& ups) { table.activate(p.spec, gates, ups); });
}

/// Computes: d_gate and d_up from gate, up and d_out, times the slot weight where d_out is
///   weighted.
/// Grid: a CTA for a vec8 per thread, grid-stride beyond.
/// Threads: activate_threads.
/// Shared memory: none.
/// Limits: all operands bf16 or all f16, can_take_vec8() of each.
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(activate_threads)
    activate_backward_vectors(activate_backward_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]);
  for_each_vec8(rows, p.row_vec8s, 1, [&](index_t row, index_t col, bool exists) {
    raw8<Type> gates = {}, ups = {}, d_outs = {};
    float weight = 1.0F;
    if (exists) {
      gates = load8<Type>(vec8_at<Type>(p.gate, row, col));
      if (is_gated(Kind)) ups = load8<Type>(vec8_at<Type>(p.up, row, col));
      d_outs = load8<Type>(vec8_at<Type>(p.d_out, row, col));
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
    store8<Type>(vec8_at<Type>(p.d_gate, row, col), encode8<Type>(gate));
    if (is_gated(Kind)) store8<Type>(vec8_at<Type>(p.d_up, row, col), encode8<Type>(up));
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

kernel<activate_parameters> activate_table_kernel(activation kind) {
  constexpr char const* name = "activate_by_table";
  if (kind == activation::gelu) return {name, activate_by_table<activation::gelu>};
  return {name, activate_by_table<activation::gelu_glu>};
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
