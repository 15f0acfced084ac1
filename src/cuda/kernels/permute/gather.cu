#include "cuda/kernels/device/divide.cuh"
#include "cuda/kernels/device/l2_prefetch.cuh"
#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/device/vec8.cuh"
#include "cuda/kernels/permute/gather.hpp"

namespace moe64::cuda {
namespace {

/// Element c of row j of `to` = element c of row i of `from`, bit for bit; whole bytes.
__device__ void copy_element(tensor_view const& from, index_t i, tensor_view const& to, index_t j,
                             index_t c) {
  index_t const source = offset_of(from, i, c);
  index_t const target = offset_of(to, j, c);
  switch (bits(from.type)) {
    case 8:
      static_cast<std::uint8_t*>(to.data)[target] =
          static_cast<std::uint8_t const*>(from.data)[source];
      return;
    case 16:
      static_cast<std::uint16_t*>(to.data)[target] =
          static_cast<std::uint16_t const*>(from.data)[source];
      return;
    case 32:
      static_cast<std::uint32_t*>(to.data)[target] =
          static_cast<std::uint32_t const*>(from.data)[source];
      return;
    default:
      static_cast<std::uint64_t*>(to.data)[target] =
          static_cast<std::uint64_t const*>(from.data)[source];
  }
}

/// Row j of `to` = row i of `from`. Packed rows begin at whole bytes and have no gaps, so they are
/// copied as bytes.
__device__ void copy_row(tensor_view const& from, index_t i, tensor_view const& to, index_t j) {
  if (bits(from.type) == 4) {
    auto const* const in = static_cast<std::uint8_t const*>(from.data) + offset_of(from, i) / 2;
    auto* const out = static_cast<std::uint8_t*>(to.data) + offset_of(to, j) / 2;
    index_t const bytes = ceil_div(to.extent[1], 2);
    for (index_t c = threadIdx.x; c < bytes; c += blockDim.x) out[c] = in[c];
    return;
  }
  for (index_t c = threadIdx.x; c < to.extent[1]; c += blockDim.x) copy_element(from, i, to, j, c);
}

/// Computes: each row = its token, bit for bit, or times the slot weight; and its scales.
/// Grid: a CTA per row, grid-stride beyond.
/// Threads: any number, over the columns.
/// Shared memory: none.
/// Limits: none; any strides and types.
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

/// visit(token, i) for every token and every i below `each`, grid-stride.
template <class Visit>
__device__ void for_each_item(index_t tokens, index_t each, Visit const& visit) {
  index_t const items = tokens * each;
  for (index_t item = index_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items;
       item += index_t{gridDim.x} * blockDim.x) {
    index_t const token = divide(item, each);
    visit(token, item - token * each);
  }
}

/// visit(slot, row) for the rows of a token.
template <class Visit>
__device__ void for_each_row(routing_plan const& plan, index_t token, Visit const& visit) {
  constexpr int unroll = 4;
  for (index_t k = 0; k < plan.top_k; k += unroll) {
    index_t row[unroll];
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      index_t const slot = token * plan.top_k + k + i;
      row[i] = k + i < plan.top_k ? element<index_t>(plan.slot_to_row, slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < unroll; ++i) {
      if (row[i] >= 0) visit(token * plan.top_k + k + i, row[i]);
    }
  }
}

/// Scales are few, and of any width.
__device__ void gather_scales(gather_parameters const& p) {
  for_each_item(p.plan.tokens, p.scales.extent[1], [&](index_t token, index_t col) {
    for_each_row(p.plan, token, [&](index_t, index_t row) {
      copy_element(p.scales, token, p.row_scales, row, col);
    });
  });
}

/// L2 prefetch of the slots of the tokens that the next wave of CTAs will read (l2_prefetch.cuh):
/// few bytes, but each such read alone would switch DRAM from writing to reading.
__device__ inline void prefetch_slots([[maybe_unused]] gather_vectors_parameters const& p) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t const wave = p.burst_bytes / (gather_threads * 16);
  if (!p.prefetch_slots || threadIdx.x != 0 || blockIdx.x % wave != 0) return;
  index_t const all = p.tokens * p.top_k * 8;
  auto const slot_bytes_before = [&](index_t cta) {
    index_t const bytes = divided(cta * gather_threads, p.row_vectors) * p.top_k * 8;
    return min(bytes, all) / 16 * 16;
  };
  // Nothing was prefetched for the first wave.
  index_t begin = blockIdx.x < wave ? 0 : slot_bytes_before(index_t{blockIdx.x} + wave);
  index_t const end = slot_bytes_before(index_t{blockIdx.x} + index_t{2} * wave);
  fetcher const fetch;
  for (; begin < end; begin += fetch_bytes) {
    index_t const here = min(index_t{fetch_bytes}, end - begin);
    fetch(reinterpret_cast<std::uint8_t const*>(p.slot_to_row) + begin,
          static_cast<std::uint32_t>(here));  // narrow-ok: a fetch
  }
#endif
}

/// Computes: each row = its token, bit for bit; with `Scaled` also its scales. `TopK`: rows of a
///   token, or 0 for any number: for 4 rows the loop costs 2 % where it is not unrolled.
/// Grid: a thread per token and vector of 16 bytes, grid-stride beyond. PDL.
/// Threads: gather_threads.
/// Shared memory: the dynamic part is not used: it limits the CTAs of an SM.
/// Limits: has_vector_rows() of x and rows.
template <int TopK, bool Scaled>
__global__ void __launch_bounds__(gather_threads)
    gather_vectors(gather_vectors_parameters const p) {
  constexpr int unroll = TopK == 0 ? 8 : TopK;
  pdl_begin();
  l2_prefetch(p.from, p.prefetch_bytes, gather_threads * index_t{16}, p.burst_bytes);
  prefetch_slots(p);
  index_t const items = p.tokens * p.row_vectors.by, step = index_t{gridDim.x} * gather_threads;
  for (index_t item = index_t{blockIdx.x} * gather_threads + threadIdx.x; item < items;
       item += step) {
    index_t const token = divided(item, p.row_vectors), i = item - token * p.row_vectors.by;
    uint4 const vector = __ldcs(reinterpret_cast<uint4 const*>(p.from + token * p.from_step) + i);
    index_t const top_k = TopK == 0 ? p.top_k : TopK;
    for (index_t k = 0; k < top_k; k += unroll) {
      std::int64_t const* const rows = p.slot_to_row + (token * top_k + k) * p.slot_step;
      index_t row[unroll];
#pragma unroll
      for (int n = 0; n < unroll; ++n) row[n] = k + n < top_k ? rows[n * p.slot_step] : -1;
#pragma unroll
      for (int n = 0; n < unroll; ++n) {
        if (row[n] >= 0) __stcs(reinterpret_cast<uint4*>(p.to + row[n] * p.to_step) + i, vector);
      }
    }
  }
  if constexpr (Scaled) gather_scales(p.all);
}

/// Computes: each row = its token times the slot weight, rounded; its scales as they are.
/// Grid: a thread per token and vec8, grid-stride beyond.
/// Threads: gather_threads.
/// Shared memory: as gather_vectors.
/// Limits: can_take_vec8() of x and rows.
template <dtype Type>
__global__ void __launch_bounds__(gather_threads) gather_weighted(gather_parameters const p) {
  auto const* const from = static_cast<std::uint8_t const*>(p.x.data);
  auto* const to = static_cast<std::uint8_t*>(p.rows.data);
  l2_prefetch(p.x.data, contiguous_bytes(p.x, bits(Type) / 8), gather_threads * bytes_of_8(Type));
  for_each_item(p.plan.tokens, p.x.extent[1] / 8, [&](index_t token, index_t i) {
    float x[8];
    decode8<Type>(load8<Type>(from + (token * p.x.stride[0] / 8 + i) * bytes_of_8(Type)), x);
    for_each_row(p.plan, token, [&](index_t slot, index_t row) {
      float const weight = element<float>(p.plan.slot_weight, slot);
      float product[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) product[c] = x[c] * weight;
      store8<Type>(to + (row * p.rows.stride[0] / 8 + i) * bytes_of_8(Type),
                   encode8<Type>(product));
    });
  });
  if (p.scales.present()) gather_scales(p);
}

}  // namespace

kernel<gather_vectors_parameters> gather_vectors_kernel(bool scaled, index_t top_k) {
  constexpr char const* name = "gather_vectors";
  if (top_k == 4) return {name, scaled ? gather_vectors<4, true> : gather_vectors<4, false>, true};
  if (top_k == 8) return {name, scaled ? gather_vectors<8, true> : gather_vectors<8, false>, true};
  return {name, scaled ? gather_vectors<0, true> : gather_vectors<0, false>, true};
}
kernel<gather_parameters> gather_weighted_kernel(dtype type) {
  if (type == dtype::f32) return {"gather_weighted", gather_weighted<dtype::f32>};
  if (type == dtype::bf16) return {"gather_weighted", gather_weighted<dtype::bf16>};
  return {"gather_weighted", gather_weighted<dtype::f16>};
}
kernel<gather_parameters> gather_reference_kernel() {
  return {"gather_reference", gather_reference};
}

}  // namespace moe64::cuda
