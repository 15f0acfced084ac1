#include "moe64/c/abi.h"

#include "capi/checks.hpp"
#include "capi/guarded.hpp"
#include "moe64/moe64.h"

#include <string_view>

namespace moe64::capi {
namespace {

struct named_size {
  std::string_view name;
  std::size_t bytes;
};

#define MOE64_SIZE_OF(type) \
  named_size { #type, sizeof(type) }
constexpr named_size struct_sizes[] = {
    MOE64_SIZE_OF(moe64_device),
    MOE64_SIZE_OF(moe64_stream),
    MOE64_SIZE_OF(moe64_tensor),
    MOE64_SIZE_OF(moe64_workspace),
    MOE64_SIZE_OF(moe64_granularity),
    MOE64_SIZE_OF(moe64_global_scale),
    MOE64_SIZE_OF(moe64_quantized),
    MOE64_SIZE_OF(moe64_expert_places),
    MOE64_SIZE_OF(moe64_routing_plan),
    MOE64_SIZE_OF(moe64_executor_vtable),
    MOE64_SIZE_OF(moe64_quantize_args),
    MOE64_SIZE_OF(moe64_dequantize_args),
    MOE64_SIZE_OF(moe64_route_options),
    MOE64_SIZE_OF(moe64_route_args),
    MOE64_SIZE_OF(moe64_route_backward_args),
    MOE64_SIZE_OF(moe64_plan_args),
    MOE64_SIZE_OF(moe64_gather_args),
    MOE64_SIZE_OF(moe64_combine_args),
    MOE64_SIZE_OF(moe64_slot_weight_gradient_args),
    MOE64_SIZE_OF(moe64_low_rank_term),
    MOE64_SIZE_OF(moe64_grouped_gemm_args),
    MOE64_SIZE_OF(moe64_grouped_gemm_wgrad_args),
    MOE64_SIZE_OF(moe64_activation_spec),
    MOE64_SIZE_OF(moe64_activate_args),
    MOE64_SIZE_OF(moe64_activate_backward_args),
    MOE64_SIZE_OF(moe64_lora_adapter),
    MOE64_SIZE_OF(moe64_projection),
    MOE64_SIZE_OF(moe64_layer_desc),
    MOE64_SIZE_OF(moe64_projection_view),
    MOE64_SIZE_OF(moe64_layer_view),
    MOE64_SIZE_OF(moe64_layer_shape),
    MOE64_SIZE_OF(moe64_forward_args),
    MOE64_SIZE_OF(moe64_projection_gradients),
    MOE64_SIZE_OF(moe64_layer_gradients),
    MOE64_SIZE_OF(moe64_backward_args),
    MOE64_SIZE_OF(moe64_checkpoint_options),
    MOE64_SIZE_OF(moe64_checkpoint_finding),
    MOE64_SIZE_OF(moe64_checkpoint_summary),
    MOE64_SIZE_OF(moe64_projection_format),
    MOE64_SIZE_OF(moe64_checkpoint_layer),
    MOE64_SIZE_OF(moe64_layer_request),
    MOE64_SIZE_OF(moe64_merge_options),
    MOE64_SIZE_OF(moe64_adapter_fit),
    MOE64_SIZE_OF(moe64_merge_summary),
    MOE64_SIZE_OF(moe64_merged_tensor),
};
#undef MOE64_SIZE_OF

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

int32_t moe64_abi_version(void) { return MOE64_ABI_VERSION; }

moe64_status moe64_struct_bytes(const char* name, int64_t* bytes) {
  return guarded([&] {
    argument const at("struct_bytes");
    std::string_view const wanted = &required(name, at["name"]);
    auto& out = required(bytes, at["bytes"]);
    for (named_size const& known : struct_sizes) {
      if (known.name != wanted) continue;
      out = static_cast<int64_t>(known.bytes);
      return;
    }
    moe64::fail(moe64::errc::invalid_argument,
                "{} name is '{}', which is no struct of this library", at.text(), wanted);
  });
}

}  // extern "C"
