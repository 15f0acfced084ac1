#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

#include <span>
#include <string_view>

/// The contract of a backend: for every operation an ordered list of implementations, the best
/// first, the reference, which accepts every legal call, last. Behind this line operands are valid:
/// the door (src/ops) has checked them.
namespace moe64 {

template <class Args>
struct implementation {
  char const* name;
  support (*supports)(Args const& args);
  void (*run)(Args const& args, stream where);
  /// A layer that has two ways to its result takes the one whose call this implementation takes:
  /// w8a8, where `auto` may choose it, rather than w8a16 (grouped_gemm); codes made in gather, once
  /// for each token, rather than quantize and a gather of codes (gather).
  bool preferred = false;
};
/// In a list: {"sm90_w8a8", takes_w8a8, w8a8_gemm, preferred}.
inline constexpr bool preferred = true;

template <class Args>
using implementation_list = std::span<implementation<Args> const>;

/// The calls of a forward without LoRA whose rows are codes (w8a8), in their order: an operation
/// that a layer asks for before it makes them one by one.
struct layer_calls {
  plan_args plan;
  gather_args gather;
  grouped_gemm_args gate_up;
  activate_args activate;
  grouped_gemm_args down;
  combine_args combine;
  workspace counters;  ///< layer_counter_bytes() of it
  std::string_view implementation = {};
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
  /// With the bits of the calls one by one, which stand in for a reference: the list may be empty,
  /// and all may refuse.
  implementation_list<layer_calls> layer;

  /// Scratch of plan, in bytes.
  index_t (*plan_scratch_bytes)(index_t tokens, index_t top_k, index_t experts);
  /// Counters of layer, in bytes. 0: no implementation takes a layer of so many slots.
  index_t (*layer_counter_bytes)(index_t slots, index_t hidden, index_t inter);
};

/// src/cpu/table.cpp
[[nodiscard]] backend const& cpu_backend();
/// src/cuda/table.cpp, or absent/table.cpp in builds without CUDA
[[nodiscard]] backend const& cuda_backend();

/// The backend of a device; errc::unsupported when this build has none for it.
[[nodiscard]] backend const& backend_of(moe64::device where);

}  // namespace moe64
