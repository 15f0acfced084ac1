#include "moe64/quant.hpp"

#include "core/fail.hpp"

#include <charconv>

namespace moe64 {
namespace {

std::optional<index_t> parse_positive(std::string_view text) {
  index_t value = 0;
  auto const [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

void check_layout(granularity const& layout) {
  bool const block = layout.kind == scale_kind::block;
  if ((block && layout.block_rows < 1) ||
      ((block || layout.kind == scale_kind::group) && layout.block_cols < 1)) {
    fail(errc::invalid_argument, "[quantized_view] scale {} has an empty block", to_string(layout));
  }
}

void check_values(tensor_view const& values) {
  if (values.rank != 3) {
    fail(errc::shape_mismatch, "[quantized_view] values {} are not [experts, rows, cols]",
         to_string(values));
  }
  for (int d = 0; d < 3; ++d) {
    if (values.extent[d] < 0 || values.stride[d] < 0) {
      fail(errc::invalid_argument, "[quantized_view] values {} have a negative extent or stride",
           to_string(values));
    }
  }
  if (bits(values.type) != 4) return;
  bool const packed_rows = values.stride[2] == 1 || values.extent[2] <= 1;
  if (!packed_rows || values.stride[1] % 2 != 0 || values.stride[0] % 2 != 0) {
    fail(errc::invalid_argument,
         "[quantized_view] values {} of a packed type need contiguous columns and rows that start "
         "at whole bytes",
         to_string(values));
  }
}

/// A table of places for the matrices of `stack`.
void check_table(char const* argument, tensor_view const& table, char const* of,
                 tensor_view const& stack) {
  if (!table.present()) return;
  if (table.type != dtype::int64) {
    fail(errc::dtype_mismatch, "[quantized_view] {} {} are not int64", argument, to_string(table));
  }
  if (table.rank != 1 || table.extent[0] < 0) {
    fail(errc::shape_mismatch, "[quantized_view] {} {} are not [experts]", argument,
         to_string(table));
  }
  if (table.stride[0] < 0) {
    fail(errc::invalid_argument, "[quantized_view] {} {} have a negative stride", argument,
         to_string(table));
  }
  if (!(table.device == stack.device)) {
    fail(errc::device_mismatch, "[quantized_view] {} are on {}, {} on {}", argument,
         to_string(table.device), of, to_string(stack.device));
  }
  if (table.extent[0] > 0 && stack.extent[0] == 0) {
    fail(errc::shape_mismatch, "[quantized_view] {} {} are places of {} {}, which have none",
         argument, to_string(table), of, to_string(stack));
  }
  static_cast<void>(table.span_bytes());
}

void check_places(tensor_view const& values, tensor_view const& scales,
                  expert_places const& places) {
  if (places.present() && values.rank != 3) {
    fail(errc::shape_mismatch,
         "[quantized_view] values {} with places are not [places, rows, cols]", to_string(values));
  }
  if (places.scales.present() && !scales.present()) {
    fail(errc::invalid_argument, "[quantized_view] there are places {} of scales, but no scales",
         to_string(places.scales));
  }
  check_table("places", places.values, "values", values);
  check_table("places of scales", places.scales, "scales", scales);
}

void check_scales(quantized_view const& q) {
  tensor_view const &values = q.values(), &scales = q.scales(), &table = q.places().scales;
  granularity const& layout = q.layout();
  if (!is_scale(scales.type)) {
    fail(errc::dtype_mismatch, "[quantized_view] scales {} are not f32, bf16, f16, e8m0 or e4m3",
         to_string(scales));
  }
  if (table.present() && table.extent[0] != q.experts()) {
    fail(errc::shape_mismatch, "[quantized_view] places of scales {} are not [{}]",
         to_string(table), q.experts());
  }
  index_t const expected[] = {table.present() ? scales.extent[0] : q.experts(),
                              layout.grid_rows(values.extent[1]),
                              layout.grid_cols(values.extent[2])};
  bool matches = scales.rank == 3;
  for (int d = 0; matches && d < 3; ++d) {
    matches = scales.extent[d] == expected[d];
  }
  if (!matches) {
    fail(errc::shape_mismatch,
         "[quantized_view] scales {} do not match values {}: scale {} needs [{}, {}, {}]",
         to_string(scales), to_string(values), to_string(layout), expected[0], expected[1],
         expected[2]);
  }
  for (int d = 0; d < 3; ++d) {
    if (scales.stride[d] < 0) {
      fail(errc::invalid_argument, "[quantized_view] scales {} have a negative stride",
           to_string(scales));
    }
  }
  if (!(scales.device == values.device)) {
    fail(errc::device_mismatch, "[quantized_view] scales are on {}, values on {}",
         to_string(scales.device), to_string(values.device));
  }
}

void check_global(quantized_view const& q) {
  tensor_view const &values = q.values(), &scales = q.scales();
  global_scale const& global = q.global();
  bool const needed = values.type == dtype::fp4 && scales.type == dtype::e4m3;
  if (needed && !global.values.present()) {
    fail(errc::missing_scale,
         "[quantized_view] fp4 values {} with e4m3 scales need their global scale",
         to_string(values));
  }
  if (!global.values.present()) return;
  if (!needed) {
    fail(
        errc::invalid_argument,
        "[quantized_view] a global scale belongs to fp4 values with e4m3 scales, not to {} with {}",
        name(values.type), name(scales.type));
  }
  if (global.values.type != dtype::f32) {
    fail(errc::dtype_mismatch, "[quantized_view] global scale {} is not f32",
         to_string(global.values));
  }
  if (global.values.rank != 1 || global.values.extent[0] != q.experts() ||
      global.values.stride[0] < 0) {
    fail(errc::shape_mismatch, "[quantized_view] global scale {} is not [{}]",
         to_string(global.values), q.experts());
  }
  if (!(global.values.device == values.device)) {
    fail(errc::device_mismatch, "[quantized_view] global scale is on {}, values on {}",
         to_string(global.values.device), to_string(values.device));
  }
}

}  // namespace

std::string to_string(granularity const& layout) {
  switch (layout.kind) {
    case scale_kind::none:
      return "none";
    case scale_kind::tensor:
      return "tensor";
    case scale_kind::row:
      return "row";
    case scale_kind::block:
      return fmt::format("block:{}x{}", layout.block_rows, layout.block_cols);
    case scale_kind::group:
      return fmt::format("group:{}", layout.block_cols);
  }
  return "unknown";
}

std::optional<granularity> parse_granularity(std::string_view text) {
  if (text == "none") return granularity::none();
  if (text == "tensor") return granularity::tensor();
  if (text == "row") return granularity::row();
  if (text.starts_with("group:")) {
    auto const cols = parse_positive(text.substr(6));
    return cols ? std::optional(granularity::group(*cols)) : std::nullopt;
  }
  auto const cross = text.find('x');
  if (!text.starts_with("block:") || cross == std::string_view::npos) return std::nullopt;
  auto const rows = parse_positive(text.substr(6, cross - 6));
  auto const cols = parse_positive(text.substr(cross + 1));
  return rows && cols ? std::optional(granularity::block(*rows, *cols)) : std::nullopt;
}

quantized_view quantized_view::plain(tensor_view values, expert_places places) {
  if (is_quantized(values.type)) {
    fail(errc::missing_scale, "[quantized_view] {} values {} mean nothing without a scale",
         name(values.type), to_string(values));
  }
  if (!is_float(values.type)) {
    fail(errc::dtype_mismatch, "[quantized_view] values {} are not f32, bf16 or f16",
         to_string(values));
  }
  check_places(values, {}, places);
  quantized_view result;
  result.values_ = values.rank == 2 ? values.as_stack() : values;
  result.places_ = places;
  check_values(result.values_);
  static_cast<void>(result.values_.span_bytes());
  return result;
}

quantized_view quantized_view::scaled(tensor_view values, tensor_view scales, granularity layout,
                                      global_scale global, expert_places places) {
  if (!is_quantized(values.type)) {
    fail(errc::dtype_mismatch,
         "[quantized_view] values {} with a scale are not e4m3, e5m2, int8, int4 or fp4",
         to_string(values));
  }
  if (!scales.present() || layout.kind == scale_kind::none) {
    fail(errc::missing_scale, "[quantized_view] {} values {} have no scale (scales {}, scale {})",
         name(values.type), to_string(values), to_string(scales), to_string(layout));
  }
  check_layout(layout);
  check_places(values, scales, places);
  quantized_view result;
  result.values_ = values.rank == 2 ? values.as_stack() : values;
  result.scales_ = scales.rank == 2 && values.rank == 2 ? scales.as_stack() : scales;
  result.layout_ = layout;
  result.global_ = global;
  result.places_ = places;
  check_values(result.values_);
  check_scales(result);
  check_global(result);
  static_cast<void>(result.values_.span_bytes());
  static_cast<void>(result.scales_.span_bytes());
  return result;
}

std::string_view name(gate_up_layout layout) noexcept {
  return layout == gate_up_layout::concatenated ? "concatenated" : "interleaved";
}

per_part split_gate_up(tensor_view const& fused, gate_up_layout layout) {
  if (fused.rank < 2 || fused.extent[1] % 2 != 0) {
    fail(errc::shape_mismatch, "[split_gate_up] dimension 1 of {} has no two halves",
         to_string(fused));
  }
  index_t const half = fused.extent[1] / 2;
  if (layout == gate_up_layout::concatenated) {
    return {fused.slice(1, 0, half), fused.slice(1, half, 2 * half)};
  }
  return {fused.every(1, 0, 2), fused.every(1, 1, 2)};
}

weight_stack weight_stack::single(quantized_view matrix) {
  if (!matrix.present()) {
    fail(errc::invalid_argument, "[weight_stack] the matrix is absent");
  }
  weight_stack stack;
  stack.part_[0] = matrix;
  stack.parts_ = 1;
  return stack;
}

weight_stack weight_stack::gate_up(quantized_view gate, quantized_view up) {
  if (!gate.present() || !up.present()) {
    fail(errc::invalid_argument, "[weight_stack] {} is absent", gate.present() ? "up" : "gate");
  }
  if (gate.experts() != up.experts() || gate.rows() != up.rows() || gate.cols() != up.cols()) {
    fail(errc::shape_mismatch, "[weight_stack] gate {} of {} experts and up {} of {} differ",
         to_string(gate.values()), gate.experts(), to_string(up.values()), up.experts());
  }
  if (gate.type() != up.type() || gate.scales().type != up.scales().type) {
    fail(errc::dtype_mismatch, "[weight_stack] gate is {} with {} scales, up is {} with {} scales",
         name(gate.type()), name(gate.scales().type), name(up.type()), name(up.scales().type));
  }
  if (!(gate.layout() == up.layout())) {
    fail(errc::invalid_argument, "[weight_stack] gate has scale {}, up has scale {}",
         to_string(gate.layout()), to_string(up.layout()));
  }
  if (gate.global().applied != up.global().applied) {
    fail(errc::invalid_argument,
         "[weight_stack] the global scale of one of gate and up multiplies, that of the other "
         "divides (gate {}, up {})",
         fmt::underlying(gate.global().applied), fmt::underlying(up.global().applied));
  }
  if (!(gate.values().device == up.values().device)) {
    fail(errc::device_mismatch, "[weight_stack] gate is on {}, up on {}",
         to_string(gate.values().device), to_string(up.values().device));
  }
  static_cast<void>(checked_mul(2, gate.rows()));
  weight_stack stack;
  stack.part_[0] = gate;
  stack.part_[1] = up;
  stack.parts_ = 2;
  return stack;
}

}  // namespace moe64
