#include "ops/check.hpp"

#include "core/fail.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace moe64 {
namespace {

struct byte_range {
  std::uintptr_t begin, end;
};

byte_range range_of(tensor_view const& tensor) {
  auto const begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  return {begin, begin + static_cast<std::uintptr_t>(tensor.span_bytes())};
}

/// Two column ranges of the same rows: their byte ranges interleave without touching.
bool disjoint_columns(tensor_view const& left, tensor_view const& right) {
  if (left.rank != 2 || right.rank != 2 || bits(left.type) < 8 || bits(right.type) < 8)
    return false;
  index_t const left_size = bits(left.type) / 8;
  index_t const right_size = bits(right.type) / 8;
  index_t const pitch = left.stride[0] * left_size;
  if (pitch == 0 || pitch != right.stride[0] * right_size) return false;
  auto const width = [](tensor_view const& t, index_t size) {
    return ((t.extent[1] - 1) * t.stride[1] + 1) * size;
  };
  index_t const gap = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(right.data)) -
                      static_cast<index_t>(reinterpret_cast<std::uintptr_t>(left.data));
  index_t const shift = ((gap % pitch) + pitch) % pitch;
  return shift >= width(left, left_size) && shift + width(right, right_size) <= pitch;
}

/// Two strided column sets, such as interleaved gate and up, that never meet.
bool disjoint_phases(tensor_view const& left, tensor_view const& right) {
  if (left.type != right.type || left.rank != right.rank || bits(left.type) < 8) return false;
  index_t step = 0;
  for (int d = 0; d < left.rank; ++d) {
    if (left.stride[d] != right.stride[d]) return false;
    if (left.extent[d] > 1) step = step == 0 ? left.stride[d] : std::min(step, left.stride[d]);
  }
  if (step < 2) return false;
  for (int d = 0; d < left.rank; ++d) {
    if (left.extent[d] > 1 && left.stride[d] % step != 0) return false;
  }
  index_t const gap = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(right.data)) -
                      static_cast<index_t>(reinterpret_cast<std::uintptr_t>(left.data));
  index_t const size = bits(left.type) / 8;
  return gap % size == 0 && (gap / size) % step != 0;
}

}  // namespace

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
  int order[max_rank] = {0, 1, 2};  // dimensions by stride, smallest first
  for (int i = 1; i < tensor.rank; ++i) {
    for (int j = i; j > 0 && tensor.stride[order[j]] < tensor.stride[order[j - 1]]; --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  index_t reach = 0;  // furthest offset of the dimensions seen so far
  for (int i = 0; i < tensor.rank; ++i) {
    int const d = order[i];
    if (tensor.extent[d] <= 1) continue;
    if (tensor.stride[d] <= reach) {
      fail(errc::invalid_argument, "[{}] elements of output {} share memory: {}", operation_,
           argument, to_string(tensor));
    }
    reach = checked_add(reach, checked_mul(tensor.extent[d] - 1, tensor.stride[d]));
  }
}

void checker::no_overlap(std::string_view output_name, tensor_view const& output,
                         std::string_view input_name, tensor_view const& input) const {
  if (!output.present() || !input.present()) return;
  if (output.span() == 0 || input.span() == 0) return;
  byte_range const out = range_of(output);
  byte_range const in = range_of(input);
  if (out.end <= in.begin || in.end <= out.begin) return;
  if (disjoint_columns(output, input) || disjoint_columns(input, output) ||
      disjoint_phases(output, input)) {
    return;
  }
  fail(errc::invalid_argument, "[{}] output {} at {} overlaps {} at {}", operation_, output_name,
       output.data, input_name, input.data);
}

void checker::quantized(std::string_view argument, quantized_view const& q) const {
  std::string const label(argument);
  shape(label, q.values(), {any_extent, any_extent, any_extent});
  if (q.is_plain()) return;
  shape(label + " scales", q.scales(), {any_extent, any_extent, any_extent});
  if (q.global().values.present()) shape(label + " global scale", q.global().values, {any_extent});
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
