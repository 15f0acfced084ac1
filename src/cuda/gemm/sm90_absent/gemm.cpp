#include "cuda/gemm/sm90/gemm.hpp"

#include "core/fail.hpp"
#include "cuda/gemm/sm90/mixed_gemm.hpp"
#include "cuda/operations.hpp"

/// In the place of grouped_gemm_wgmma*.cpp in builds without the headers of CUTLASS or without
/// sm_90a.
namespace moe64::cuda::wgmma {

support takes(grouped_gemm_args const&) {
  return support::no("this build has no kernels of sm_90a");
}

void grouped_gemm(grouped_gemm_args const& args, stream) {
  fail(errc::unsupported, "[grouped_gemm] {}", takes(args).reason());
}

}  // namespace moe64::cuda::wgmma

namespace moe64::cuda {

implementation_list<layer_calls> layer_list() { return {}; }
index_t layer_counter_bytes(index_t, index_t, index_t) { return 0; }

}  // namespace moe64::cuda

namespace moe64::cuda::wgmma_decode {

support takes(grouped_gemm_args const&) {
  return support::no("this build has no kernels of sm_90a");
}

void grouped_gemm(grouped_gemm_args const& args, stream) {
  fail(errc::unsupported, "[grouped_gemm] {}", takes(args).reason());
}

}  // namespace moe64::cuda::wgmma_decode
