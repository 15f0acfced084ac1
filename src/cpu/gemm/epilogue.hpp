#pragma once

#include "cpu/runtime/expert_ranges.hpp"
#include "moe64/ops.hpp"

/// The end of every grouped GEMM, the same for all implementations:
///
/// y of one tile = acc + scaling * low_rank + bias, in f32, rounded once. `acc` is [at.rows,
/// at.outs] f32 with `stride` from row to row, and is overwritten; `low_rank` has the same shape
/// and stride, or is null when the call has no low-rank term.
namespace moe64::cpu {

void store_tile(grouped_gemm_args const& args, tile_place const& at, float* acc,
                float const* low_rank, index_t stride);

/// The same with vectors.
#if defined(__x86_64__)
namespace N_AVX3 {  // needs has_avx512()
void store_tile_simd(grouped_gemm_args const& args, tile_place const& at, float* acc,
                     float const* low_rank, index_t stride);
}
namespace N_AVX2 {  // needs has_avx2()
void store_tile_simd(grouped_gemm_args const& args, tile_place const& at, float* acc,
                     float const* low_rank, index_t stride);
}
#endif
namespace N_SCALAR {
void store_tile_simd(grouped_gemm_args const& args, tile_place const& at, float* acc,
                     float const* low_rank, index_t stride);
}

}  // namespace moe64::cpu
