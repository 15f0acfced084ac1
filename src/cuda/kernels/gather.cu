#include "cuda/kernels/gather.hpp"
#include "cuda/kernels/number.cuh"

namespace moe64::cuda {
namespace {

/// Element c of row j of `to` = element c of row i of `from`, bit for bit. Packed rows begin at
/// whole bytes and have no gaps, so they are copied as bytes.
__device__ void copy_row(tensor_view const& from, index_t i, tensor_view const& to, index_t j) {
  index_t const size = bits(from.type);
  index_t const source = offset_of(from, i) * size / 8;
  index_t const target = offset_of(to, j) * size / 8;
  auto const* const in = static_cast<std::uint8_t const*>(from.data) + source;
  auto* const out = static_cast<std::uint8_t*>(to.data) + target;
  if (size == 4) {
    index_t const bytes = ceil_div(to.extent[1], 2);
    for (index_t c = threadIdx.x; c < bytes; c += blockDim.x) out[c] = in[c];
    return;
  }
  index_t const bytes = size / 8;
  for (index_t c = threadIdx.x; c < to.extent[1]; c += blockDim.x) {
    auto const* const a = in + c * from.stride[1] * bytes;
    auto* const b = out + c * to.stride[1] * bytes;
    for (index_t byte = 0; byte < bytes; ++byte) b[byte] = a[byte];
  }
}

__global__ void gather_reference(gather_parameters const p) {
  index_t const rows = element<index_t>(p.plan.expert_begin, p.plan.experts);
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    index_t const slot = element<index_t>(p.plan.row_to_slot, row);
    index_t const token = slot / p.plan.top_k;
    if (p.weighted) {
      float const weight = element<float>(p.plan.slot_weight, slot);
      row_view const from = row_of(p.x, token);
      row_view const to = row_of(p.rows, row);
      for (index_t c = threadIdx.x; c < p.rows.extent[1]; c += blockDim.x) {
        store_float(to, c, load_number(from, c) * weight);
      }
    } else {
      copy_row(p.x, token, p.rows, row);
    }
    if (p.scales.present()) copy_row(p.scales, token, p.row_scales, row);
  }
}

}  // namespace

kernel<gather_parameters> gather_reference_kernel() {
  return {"gather_reference", gather_reference};
}

}  // namespace moe64::cuda
