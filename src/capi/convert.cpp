#include "capi/convert.hpp"

#include <cstddef>

namespace moe64::capi {
namespace {

// A C++ caller of the C ABI may reinterpret the borrowed types, and the documentation says that
// they are the same.
static_assert(sizeof(moe64_device) == sizeof(device));
static_assert(offsetof(moe64_device, kind) == offsetof(device, kind));
static_assert(offsetof(moe64_device, ordinal) == offsetof(device, ordinal));
static_assert(sizeof(moe64_stream) == sizeof(stream));
static_assert(offsetof(moe64_stream, device) == offsetof(stream, device));
static_assert(offsetof(moe64_stream, handle) == offsetof(stream, handle));
static_assert(sizeof(moe64_tensor) == sizeof(tensor_view));
static_assert(alignof(moe64_tensor) == alignof(tensor_view));
static_assert(offsetof(moe64_tensor, data) == offsetof(tensor_view, data));
static_assert(offsetof(moe64_tensor, dtype) == offsetof(tensor_view, type));
static_assert(offsetof(moe64_tensor, rank) == offsetof(tensor_view, rank));
static_assert(offsetof(moe64_tensor, device) == offsetof(tensor_view, device));
static_assert(offsetof(moe64_tensor, extent) == offsetof(tensor_view, extent));
static_assert(offsetof(moe64_tensor, stride) == offsetof(tensor_view, stride));
static_assert(sizeof(moe64_tensor::extent) == sizeof(tensor_view::extent));
static_assert(sizeof(moe64_workspace) == sizeof(workspace));
static_assert(offsetof(moe64_workspace, bytes) == offsetof(workspace, bytes));
static_assert(offsetof(moe64_workspace, device) == offsetof(workspace, device));
static_assert(MOE64_PLAN_STATUS_COUNT == plan_status::count);
static_assert(MOE64_PLAN_FIRST_INVALID == plan_status::first_invalid);

}  // namespace

dtype to_cpp_dtype(moe64_dtype given, argument const& at) {
  static_assert(static_cast<int>(dtype::uint8) + 1 == dtype_count);
  return enumerator(given, dtype::uint8, at["dtype"]);
}

device to_cpp(moe64_device const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {enumerator(given.kind, device_kind::cuda, at["kind"]), 0, given.ordinal};
}

stream to_cpp(moe64_stream const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {to_cpp(given.device, at["device"]), given.handle};
}

tensor_view to_cpp(moe64_tensor const& given, argument const& at) {
  if (given.rank == 0) return {};
  if (given.rank > max_rank) {
    fail(errc::invalid_argument, "{}.rank is {}, not one of 0 to {}", at.text(), given.rank,
         max_rank);
  }
  require_zero(given.reserved, at);
  tensor_view tensor;
  tensor.data = given.data;
  tensor.type = to_cpp_dtype(given.dtype, at);
  tensor.rank = given.rank;
  tensor.device = to_cpp(given.device, at["device"]);
  for (int d = 0; d < given.rank; ++d) {
    tensor.extent[d] = given.extent[d];
    tensor.stride[d] = given.stride[d];
  }
  return tensor;
}

std::array<tensor_view, 2> to_cpp(moe64_tensor const (&given)[2], argument const& at) {
  return {to_cpp(given[0], at["0"]), to_cpp(given[1], at["1"])};
}

workspace to_cpp(moe64_workspace const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {given.data, given.bytes, to_cpp(given.device, at["device"])};
}

granularity to_cpp(moe64_granularity const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {enumerator(given.kind, scale_kind::group, at["kind"]), given.block_rows,
          given.block_cols};
}

global_scale to_cpp(moe64_global_scale const& given, argument const& at) {
  require_zero(given.reserved, at);
  using direction = global_scale::direction;
  return {to_cpp(given.values, at["values"]),
          enumerator(given.applied, direction::divide, at["applied"])};
}

expert_places to_cpp(moe64_expert_places const& given, argument const& at) {
  return {to_cpp(given.values, at["values"]), to_cpp(given.scales, at["scales"])};
}

quantized_view to_cpp(moe64_quantized const& given, argument const& at,
                      expert_places const& places) {
  tensor_view const values = to_cpp(given.values, at["values"]);
  tensor_view const scales = to_cpp(given.scales, at["scales"]);
  global_scale const global = to_cpp(given.global, at["global"]);
  granularity const layout = to_cpp(given.layout, at["layout"]);
  bool const has_scale =
      scales.present() || global.values.present() || layout.kind != scale_kind::none;
  if (has_scale && !values.present()) {
    fail(errc::invalid_argument,
         "{}.values are absent, but its scales or its layout ({}) are given", at.text(),
         to_string(layout));
  }
  if (has_scale) return quantized_view::scaled(values, scales, layout, global, places);
  return values.present() ? quantized_view::plain(values, places) : quantized_view{};
}

routing_plan to_cpp(moe64_routing_plan const& given, argument const& at) {
  routing_plan plan;
  plan.tokens = given.tokens;
  plan.top_k = given.top_k;
  plan.experts = given.experts;
  plan.expert_begin = to_cpp(given.expert_begin, at["expert_begin"]);
  plan.row_to_slot = to_cpp(given.row_to_slot, at["row_to_slot"]);
  plan.slot_to_row = to_cpp(given.slot_to_row, at["slot_to_row"]);
  plan.slot_weight = to_cpp(given.slot_weight, at["slot_weight"]);
  plan.status = to_cpp(given.status, at["status"]);
  return plan;
}

activation_spec to_cpp(moe64_activation_spec const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {enumerator(given.kind, last_activation, at["kind"]), given.alpha, given.limit};
}

moe64_tensor to_c(tensor_view const& given) noexcept {
  moe64_tensor tensor = {};
  tensor.data = given.data;
  tensor.dtype = static_cast<moe64_dtype>(given.type);
  tensor.rank = given.rank;
  tensor.device = {static_cast<moe64_device_kind>(given.device.kind), 0, given.device.ordinal};
  for (int d = 0; d < given.rank; ++d) {
    tensor.extent[d] = given.extent[d];
    tensor.stride[d] = given.stride[d];
  }
  return tensor;
}

moe64_quantized to_c(quantized_view const& given) noexcept {
  moe64_quantized quantized = {};
  quantized.values = to_c(given.values());
  quantized.scales = to_c(given.scales());
  quantized.global.values = to_c(given.global().values);
  quantized.global.applied = static_cast<moe64_scale_direction>(given.global().applied);
  quantized.layout.kind = static_cast<moe64_scale_kind>(given.layout().kind);
  quantized.layout.block_rows = given.layout().block_rows;
  quantized.layout.block_cols = given.layout().block_cols;
  return quantized;
}

moe64_routing_plan to_c(routing_plan const& given) noexcept {
  return {given.tokens,
          given.top_k,
          given.experts,
          to_c(given.expert_begin),
          to_c(given.row_to_slot),
          to_c(given.slot_to_row),
          to_c(given.slot_weight),
          to_c(given.status)};
}

}  // namespace moe64::capi
