#pragma once

#include "backend.hpp"

/// The implementation lists of CUDA, one function per operation, each defined in the file of that
/// name.
namespace moe64::cuda {

implementation_list<quantize_args> quantize_list();
implementation_list<dequantize_args> dequantize_list();
implementation_list<route_args> route_list();
implementation_list<route_backward_args> route_backward_list();
implementation_list<plan_args> plan_list();
implementation_list<gather_args> gather_list();
implementation_list<combine_args> combine_list();
implementation_list<slot_weight_gradient_args> slot_weight_gradient_list();
implementation_list<grouped_gemm_args> grouped_gemm_list();
implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad_list();
implementation_list<activate_args> activate_list();
implementation_list<activate_backward_args> activate_backward_list();
implementation_list<layer_calls> layer_list();

index_t layer_counter_bytes(index_t slots, index_t hidden, index_t inter);
index_t plan_scratch_bytes(index_t tokens, index_t top_k, index_t experts);

/// The answer of a reference implementation: every call that passed the door.
template <class Args>
support any_call(Args const&) {
  return support::yes();
}

}  // namespace moe64::cuda
