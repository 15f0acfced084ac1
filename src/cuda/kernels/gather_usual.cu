#include "cuda/kernels/read_ahead.cuh"
#include "cuda/kernels/usual.cuh"

namespace moe64::cuda {
namespace {

/// A token's codes are made once for all of its rows.
template <dtype X, bool InGroups>
__global__ void __launch_bounds__(usual_row_threads) gather_usual(gather_usual_parameters const p) {
  constexpr int held = 2, at_once = 8;
  constexpr std::uint32_t lanes = group_items<quantize_usual_width>;
  // The scales of a token, so that those of a row are written in one piece.
  __shared__ float scales[2][held * usual_row_threads / lanes];
  usual_target const& to = p.to;
  std::uint32_t const count = InGroups ? (to.cols + usual_group - 1) / usual_group : 1;
  read_ahead(p.x.data, p.ahead_bytes, index_t{to.cols} * 2);
  block_maximum maximum;
  int turn = 0;
  for (index_t token = blockIdx.x; token < p.tokens; token += gridDim.x, turn ^= 1) {
    std::int64_t const* const rows = p.slot_to_row + token * p.top_k;
    std::int64_t row[at_once];
    auto const load_rows = [&](index_t k) {
#pragma unroll
      for (int i = 0; i < at_once; ++i) row[i] = k + i < p.top_k ? rows[k + i] : -1;
    };
    load_rows(0);
    auto const item = [&](int n) { return threadIdx.x + n * blockDim.x; };
    sixteens<X, 1> x[held] = {};
#pragma unroll
    for (int n = 0; n < held; ++n) {
      auto const from = static_cast<std::uint32_t>(token);  // narrow-ok: launch_usual
      if (16 * item(n) < to.cols) x[n] = load_item<X, 1>(p.x, from, item(n));
    }
    std::uint32_t of_row = 0;
    if (!InGroups) of_row = maximum.of(max(largest_of(x[0]), largest_of(x[1])));
    item_codes<1> codes[held];
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const largest = InGroups ? largest_of_group<1>(largest_of(x[n])) : of_row;
      block_factor const by = usual_factor<X>(largest);
      codes[n] = codes_of(x[n], by);
      if (InGroups ? threadIdx.x % lanes == 0 : threadIdx.x + n == 0) {
        scales[turn][item(n) / lanes] = __uint_as_float(by.scale);
      }
    }
    __syncthreads();
    for (index_t k = 0; k < p.top_k;) {
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (row[i] < 0) continue;
        auto const at = static_cast<std::uint32_t>(row[i]);  // narrow-ok: usual_target_of
#pragma unroll
        for (int n = 0; n < held; ++n) {
          if (16 * item(n) < to.cols) store_codes(to, at, item(n), codes[n]);
        }
        for (std::uint32_t s = threadIdx.x; s < count; s += blockDim.x) {
          to.scales[std::uint64_t{at} * to.scale_step + std::uint64_t{s} * to.group_step] =
              scales[turn][s];
        }
      }
      k += at_once;
      if (k < p.top_k) load_rows(k);
    }
  }
}

}  // namespace

kernel<gather_usual_parameters> gather_usual_kernel(dtype x, bool in_groups) {
  auto const pick = [&](auto* groups, auto* rows) -> kernel<gather_usual_parameters> {
    return {"gather_usual", in_groups ? groups : rows};
  };
  if (x == dtype::bf16)
    return pick(gather_usual<dtype::bf16, true>, gather_usual<dtype::bf16, false>);
  return pick(gather_usual<dtype::f16, true>, gather_usual<dtype::f16, false>);
}

}  // namespace moe64::cuda
