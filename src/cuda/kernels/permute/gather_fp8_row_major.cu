#include "cuda/kernels/device/l2_prefetch.cuh"
#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/permute/gather_fp8_row_major.hpp"
#include "cuda/kernels/quantize/fp8_row_major.cuh"

namespace moe64::cuda {
namespace {

/// The rows of a token. The loads of the first ones are issued at once, long before their use.
class rows_of_token {
 public:
  __device__ rows_of_token(gather_row_major_parameters const& p, index_t token)
      : slots_(p.slot_to_row + token * p.top_k), top_k_(p.top_k) {
    load(0);
  }

  template <class Visit>
  __device__ void for_each(Visit const& visit) {
    for (index_t k = 0;;) {
#pragma unroll
      for (int i = 0; i < unroll; ++i) {
        if (row_[i] >= 0)
          visit(static_cast<std::uint32_t>(row_[i]));  // narrow-ok: row_major_target_of
      }
      k += unroll;
      if (k >= top_k_) return;
      load(k);
    }
  }

 private:
  static constexpr int unroll = 8;
  __device__ void load(index_t k) {
#pragma unroll
    for (int i = 0; i < unroll; ++i) row_[i] = k + i < top_k_ ? slots_[k + i] : -1;
  }

  std::int64_t const* slots_;
  index_t top_k_;
  std::int64_t row_[unroll];
};

/// Computes: codes e4m3 and scales f32 of each row = its token, a scale for all of it; each token
///   is quantised once for all of its rows.
/// Grid: a CTA per token, grid-stride beyond. PDL.
/// Threads: as many as hold a row, 32 columns each; at most row_major_row_threads.
/// Shared memory: two words per warp, for the largest magnitude; the dynamic part is not used: it
///   limits the CTAs of an SM.
/// Limits: takes_row_major() of cuda/quantize/gather_quantize.cpp.
template <dtype X>
__global__ void __launch_bounds__(row_major_row_threads)
    gather_row_major_rows(gather_row_major_parameters const p) {
  pdl_begin();
  constexpr int held = 2;
  row_major_target const& to = p.to;
  l2_prefetch(p.x.data, p.prefetch_bytes, index_t{to.cols} * 2);
  cta_maximum maximum;
  for (index_t token = blockIdx.x; token < p.tokens; token += gridDim.x) {
    rows_of_token rows(p, token);
    auto const item = [&](int n) { return threadIdx.x + n * blockDim.x; };
    raw_item<X, 1> x[held] = {};
#pragma unroll
    for (int n = 0; n < held; ++n) {
      auto const from = static_cast<std::uint32_t>(token);  // narrow-ok: takes_row_major
      if (16 * item(n) < to.cols) x[n] = load_item<X, 1>(p.x, from, item(n));
    }
    block_factor const by =
        row_major_factor<X>(maximum.of(max(largest_of(x[0]), largest_of(x[1]))));
    item_codes<1> codes[held];
#pragma unroll
    for (int n = 0; n < held; ++n) codes[n] = codes_of(x[n], by);
    rows.for_each([&](std::uint32_t row) {
#pragma unroll
      for (int n = 0; n < held; ++n) {
        if (16 * item(n) < to.cols) store_codes(to, row, item(n), codes[n]);
      }
    });
    for (index_t k = threadIdx.x; k < p.top_k; k += blockDim.x) {
      std::int64_t const row = p.slot_to_row[token * p.top_k + k];
      if (row < 0) continue;
      to.scales[static_cast<std::uint64_t>(row) * to.scale_step] = __uint_as_float(by.scale);
    }
  }
}

/// Computes: the same with a scale for every 128 columns.
/// Grid: a CTA for a vec16 per thread, grid-stride beyond: the fewer columns of a token a CTA
///   writes to all of its rows, the better. PDL.
/// Threads: gather_groups_threads; 8 lanes hold a group.
/// Shared memory: a double buffer of scales; the dynamic part is not used: it limits the CTAs of an
///   SM.
/// Limits: as above.
template <dtype X>
__global__ void __launch_bounds__(gather_groups_threads)
    gather_row_major_groups(gather_row_major_parameters const p) {
  pdl_begin();
  constexpr int width = quantize_row_major_width;
  constexpr std::uint32_t lanes = group_items<width>, groups = gather_groups_threads / lanes;
  // Scales are written by neighbouring threads, so that those of a row are coalesced.
  __shared__ float scales[2][groups];
  row_major_target const& to = p.to;
  l2_prefetch(p.x.data, p.prefetch_bytes, index_t{gather_groups_threads} * 32);
  auto const tokens = static_cast<std::uint32_t>(p.tokens);  // narrow-ok: takes_row_major
  std::uint32_t const items = tokens * items_of_row(to);
  int parity = 0;
  for (std::uint32_t first = blockIdx.x * gather_groups_threads; first < items;
       first += gridDim.x * gather_groups_threads, parity ^= 1) {
    row_item const at = row_item_of(to, first + threadIdx.x, items, width);
    auto const x = load_item<X, width>(p.x, at.exists ? at.row : 0, at.exists ? at.index : 0);
    rows_of_token rows(p, at.exists ? at.row : 0);
    std::uint32_t const largest = at.exists ? largest_of(x) : 0;
    block_factor const by = row_major_factor<X>(largest_of_group<width>(largest));
    item_codes<width> const codes = codes_of(x, by);
    if (threadIdx.x % lanes == 0) scales[parity][threadIdx.x / lanes] = __uint_as_float(by.scale);
    if (at.exists) {
      rows.for_each([&](std::uint32_t row) { store_codes(to, row, at.index, codes); });
    }
    __syncthreads();
    std::uint32_t const group = threadIdx.x % groups;
    row_item const scaled = row_item_of(to, first + group * lanes, items, width);
    for (index_t k = threadIdx.x / groups; scaled.exists && k < p.top_k; k += lanes) {
      std::int64_t const row = p.slot_to_row[index_t{scaled.row} * p.top_k + k];
      if (row < 0) continue;
      to.scales[static_cast<std::uint64_t>(row) * to.scale_step +
                std::uint64_t{scaled.index / lanes} * to.group_step] = scales[parity][group];
    }
  }
}

}  // namespace

kernel<gather_row_major_parameters> gather_row_major_rows_kernel(dtype x) {
  return {"gather_row_major_rows",
          x == dtype::bf16 ? gather_row_major_rows<dtype::bf16> : gather_row_major_rows<dtype::f16>,
          true};
}

kernel<gather_row_major_parameters> gather_row_major_groups_kernel(dtype x) {
  return {
      "gather_row_major_groups",
      x == dtype::bf16 ? gather_row_major_groups<dtype::bf16> : gather_row_major_groups<dtype::f16>,
      true};
}

}  // namespace moe64::cuda
