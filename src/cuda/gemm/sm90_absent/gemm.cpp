#include "cuda/gemm/sm90/gemm.hpp"

#include "core/fail.hpp"
#include "cuda/gemm/sm90/mixed_gemm.hpp"
#include "cuda/operations.hpp"

/// In the place of sm90/*.cpp in builds without the headers of CUTLASS or without sm_90a.
namespace moe64::cuda {
namespace {

support absent() { return support::no("this build has no kernels of sm_90a"); }

[[noreturn]] void refuse() { fail(errc::unsupported, "[grouped_gemm] {}", absent().reason()); }

}  // namespace

namespace sm90 {

support takes_w8a8(grouped_gemm_args const&) { return absent(); }
support takes_bf16(grouped_gemm_args const&) { return absent(); }
void w8a8_gemm(grouped_gemm_args const&, stream) { refuse(); }
void bf16_gemm(grouped_gemm_args const&, stream) { refuse(); }

}  // namespace sm90

namespace sm90_mixed {

support takes_w8a16(grouped_gemm_args const&) { return absent(); }
support takes_w4a16(grouped_gemm_args const&) { return absent(); }
void grouped_gemm(grouped_gemm_args const&, stream) { refuse(); }

}  // namespace sm90_mixed

implementation_list<layer_calls> layer_list() { return {}; }
index_t layer_counter_bytes(index_t, index_t, index_t) { return 0; }

}  // namespace moe64::cuda
