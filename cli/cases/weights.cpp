#include "cases/weights.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace moe64::cases {
namespace {

constexpr index_t largest_poisoned = index_t{256} << 20;  // bytes of one tensor

/// Deviation of the codes that leaves few of them clipped.
double code_deviation(dtype type) {
  switch (type) {
    case dtype::e4m3:
      return 100.0;
    case dtype::e5m2:
      return 13000.0;
    case dtype::int8:
      return 30.0;
    case dtype::int4:
      return 2.5;
    case dtype::fp4:
      return 2.0;
    default:
      return 1.0;
  }
}

/// The smallest middle of scales that keeps half of it a normal number of the type.
double smallest_scale(dtype type) {
  if (type == dtype::e4m3) return 0x1p-5;
  return type == dtype::f16 ? 0x1p-13 : 0.0;
}

/// Codes, scales and the global scale, whose product has the wanted deviation.
struct magnitudes {
  double codes, scales, global;
};

magnitudes share_out(dtype codes, dtype scales, double wanted) {
  constexpr double scale_rms = 1.16;  // of numbers spread from half to twice, in the logarithm
  wanted /= scale_rms;
  double const deviation = code_deviation(codes);
  if (codes == dtype::fp4 && scales == dtype::e4m3)
    return {deviation, 32.0, wanted / deviation / 32.0};
  double scale = std::max(wanted / deviation, smallest_scale(scales));
  if (scales == dtype::e8m0) scale = std::exp2(std::round(std::log2(scale)));
  return {wanted / scale, scale, 1.0};
}

}  // namespace

weight_builder::weight_builder(arena& memory, problem const& p, data_mode data,
                               cpu_executor* executor, std::vector<index_t> used)
    : memory_(memory), p_(p), data_(data), executor_(executor), used_(std::move(used)) {}

tensor_view weight_builder::filled(std::string const& name, tensor_id id,
                                   number_source const& source, dtype type, index_t rows,
                                   index_t cols) {
  auto const shape = [&](void* data) {
    return cols > 0
               ? tensor_view::contiguous(data, type, {p_.experts, rows, cols}, memory_.device())
               : tensor_view::contiguous(data, type, {p_.experts, rows}, memory_.device());
  };
  index_t const bytes = shape(nullptr).span_bytes();
  index_t const in_use = bytes / p_.experts * std::ssize(used_);
  bool const poisons = bytes <= largest_poisoned;
  tensor_view const tensor =
      shape(memory_.allocate(name, purpose::input, bytes, poisons ? bytes : in_use));
  if (poisons) poison(tensor, 0, p_.experts);
  index_t const filled = poisons ? p_.experts : memory_.entries_to_fill(tensor);
  if (filled < p_.experts) {
    source.fill(tensor, p_.seed, id, 0, filled, executor_);
  } else {
    for (index_t const e : used_) source.fill(tensor, p_.seed, id, e, e + 1, executor_);
  }
  bytes_in_use_ += static_cast<double>(in_use);
  return tensor;
}

std::array<quantized_view, 2> weight_builder::parts_of(std::string const& name, tensor_id id,
                                                       int parts, index_t rows, index_t cols) {
  dtype const type = value_type(p_.weight);
  bool const exact = data_ == data_mode::exact;
  double const wanted = 1.0 / std::sqrt(static_cast<double>(cols));
  double const longest = static_cast<double>(std::max(cols, parts * rows));
  bool const plain = !is_quantized(type);
  magnitudes const size =
      plain ? magnitudes{wanted, 1.0, 1.0} : share_out(type, p_.scale_dtype, wanted);

  auto const halves = [&](tensor_view const& fused, gate_up_layout layout) {
    return parts == 2 ? split_gate_up(fused, layout) : std::array<tensor_view, 2>{fused, {}};
  };
  auto const codes = exact ? number_source::sparse_signs(type, std::min(1.0, 4.0 / longest))
                           : number_source::normal(type, size.codes);
  auto const values =
      halves(filled(name, id, codes, type, checked_mul(parts, rows), cols), p_.layout);
  std::array<quantized_view, 2> result;
  if (plain) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i) {
      result[i] = quantized_view::plain(values[i]);
    }
    return result;
  }

  // A scale per row or along rows lies next to its row; blocks of rows belong to one half.
  bool const by_row = p_.scale.kind == scale_kind::row || p_.scale.kind == scale_kind::group;
  auto const scale_source =
      exact ? number_source::one_of(p_.scale_dtype, {0.5, 1.0, 2.0})
            : number_source::spread(p_.scale_dtype, 0.5 * size.scales, 2.0 * size.scales);
  auto const scales =
      halves(filled(name + ".scales", id + 1, scale_source, p_.scale_dtype,
                    checked_mul(parts, p_.scale.grid_rows(rows)), p_.scale.grid_cols(cols)),
             by_row ? p_.layout : gate_up_layout::concatenated);
  for (int i = 0; i < parts; ++i) {
    global_scale global;
    if (p_.weight == weight_format::nvfp4) {
      bool const divides = id == tensor_id::down;
      double const factor = exact ? 2.0 : divides ? 1.0 / size.global : size.global;
      auto const source = exact ? number_source::one_of(dtype::f32, {factor})
                                : number_source::spread(dtype::f32, 0.8 * factor, 1.25 * factor);
      global.applied =
          divides ? global_scale::direction::divide : global_scale::direction::multiply;
      global.values = memory_.tensor(name + ".global", purpose::input, dtype::f32, {p_.experts});
      poison(global.values, 0, p_.experts);
      for (index_t const e : used_) {
        source.fill(global.values, p_.seed, id + 2 + i, e, e + 1, nullptr);
      }
    }
    auto const part = static_cast<std::size_t>(i);
    result[part] = quantized_view::scaled(values[part], scales[part], p_.scale, global);
  }
  return result;
}

weight_stack weight_builder::stack(std::string const& name, tensor_id id, int parts, index_t rows,
                                   index_t cols) {
  auto const part = parts_of(name, id, parts, rows, cols);
  return parts == 2 ? weight_stack::gate_up(part[0], part[1]) : weight_stack::single(part[0]);
}

weight_stack experts_of(weight_stack const& stack, index_t begin, index_t end) {
  auto const some = [&](quantized_view const& q) {
    tensor_view const values = q.values().slice(0, begin, end);
    if (q.is_plain()) return quantized_view::plain(values);
    global_scale global = q.global();
    if (global.values.present()) global.values = global.values.slice(0, begin, end);
    return quantized_view::scaled(values, q.scales().slice(0, begin, end), q.layout(), global);
  };
  return stack.parts() == 2 ? weight_stack::gate_up(some(stack.part(0)), some(stack.part(1)))
                            : weight_stack::single(some(stack.part(0)));
}

quantized_view weight_builder::matrix(std::string const& name, tensor_id id, index_t rows,
                                      index_t cols) {
  return parts_of(name, id, 1, rows, cols)[0];
}

std::array<tensor_view, 2> weight_builder::bias(std::string const& name, tensor_id id, int parts,
                                                index_t rows) {
  auto const source = data_ == data_mode::exact
                          ? number_source::one_of(p_.io, {-2.0, -1.0, 0.0, 1.0, 2.0})
                          : number_source::normal(p_.io, 0.25);
  tensor_view const fused = filled(name, id + 4, source, p_.io, checked_mul(parts, rows), 0);
  return parts == 2 ? split_gate_up(fused, p_.layout) : std::array<tensor_view, 2>{fused, {}};
}

lora_adapter weight_builder::lora(std::string const& name, tensor_id id, int parts, index_t rows,
                                  index_t cols) {
  auto const source = [&](index_t fan_in) {
    double const in = static_cast<double>(fan_in);
    return data_ == data_mode::exact ? number_source::sparse_signs(p_.io, std::min(1.0, 4.0 / in))
                                     : number_source::normal(p_.io, 1.0 / std::sqrt(in));
  };
  lora_adapter adapter;
  adapter.scaling = 0.5F;
  adapter.a = weight_stack::single(
      quantized_view::plain(filled(name + ".lora_a", id + 5, source(cols), p_.io, p_.lora, cols)));
  tensor_view const b =
      filled(name + ".lora_b", id + 6, source(p_.lora), p_.io, checked_mul(parts, rows), p_.lora);
  if (parts == 1) {
    adapter.b = weight_stack::single(quantized_view::plain(b));
  } else {
    auto const half = split_gate_up(b, p_.layout);
    adapter.b =
        weight_stack::gate_up(quantized_view::plain(half[0]), quantized_view::plain(half[1]));
  }
  return adapter;
}

}  // namespace moe64::cases
