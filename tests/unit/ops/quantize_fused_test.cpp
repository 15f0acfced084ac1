// gather and activate that quantise on the way: the bits of the two operations, one after the
// other.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_plan;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};

struct format {
  dtype code, scale;
  g layout;
};

/// Every code, every scale and every granularity that a row may have, but not their product.
std::vector<format> formats() {
  std::vector<format> result;
  for (dtype const code : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    for (g const& layout : {g::row(), g::group(128), g::group(32), g::group(5)}) {
      result.push_back({code, dtype::f32, layout});
    }
  }
  for (dtype const scale : {dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3}) {
    result.push_back({dtype::e4m3, scale, g::group(32)});
    result.push_back({dtype::int4, scale, g::row()});
  }
  return result;
}

std::string to_string(format const& f) {
  return std::string(name(f.code)) + " " + std::string(name(f.scale)) + " " + to_string(f.layout);
}

/// Codes and scales of rows.
struct coded {
  test_tensor codes, scales;
  coded(format const& f, index_t rows, index_t cols)
      : codes(f.code, {rows, cols}), scales(f.scale, {rows, f.layout.grid_cols(cols)}) {}
};

void expect_same(coded const& found, coded const& wanted) {
  EXPECT_EQ(found.codes.bytes(), wanted.codes.bytes());
  EXPECT_EQ(found.scales.bytes(), wanted.scales.bytes());
}

/// Numbers of very different sizes, both zeros, a whole row of them, and some that are not finite.
void fill_varied(test_tensor& x, std::uint64_t seed) {
  random_source const random(seed);
  index_t const cols = x.view().extent[1];
  x.fill([&](index_t i, index_t j, index_t) {
    index_t const n = i * cols + j;
    if (i == 2 || random.chance(3 * n, 0.05)) return n % 2 == 0 ? 0.0 : -0.0;
    if (i == 4 && j == cols / 2) return nan;
    if (i == 5 && j == 1) return -infinity;
    return std::ldexp(random.uniform(3 * n + 1),
                      static_cast<int>(random.between(3 * n + 2, -6, 6)));
  });
}

test_plan plan_of(index_t tokens, index_t top_k) {
  return test::make_plan({.tokens = tokens,
                          .top_k = top_k,
                          .experts = 5,
                          .ids = test::random_ids(8, tokens * top_k, 5),
                          .weights = test::random_weights(9, tokens * top_k)});
}

TEST(gather_quantized, has_the_bits_of_gather_and_quantize) {
  test_plan const p = plan_of(11, 3);
  for (dtype const type : float_types) {
    for (index_t const hidden : {37, 272, 1040}) {
      test_tensor x(type, {11, hidden});
      fill_varied(x, 5);
      for (bool const weighted : {false, true}) {
        test_tensor const rows(type, {33, hidden});
        gather({.x = x, .plan = p.plan, .weighted = weighted, .rows = rows}, target());
        for (format const& f : formats()) {
          SCOPED_TRACE(to_string(f) + " of " + to_string(x.view()) + (weighted ? " weighted" : ""));
          coded const wanted(f, 33, hidden);
          quantize({rows, f.layout, wanted.codes, wanted.scales, {}, p.plan.live_rows()}, target());
          coded found(f, 33, hidden);
          gather_args const args{.x = x,
                                 .plan = p.plan,
                                 .weighted = weighted,
                                 .rows = found.codes,
                                 .row_scales = found.scales,
                                 .quantized = f.layout};
          for_each_implementation(args, [&](gather_args const& call) {
            found.codes.poison();
            found.scales.poison();
            gather(call, target());
            expect_same(found, wanted);
          });
        }
      }
    }
  }
}

TEST(gather_quantized, wrong_operands_are_refused) {
  test_plan const p = plan_of(4, 2);
  test_tensor x(dtype::bf16, {4, 32}), codes(dtype::e4m3, {8, 32}), scales(dtype::f32, {8, 1});
  x.fill_uniform(1);
  gather_args const good{
      .x = x, .plan = p.plan, .rows = codes, .row_scales = scales, .quantized = g::row()};
  gather(good, target());
  gather_args bad = good;
  bad.quantized = g::block(4, 8);
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::invalid_argument, "row or group", "block:4x8");
  bad = good;
  bad.quantized = g::group(16);
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::shape_mismatch, "scales");
  bad = good;
  bad.row_scales = {};
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::missing_scale, "no scale");
  test_tensor const plain(dtype::bf16, {8, 32});
  bad = good;
  bad.rows = plain;
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::dtype_mismatch, "bf16");
  test_tensor const quantized_x(dtype::e4m3, {4, 32}), x_scales(dtype::f32, {4, 1});
  bad = good;
  bad.x = quantized_x;
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::dtype_mismatch, "quantises", "e4m3");
  bad = good;
  bad.scales = x_scales;
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::invalid_argument, "makes its own");
  test_tensor const fp4(dtype::fp4, {8, 32}), small(dtype::e4m3, {8, 1});
  bad = good;
  bad.rows = fp4;
  bad.row_scales = small;
  EXPECT_MOE64_ERROR(gather(bad, target()), errc::unsupported, "global scale");
}

/// Whether an implementation of this name takes the call: not all compute the same function.
bool takes(activate_args const& args, std::string_view implementation) {
  for (implementation_report const& report : explain(args, target())) {
    if (report.name == implementation) return static_cast<bool>(report.answer);
  }
  return false;
}

TEST(activate_quantized, has_the_bits_of_activate_and_quantize) {
  test_tensor live(dtype::int64, {1});
  live.set(7.0, 0);
  for (dtype const type : float_types) {
    for (index_t const inter : {37, 272, 1040}) {
      test_tensor gate(type, {9, inter}), up(type, {9, inter});
      fill_varied(gate, 3);
      up.fill_uniform(4, -4.0, 4.0);
      for (activation const kind :
           {activation::silu_glu, activation::gelu_glu, activation::gelu_tanh_glu,
            activation::gptoss_glu, activation::clamped_silu_glu, activation::silu,
            activation::gelu, activation::relu2, activation::step_glu}) {
        tensor_view const second = is_gated(kind) ? up.view() : tensor_view{};
        for (format const& f : formats()) {
          SCOPED_TRACE(std::string(name(kind)) + " " + to_string(f) + " of " +
                       to_string(gate.view()));
          coded found(f, 9, inter);
          activate_args const args{.activation = {kind},
                                   .gate = gate,
                                   .up = second,
                                   .live_rows = live,
                                   .out = found.codes,
                                   .scales = found.scales,
                                   .quantized = f.layout};
          for_each_implementation(args, [&](activate_args const& call) {
            test_tensor const out(type, {9, inter});
            activate_args plain{
                .activation = {kind}, .gate = gate, .up = second, .live_rows = live, .out = out};
            plain.implementation = takes(plain, call.implementation) ? call.implementation : "";
            activate(plain, target());
            coded const wanted(f, 9, inter);
            quantize({out, f.layout, wanted.codes, wanted.scales, {}, live}, target());
            found.codes.poison();
            found.scales.poison();
            activate(call, target());
            expect_same(found, wanted);
          });
        }
      }
    }
  }
}

TEST(activate_quantized, wrong_operands_are_refused) {
  test_tensor gate(dtype::bf16, {4, 32}), out(dtype::bf16, {4, 32});
  gate.fill_uniform(1);
  test_tensor const codes(dtype::e4m3, {4, 32}), scales(dtype::f32, {4, 1});
  activate_args const good{.activation = {activation::silu},
                           .gate = gate,
                           .out = codes,
                           .scales = scales,
                           .quantized = g::row()};
  activate(good, target());
  activate_args bad = good;
  bad.quantized = {};
  EXPECT_MOE64_ERROR(activate(bad, target()), errc::dtype_mismatch, "out", "e4m3");
  bad.out = out;
  EXPECT_MOE64_ERROR(activate(bad, target()), errc::invalid_argument, "scales", "none");
  bad = good;
  bad.quantized = g::tensor();
  EXPECT_MOE64_ERROR(activate(bad, target()), errc::invalid_argument, "row or group", "tensor");
  bad = good;
  bad.out = out;
  EXPECT_MOE64_ERROR(activate(bad, target()), errc::dtype_mismatch, "bf16");
}

}  // namespace
}  // namespace moe64
