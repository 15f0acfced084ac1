#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/device/scale.cuh"

namespace moe64::cuda {
namespace {

/// visit(row, col, exists) for every element of [rows, inter]. The lanes of a warp stay converged:
/// past the last column exists is false.
template <class Visit>
__device__ void for_each_element(index_t rows, index_t inter, Visit const& visit) {
  index_t const across = ceil_div(inter, index_t{activate_threads});
  for (index_t task = blockIdx.x; task < rows * across; task += gridDim.x) {
    index_t const row = task / across;
    index_t const col = task % across * activate_threads + threadIdx.x;
    visit(row, col, col < inter);
  }
}

/// Computes: out = activation(gate, up), rounded.
/// Grid: a CTA per activate_threads columns of a row, grid-stride beyond.
/// Threads: activate_threads, an element each.
/// Shared memory: none.
/// Limits: none; any strides and types.
template <activation Kind>
__global__ void activate_reference(activate_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]);
  for_each_element(rows, p.gate.extent[1], [&](index_t row, index_t col, bool exists) {
    float const gate = exists ? load_number(row_of(p.gate, row), col) : 0.0F;
    float const up = is_gated(Kind) && exists ? load_number(row_of(p.up, row), col) : 0.0F;
    float const out = activated<Kind>(p.spec, gate, up, powers);
    if (exists) store_float(row_of(p.out, row), col, out);
  });
}

/// Computes: d_gate and d_up from gate, up and d_out, times the slot weight where d_out is
///   weighted.
/// Grid: a CTA per activate_threads columns of a row, grid-stride beyond.
/// Threads: activate_threads, an element each.
/// Shared memory: none.
/// Limits: none; any strides and types.
template <activation Kind>
__global__ void activate_backward_reference(activate_backward_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.live_rows, p.gate.extent[0]);
  for_each_element(rows, p.gate.extent[1], [&](index_t row, index_t col, bool exists) {
    float const gate = exists ? load_number(row_of(p.gate, row), col) : 0.0F;
    float const up = is_gated(Kind) && exists ? load_number(row_of(p.up, row), col) : 0.0F;
    float d = exists ? load_number(row_of(p.d_out, row), col) : 0.0F;
    if (p.row_to_slot.present()) {
      d *= element<float>(p.slot_weight, element<index_t>(p.row_to_slot, row));
    }
    gate_up_gradient const g = gradient_of<Kind>(p.spec, gate, up, d, powers);
    if (!exists) return;
    store_float(row_of(p.d_gate, row), col, g.gate);
    if (is_gated(Kind)) store_float(row_of(p.d_up, row), col, g.up);
  });
}

}  // namespace

kernel<activate_parameters> activate_reference_kernel(activation kind) {
  return visit_kind(kind, [](auto constant) {
    return kernel<activate_parameters>{"activate_reference", activate_reference<constant()>};
  });
}

kernel<activate_backward_parameters> activate_backward_reference_kernel(activation kind) {
  return visit_kind(kind, [](auto constant) {
    return kernel<activate_backward_parameters>{"activate_backward_reference",
                                                activate_backward_reference<constant()>};
  });
}

}  // namespace moe64::cuda
