#include "cpu/operations.hpp"

namespace moe64 {

backend const& cpu_backend() {
  static backend const table = {
      .quantize = cpu::quantize_list(),
      .dequantize = cpu::dequantize_list(),
      .route = cpu::route_list(),
      .route_backward = cpu::route_backward_list(),
      .plan = cpu::plan_list(),
      .gather = cpu::gather_list(),
      .combine = cpu::combine_list(),
      .slot_weight_gradient = cpu::slot_weight_gradient_list(),
      .grouped_gemm = cpu::grouped_gemm_list(),
      .grouped_gemm_wgrad = cpu::grouped_gemm_wgrad_list(),
      .activate = cpu::activate_list(),
      .activate_backward = cpu::activate_backward_list(),
      .layer = {},
      .plan_scratch_bytes = cpu::plan_scratch_bytes,
      .layer_counter_bytes = [](index_t, index_t, index_t) { return index_t{0}; },
  };
  return table;
}

}  // namespace moe64
