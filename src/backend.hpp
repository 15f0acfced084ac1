#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

#include <span>

/// The contract of a backend: for every operation an ordered list of implementations, the best
/// first, the reference, which accepts every legal call, last. Behind this line operands are valid:
/// the door (src/ops) has checked them.
namespace moe64 {

template <class Args>
struct implementation {
  char const* name;
  support (*supports)(Args const& args);
  void (*run)(Args const& args, stream where);
};

template <class Args>
using implementation_list = std::span<implementation<Args> const>;

/// The calls of a forward without LoRA whose rows are codes (w8a8), in their order.
struct layer_calls {
  plan_args plan;
  gather_args gather;
  grouped_gemm_args gate_up;
  activate_args activate;
  grouped_gemm_args down;
  combine_args combine;
  workspace counters;  ///< layer_counter_bytes() of it
};

struct backend {
  implementation_list<quantize_args> quantize;
  implementation_list<dequantize_args> dequantize;
  implementation_list<route_args> route;
  implementation_list<route_backward_args> route_backward;
  implementation_list<plan_args> plan;
  implementation_list<gather_args> gather;
  implementation_list<combine_args> combine;
  implementation_list<slot_weight_gradient_args> slot_weight_gradient;
  implementation_list<grouped_gemm_args> grouped_gemm;
  implementation_list<grouped_gemm_wgrad_args> grouped_gemm_wgrad;
  implementation_list<activate_args> activate;
  implementation_list<activate_backward_args> activate_backward;

  /// Scratch of plan, in bytes.
  index_t (*plan_scratch_bytes)(index_t tokens, index_t top_k, index_t experts);
  /// The implementation of grouped_gemm whose products of 8-bit floats are the hardware's own: what
  /// it takes, `auto` may choose w8a8 for. nullptr: there is none.
  implementation<grouped_gemm_args> const* float8_product;
  /// Whether a gather that quantises makes the codes of such a token once for all of its rows: then
  /// it moves less than quantize and a gather of codes.
  bool (*gathers_codes_once)(dtype x, index_t cols);

  /// All calls of a layer at once, with their bits: may be empty, and may refuse.
  implementation_list<layer_calls> layer;
  /// Memory that these need beside the operands of the calls; 0: they take no such layer.
  index_t (*layer_counter_bytes)(index_t slots, index_t hidden, index_t inter);
};

/// src/cpu/table.cpp
[[nodiscard]] backend const& cpu_backend();
/// src/cuda/table.cpp, or table_absent.cpp in builds without CUDA
[[nodiscard]] backend const& cuda_backend();

/// The backend of a device; errc::unsupported when this build has none for it.
[[nodiscard]] backend const& backend_of(moe64::device where);

}  // namespace moe64
