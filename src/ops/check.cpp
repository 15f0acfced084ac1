#include "ops/check.hpp"

#include "core/fail.hpp"
#include "core/view.hpp"
#include "ops/overlap.hpp"

#include <algorithm>
#include <cstdint>

namespace moe64 {
void checker::shape(std::string_view argument, tensor_view const& tensor,
                    std::initializer_list<index_t> extents) const {
  std::string expected;
  for (index_t const extent : extents) {
    expected += expected.empty() ? "" : ", ";
    expected += extent == any_extent ? std::string("any") : std::to_string(extent);
  }
  if (!tensor.present()) {
    fail(errc::invalid_argument, "[{}] {} is absent, expected [{}]", operation_, argument,
         expected);
  }
  bool matches = static_cast<std::size_t>(tensor.rank) == extents.size();
  int d = 0;
  for (index_t const extent : extents) {
    matches = matches && (extent == any_extent || tensor.extent[d] == extent);
    ++d;
  }
  if (!matches) {
    fail(errc::shape_mismatch, "[{}] {} is {}, expected [{}]", operation_, argument,
         to_string(tensor), expected);
  }
  if (!(tensor.device == device_)) {
    fail(errc::device_mismatch, "[{}] {} is on {}, the stream on {}", operation_, argument,
         to_string(tensor.device), to_string(device_));
  }
  for (d = 0; d < tensor.rank; ++d) {
    if (tensor.extent[d] < 0 || tensor.stride[d] < 0) {
      fail(errc::invalid_argument, "[{}] {} is {}: negative extent or stride", operation_, argument,
           to_string(tensor));
    }
  }
  index_t const needed = tensor.span_bytes();
  if (needed > 0 && tensor.data == nullptr) {
    fail(errc::invalid_argument, "[{}] {} is {} but its data is null", operation_, argument,
         to_string(tensor));
  }
  index_t const size = bits(tensor.type) / 8;
  if (size > 1 && needed > 0 &&
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(size) != 0) {
    fail(errc::invalid_argument, "[{}] {} at {} is not aligned to its {} bytes", operation_,
         argument, tensor.data, size);
  }
}

void checker::type(std::string_view argument, tensor_view const& tensor,
                   std::initializer_list<dtype> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), tensor.type) != allowed.end()) return;
  std::string expected;
  for (dtype const type : allowed) expected += fmt::format(" {}", name(type));
  fail(errc::dtype_mismatch, "[{}] {} is {}, expected one of{}", operation_, argument,
       name(tensor.type), expected);
}

void checker::number(std::string_view argument, tensor_view const& tensor) const {
  type(argument, tensor, {dtype::f32, dtype::bf16, dtype::f16});
}

void checker::number(std::string_view argument, tensor_view const& tensor,
                     std::initializer_list<index_t> extents) const {
  shape(argument, tensor, extents);
  number(argument, tensor);
}

void checker::equal(std::string_view left_name, index_t left, std::string_view right_name,
                    index_t right) const {
  if (left != right) {
    fail(errc::shape_mismatch, "[{}] {} ({}) differs from {} ({})", operation_, left_name, left,
         right_name, right);
  }
}

void checker::at_least(std::string_view name, index_t value, index_t low) const {
  if (value < low) {
    fail(errc::invalid_argument, "[{}] {} is {}, expected at least {}", operation_, name, value,
         low);
  }
}

void checker::require(bool condition, std::string const& message) const {
  if (!condition) fail(errc::invalid_argument, "[{}] {}", operation_, message);
}

void checker::no_self_overlap(std::string_view argument, tensor_view const& tensor) const {
  if (overlaps_itself(tensor)) {
    fail(errc::invalid_argument, "[{}] elements of output {} share memory: {}", operation_,
         argument, to_string(tensor));
  }
}

void checker::no_overlap(std::string_view output_name, tensor_view const& output,
                         std::string_view input_name, tensor_view const& input) const {
  if (!output.present() || !input.present() || !overlaps(output, input)) return;
  fail(errc::invalid_argument, "[{}] output {} at {} overlaps {} at {}", operation_, output_name,
       output.data, input_name, input.data);
}

void checker::no_overlap(std::string_view output_name, tensor_view const& output,
                         std::string_view input_name, tensor_view const& stack,
                         tensor_view const& places) const {
  if (!places.present()) return no_overlap(output_name, output, input_name, stack);
  no_overlap(output_name, output, std::string(input_name) + " places", places);
  if (device_.kind != device_kind::cpu) return;
  auto const place = as<std::int64_t, 1>(places);
  for (index_t e = 0; e < places.extent[0]; ++e) {
    no_overlap(output_name, output, input_name, stack.slice(0, place(e), place(e) + 1));
  }
}

void checker::no_overlap(std::string_view output_name, tensor_view const& output,
                         routing_plan const& plan) const {
  for (tensor_view const* array : {&plan.expert_begin, &plan.row_to_slot, &plan.slot_to_row,
                                   &plan.slot_weight, &plan.status}) {
    no_overlap(output_name, output, "the plan", *array);
  }
}

void checker::quantized(std::string_view argument, quantized_view const& q) const {
  std::string const label(argument);
  shape(label, q.values(), {any_extent, any_extent, any_extent});
  places(label + " places", q.places().values, q.values());
  if (q.is_plain()) return;
  shape(label + " scales", q.scales(), {any_extent, any_extent, any_extent});
  places(label + " scale places", q.places().scales, q.scales());
  if (q.global().values.present()) shape(label + " global scale", q.global().values, {any_extent});
}

void checker::places(std::string_view argument, tensor_view const& table,
                     tensor_view const& stack) const {
  if (!table.present()) return;
  shape(argument, table, {any_extent});
  type(argument, table, {dtype::int64});
  if (device_.kind != device_kind::cpu) return;  // kernels look there
  auto const place = as<std::int64_t, 1>(table);
  for (index_t e = 0; e < table.extent[0]; ++e) {
    if (place(e) >= 0 && place(e) < stack.extent[0]) continue;
    fail(errc::invalid_argument, "[{}] {} of expert {} is {}: {} has places 0 to {}", operation_,
         argument, e, place(e), to_string(stack), stack.extent[0] - 1);
  }
}

void checker::in_order(std::string_view argument, quantized_view const& q) const {
  if (!q.places().present()) return;
  fail(errc::unsupported, "[{}] {} {} has a table of places: only weights of experts can have one",
       operation_, argument, to_string(q.values()));
}

void checker::quantized_rows(std::string_view argument, tensor_view const& codes,
                             tensor_view const& scales, granularity const& layout) const {
  require(layout.kind == scale_kind::row || layout.kind == scale_kind::group,
          fmt::format("{} can be quantised with scale row or group, not {}", argument,
                      to_string(layout)));
  if (codes.type == dtype::fp4 && scales.type == dtype::e4m3) {
    fail(errc::unsupported,
         "[{}] {} is {} with e4m3 scales, whose global scale needs all rows first: quantize does "
         "that",
         operation_, argument, name(codes.type));
  }
  quantized(argument, quantized_view::scaled(codes, scales, layout));
}

void checker::weights(std::string_view argument, weight_stack const& stack) const {
  if (!stack.present()) {
    fail(errc::invalid_argument, "[{}] {} are absent", operation_, argument);
  }
  for (int part = 0; part < stack.parts(); ++part) quantized(argument, stack.part(part));
}

void checker::plan(routing_plan const& plan) const {
  at_least("tokens of plan", plan.tokens, 0);
  at_least("top_k of plan", plan.top_k, 0);
  at_least("experts of plan", plan.experts, 0);
  index_t const slots = checked_mul(plan.tokens, plan.top_k);
  shape("plan.expert_begin", plan.expert_begin, {checked_add(plan.experts, 1)});
  type("plan.expert_begin", plan.expert_begin, {dtype::int64});
  shape("plan.row_to_slot", plan.row_to_slot, {slots});
  type("plan.row_to_slot", plan.row_to_slot, {dtype::int64});
  shape("plan.slot_to_row", plan.slot_to_row, {slots});
  type("plan.slot_to_row", plan.slot_to_row, {dtype::int64});
  shape("plan.slot_weight", plan.slot_weight, {slots});
  type("plan.slot_weight", plan.slot_weight, {dtype::f32});
  shape("plan.status", plan.status, {plan_status::count});
  type("plan.status", plan.status, {dtype::int64});
}

void checker::live_rows(tensor_view const& live_rows) const {
  if (!live_rows.present()) return;
  shape("live_rows", live_rows, {1});
  type("live_rows", live_rows, {dtype::int64});
}

}  // namespace moe64
