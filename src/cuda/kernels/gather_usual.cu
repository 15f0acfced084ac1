#include "cuda/kernels/read_ahead.cuh"
#include "cuda/kernels/usual.cuh"

namespace moe64::cuda {
namespace {

/// A token's codes are made once for all of its rows.
template <dtype X, bool InGroups>
__global__ void __launch_bounds__(usual_row_threads) gather_usual(gather_usual_parameters const p) {
  constexpr int held = 2, at_once = 8;
  usual_target const& to = p.to;
  read_ahead(p.x.data, p.ahead_bytes, index_t{to.cols} * 2);
  block_maximum maximum;
  for (index_t token = blockIdx.x; token < p.tokens; token += gridDim.x) {
    std::int64_t const* const rows = p.slot_to_row + token * p.top_k;
    std::int64_t row[at_once];
    auto const load_rows = [&](index_t k) {
#pragma unroll
      for (int i = 0; i < at_once; ++i) row[i] = k + i < p.top_k ? rows[k + i] : -1;
    };
    load_rows(0);
    raw16<X> x[held] = {};
    bool exists[held];
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const sixteen = threadIdx.x + n * blockDim.x;
      exists[n] = 16 * sixteen < to.cols;
      // Tokens are few enough: usual_target_of.
      auto const from = static_cast<std::uint32_t>(token);  // narrow-ok: see above
      if (exists[n]) x[n] = load_sixteen<X>(p.x, from, sixteen);
    }
    raw16<dtype::e4m3> codes[held];
    std::uint32_t scale[held];
    std::uint32_t of_row = 0;
    if (!InGroups) of_row = maximum.of(max(largest_of(x[0]), largest_of(x[1])));
#pragma unroll
    for (int n = 0; n < held; ++n) {
      std::uint32_t const largest = InGroups ? largest_of_group(largest_of(x[n])) : of_row;
      block_factor const by = usual_factor<X>(largest);
      codes[n] = codes_of<dtype::e4m3>(x[n], by);
      scale[n] = by.scale;
    }
    for (index_t k = 0; k < p.top_k;) {
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        if (row[i] < 0) continue;
        auto const at = static_cast<std::uint32_t>(row[i]);  // narrow-ok: usual_target_of
#pragma unroll
        for (int n = 0; n < held; ++n) {
          std::uint32_t const sixteen = threadIdx.x + n * blockDim.x;
          if (!exists[n]) continue;
          store16<dtype::e4m3>(codes_at(to, at, sixteen), codes[n]);
          if (InGroups) store_group_scale(to, at, sixteen, scale[n]);
        }
        if (!InGroups && threadIdx.x == 0) {
          to.scales[std::uint64_t{at} * to.scale_step] = __uint_as_float(scale[0]);
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
