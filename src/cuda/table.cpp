#include "cuda/operations.hpp"

namespace moe64 {

backend const& cuda_backend() {
  static backend const table = {
      .quantize = cuda::quantize_list(),
      .dequantize = cuda::dequantize_list(),
      .route = cuda::route_list(),
      .route_backward = cuda::route_backward_list(),
      .plan = cuda::plan_list(),
      .gather = cuda::gather_list(),
      .combine = cuda::combine_list(),
      .slot_weight_gradient = cuda::slot_weight_gradient_list(),
      .grouped_gemm = cuda::grouped_gemm_list(),
      .grouped_gemm_wgrad = cuda::grouped_gemm_wgrad_list(),
      .activate = cuda::activate_list(),
      .activate_backward = cuda::activate_backward_list(),
      .layer = cuda::layer_list(),
      .plan_scratch_bytes = cuda::plan_scratch_bytes,
      .layer_counter_bytes = cuda::layer_counter_bytes,
  };
  return table;
}

}  // namespace moe64
