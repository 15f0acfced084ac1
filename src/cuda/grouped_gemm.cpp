#include "cuda/operations.hpp"

namespace moe64::cuda {

implementation_list<grouped_gemm_args> grouped_gemm_list() { return {}; }
implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list() { return {}; }

}  // namespace moe64::cuda
