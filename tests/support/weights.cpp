#include "support/weights.hpp"

#include "oracle/oracle.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moe64::test {
namespace {

/// A random code of the type that is finite.
std::uint64_t finite_code(random_source const& random, index_t i, dtype type) {
  std::uint64_t code = random.bits(i) & ((std::uint64_t{1} << bits(type)) - 1);
  while (!std::isfinite(oracle::load(&code, type, 0))) --code;
  return code;
}

void fill_values(test_tensor& values, content what, std::uint64_t seed) {
  if (what == content::integers) {
    values.fill_integers(seed, -4, 4);
    return;
  }
  if (is_float(values.view().type)) {
    values.fill_uniform(seed);
    return;
  }
  random_source const random(seed);
  tensor_view const& v = values.view();
  index_t n = 0;
  for (index_t e = 0; e < v.extent[0]; ++e) {
    for (index_t r = 0; r < v.extent[1]; ++r) {
      for (index_t c = 0; c < v.extent[2]; ++c) {
        values.set_code(finite_code(random, n++, v.type), e, r, c);
      }
    }
  }
}

/// Scales that leave numbers of about 1.
void fill_scales(test_tensor& scales, dtype code, content what, std::uint64_t seed) {
  random_source const random(seed);
  double const reach = code == dtype::e4m3   ? 448.0
                       : code == dtype::e5m2 ? 57344.0
                       : code == dtype::int8 ? 127.0
                                             : 7.0;
  index_t n = 0;
  scales.fill([&](index_t, index_t, index_t) {
    if (what == content::integers) return std::ldexp(1.0, static_cast<int>(random.below(n++, 3)));
    // e4m3 itself reaches down to 2^-9.
    return random.uniform(n++, 0.25, 2.0) /
           (scales.view().type == dtype::e4m3 ? std::min(reach, 64.0) : reach);
  });
}

quantized_view part_of(test_weights const& w, weight_spec const& spec, int parts, int part) {
  auto const i = static_cast<std::size_t>(part);
  tensor_view const values = spec.in_first ? w.values.view().transposed() : w.values.view();
  tensor_view const mine = parts == 1 ? values : split_gate_up(values, spec.layout)[i];
  if (spec.scale.kind == scale_kind::none) return quantized_view::plain(mine);
  // Row scales lie beside their rows; block grids of gate and up follow each other.
  gate_up_layout const order =
      spec.scale.kind == scale_kind::row ? spec.layout : gate_up_layout::concatenated;
  tensor_view const scales =
      parts == 1 ? w.scales.view() : split_gate_up(w.scales.view(), order)[i];
  return quantized_view::scaled(mine, scales, spec.scale, {w.global[i], spec.global});
}

}  // namespace

std::string to_string(weight_spec const& spec) {
  std::string text(name(spec.type));
  text += "_" + to_string(spec.scale) + "_" + std::string(name(spec.scale_type));
  if (spec.has_global() && spec.global == global_scale::direction::divide) text += "_divide";
  if (spec.layout == gate_up_layout::interleaved) text += "_interleaved";
  if (spec.in_first) text += "_in_first";
  for (char& c : text) c = c == ':' ? '_' : c;
  return text;
}

test_weights make_weights(weight_spec const& spec, index_t experts, int parts, index_t part_rows,
                          index_t cols, content what, std::uint64_t seed) {
  test_weights w;
  index_t const rows = parts * part_rows;
  w.values = spec.in_first ? test_tensor(spec.type, {experts, cols, rows})
                           : test_tensor(spec.type, {experts, rows, cols});
  fill_values(w.values, what, 2 * seed);
  if (spec.scale.kind != scale_kind::none) {
    w.scales = test_tensor(spec.scale_type, {experts, parts * spec.scale.grid_rows(part_rows),
                                             spec.scale.grid_cols(cols)});
    fill_scales(w.scales, spec.type, what, 2 * seed + 1);
  }
  for (int part = 0; spec.has_global() && part < parts; ++part) {
    w.global[part] = test_tensor(dtype::f32, {experts});
    w.global[part].fill([&](index_t e, index_t, index_t) {
      if (what == content::random) return 0.3 + 0.1 * static_cast<double>(e + part);
      return spec.global == global_scale::direction::multiply ? 2.0 : 0.5;
    });
  }
  w.stack = parts == 1 ? weight_stack::single(part_of(w, spec, 1, 0))
                       : weight_stack::gate_up(part_of(w, spec, 2, 0), part_of(w, spec, 2, 1));
  return w;
}

void test_weights::poison_expert(index_t expert) {
  test_tensor& target = stack.is_plain() ? values : scales;
  tensor_view const& v = target.view();
  for (index_t r = 0; r < v.extent[1]; ++r) {
    for (index_t c = 0; c < v.extent[2]; ++c) {
      target.set(std::numeric_limits<double>::quiet_NaN(), expert, r, c);
    }
  }
}

std::vector<double> test_weights::numbers(dtype as) const {
  std::vector<double> result;
  for (index_t e = 0; e < stack.experts(); ++e) {
    for (index_t r = 0; r < stack.rows(); ++r) {
      for (index_t c = 0; c < stack.cols(); ++c) {
        result.push_back(oracle::round_to(oracle::at(stack, e, r, c), as));
      }
    }
  }
  return result;
}

std::vector<weight_spec> every_weight_format() {
  using g = granularity;
  constexpr auto divide = global_scale::direction::divide;
  std::vector<weight_spec> result = {{dtype::f32}, {dtype::bf16}, {dtype::f16}};
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8}) {
    for (g const scale : {g::tensor(), g::row(), g::block(128, 128), g::block(3, 5), g::block(1, 1),
                          g::group(32), g::group(128)}) {
      result.push_back({type, scale});
    }
    for (dtype const scale : {dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3}) {
      result.push_back({type, g::block(64, 32), scale});
    }
  }
  result.push_back({dtype::int4, g::group(32)});
  result.push_back({dtype::int4, g::group(7), dtype::f16});
  result.push_back({dtype::int4, g::row(), dtype::bf16});
  result.push_back({dtype::fp4, g::group(32), dtype::e8m0});
  result.push_back({dtype::fp4, g::group(16), dtype::e4m3});
  result.push_back({dtype::fp4, g::group(16), dtype::e4m3, divide});
  result.push_back({dtype::fp4, g::block(3, 5), dtype::f32});
  return result;
}

}  // namespace moe64::test
