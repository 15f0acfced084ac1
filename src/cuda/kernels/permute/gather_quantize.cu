#include "cuda/kernels/device/l2_prefetch.cuh"
#include "cuda/kernels/permute/gather_quantize.hpp"
#include "cuda/kernels/quantize/reference.cuh"
#include "cuda/kernels/quantize/rows.cuh"

namespace moe64::cuda {
namespace {

/// Computes: codes and scales of each row = its token, times the slot weight where asked, rounded
///   to the type of x.
/// Grid: a CTA per row, grid-stride beyond.
/// Threads: any multiple of 32, over the columns.
/// Shared memory: a word per warp.
/// Limits: a scale per row or group; any strides and types.
__global__ void gather_quantize_reference(gather_quantize_parameters const p) {
  index_t const rows = element<index_t>(p.plan.expert_begin, p.plan.experts);
  quantize_rows_of(p.target, rows, [&](index_t row, index_t col, bool exists) {
    if (!exists) return 0.0F;
    index_t const slot = element<index_t>(p.plan.row_to_slot, row);
    float const x = load_number(row_of(p.x, slot / p.plan.top_k), col);
    if (!p.weighted) return x;
    return rounded_to(p.x.type, x * element<float>(p.plan.slot_weight, slot));
  });
}

/// visit(row, weight) for every row of a token, in slot order. All lanes of a warp together: each
/// loads one slot, so that there is one latency for 32 of them.
template <class Visit>
__device__ void for_each_row(gather_quantize_parameters const& p, index_t token,
                             Visit const& visit) {
  index_t const slot = token * p.plan.top_k, lane = threadIdx.x % 32;
  for (index_t first = 0; first < p.plan.top_k; first += 32) {
    bool const exists = first + lane < p.plan.top_k;
    index_t const row = exists ? element<index_t>(p.plan.slot_to_row, slot + first + lane) : -1;
    float const weight =
        exists && p.weighted ? element<float>(p.plan.slot_weight, slot + first + lane) : 1.0F;
    int const count = static_cast<int>(min(index_t{32}, p.plan.top_k - first));  // narrow-ok: <= 32
    for (int k = 0; k < count; ++k) {
      index_t const row_of_k = __shfl_sync(0xffffffffU, row, k);
      float const weight_of_k = p.weighted ? __shfl_sync(0xffffffffU, weight, k) : 1.0F;
      if (row_of_k >= 0) visit(row_of_k, weight_of_k);
    }
  }
}

/// Elements times a weight, rounded.
template <dtype X>
__device__ raw16<X> weighted(raw16<X> const& x, float weight) {
  raw16<X> result;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float values[8];
    decode8<X>(x.half[h], values);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] *= weight;
    result.half[h] = encode8<X>(values);
  }
  return result;
}

template <dtype X>
__device__ std::uint8_t const* token_data(tensor_view const& x, index_t token) {
  return static_cast<std::uint8_t const*>(x.data) + offset_of(x, token) * (bits(X) / 8);
}

/// Computes: codes and scales of each row, a scale for every 16 * 2^n <= 512 columns.
/// Grid: a CTA per token, grid-stride beyond.
/// Threads: as many as hold the columns of a token, gather_held each, at most 1024; 2^n
///   neighbouring lanes hold a group.
/// Shared memory: none. L2 prefetch of x (sm_90).
/// Limits: can_make_groups(), can_take_vec16() of x and codes.
template <dtype X, dtype Code>
__global__ void __launch_bounds__(1024) gather_groups(gather_quantize_parameters const p) {
  constexpr int held = gather_held / 16;
  quantize_target const& t = p.target;
  index_t const cols = t.values.extent[2], step = index_t{gather_held} * blockDim.x;
  l2_prefetch(p.x.data, contiguous_bytes(p.x, bits(X) / 8), cols * (bits(X) / 8));
  for (index_t token = blockIdx.x; token < p.plan.tokens; token += gridDim.x) {
    std::uint8_t const* const from = token_data<X>(p.x, token);
    for (index_t first = 0; first < cols; first += step) {
      auto const col_of = [&](int n) { return first + 16 * (threadIdx.x + n * blockDim.x); };
      raw16<X> x[held] = {};
#pragma unroll
      for (int n = 0; n < held; ++n) {
        if (col_of(n) < cols) x[n] = load16<X>(from + col_of(n) * (bits(X) / 8));
      }
      group_codes<Code> made[held];
#pragma unroll
      for (int n = 0; n < held; ++n) made[n] = group_codes<Code>::of(x[n], t);
      for_each_row(p, token, [&](index_t row, float weight) {
        group_rows<Code> const to(t, 0, row);
#pragma unroll
        for (int n = 0; n < held; ++n) {
          if (p.weighted) made[n] = group_codes<Code>::of(weighted(x[n], weight), t);
          if (col_of(n) < cols) to.store(0, col_of(n), made[n]);
        }
      });
    }
  }
}

/// Computes: codes and scales of each row, a scale for all of it.
/// Grid: a CTA per token, grid-stride beyond.
/// Threads: as many as hold a row, gather_held columns each; at most 1024.
/// Shared memory: two words per warp, for the largest magnitude. L2 prefetch of x (sm_90).
/// Limits: can_make_blocks(), can_take_vec16() of x and codes.
template <dtype X, dtype Code>
__global__ void __launch_bounds__(1024) gather_rows(gather_quantize_parameters const p) {
  constexpr int held = gather_held / 16;
  quantize_target const& t = p.target;
  index_t const cols = t.values.extent[2];
  l2_prefetch(p.x.data, contiguous_bytes(p.x, bits(X) / 8), cols * (bits(X) / 8));
  cta_maximum maximum;
  for (index_t token = blockIdx.x; token < p.plan.tokens; token += gridDim.x) {
    std::uint8_t const* const from = token_data<X>(p.x, token);
    auto const col_of = [&](int n) { return 16 * (threadIdx.x + n * blockDim.x); };
    raw16<X> x[held] = {};
#pragma unroll
    for (int n = 0; n < held; ++n) {
      if (col_of(n) < cols) x[n] = load16<X>(from + col_of(n) * (bits(X) / 8));
    }
    raw16<Code> codes[held];
    block_factor by;
    auto const make = [&](raw16<X> const(&elements)[held]) {
      std::uint32_t largest = 0;
#pragma unroll
      for (int n = 0; n < held; ++n) largest = max(largest, largest_of(elements[n]));
      by = factor_for<Code, X>(t.scales.type, maximum.of(largest), {});
#pragma unroll
      for (int n = 0; n < held; ++n) codes[n] = codes_of<Code>(elements[n], by);
    };
    if (!p.weighted) make(x);
    for_each_row(p, token, [&](index_t row, float weight) {
      if (p.weighted) {
        raw16<X> y[held];
#pragma unroll
        for (int n = 0; n < held; ++n) y[n] = weighted(x[n], weight);
        make(y);
      }
      std::uint8_t* const to = codes_at<Code>(t.values, 0, row, 0);
      if (threadIdx.x == 0) store_scale(t.scales, offset_of(t.scales, 0, row), by.scale);
#pragma unroll
      for (int n = 0; n < held; ++n) {
        if (col_of(n) < cols) store16<Code>(to + col_of(n), codes[n]);
      }
    });
  }
}

using handle = kernel<gather_quantize_parameters>;

/// visitor(type of x, type of codes) with both as constants.
template <class Visitor>
handle visit_types(dtype x, dtype values, Visitor const& visitor) {
  auto const with_x = [&](auto x_type) {
    if (values == dtype::e5m2) return visitor(x_type, type_constant<dtype::e5m2>{});
    if (values == dtype::int8) return visitor(x_type, type_constant<dtype::int8>{});
    return visitor(x_type, type_constant<dtype::e4m3>{});
  };
  return x == dtype::bf16 ? with_x(type_constant<dtype::bf16>{})
                          : with_x(type_constant<dtype::f16>{});
}

}  // namespace

handle gather_quantize_reference_kernel() {
  return {"gather_quantize_reference", gather_quantize_reference};
}

handle gather_groups_kernel(dtype x, dtype values) {
  return visit_types(x, values, [](auto x_type, auto code) {
    return handle{"gather_groups", gather_groups<x_type(), code()>};
  });
}

handle gather_rows_kernel(dtype x, dtype values) {
  return visit_types(x, values, [](auto x_type, auto code) {
    return handle{"gather_rows", gather_rows<x_type(), code()>};
  });
}

}  // namespace moe64::cuda
