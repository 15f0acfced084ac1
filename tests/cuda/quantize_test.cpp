// quantize and dequantize on a CUDA device: widths that the kernels by vec16 and vec8 take, and
// almost take. target() compares every call with the CPU, bit for bit.
#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
using test::test_tensor;

constexpr dtype float_types[] = {dtype::f32, dtype::bf16, dtype::f16};
constexpr dtype codes[] = {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4};
std::vector<std::vector<index_t>> const shapes{{1, 1, 16},     {1, 9, 7168}, {1, 130, 384},
                                               {3, 70, 272},   {1, 3, 2880}, {2, 33, 1048},
                                               {1, 300, 1040}, {5, 1, 24}};

/// Ordinary numbers with zeros among them; in some rows very small or very large ones, in some NaN
/// or infinity.
void fill(test_tensor& x, std::uint64_t seed) {
  random_source const random(seed);
  index_t n = 0;
  x.fill([&](index_t, index_t row, index_t col) {
    n += 3;
    double const size = row % 7 == 3 ? 0x1p-130 : row % 7 == 5 ? 0x1p100 : 1.0;
    if (row % 11 == 6 && col == 5) return std::numeric_limits<double>::quiet_NaN();
    if (row % 13 == 7 && col == 9) return -std::numeric_limits<double>::infinity();
    if (random.chance(n, 0.1)) return random.chance(n + 1, 0.5) ? 0.0 : -0.0;
    return size * std::ldexp(random.uniform(n + 1), static_cast<int>(random.between(n + 2, -5, 5)));
  });
}

struct quantized {
  test_tensor values, scales, global;
  quantized(dtype code, dtype scale, g const& layout, std::vector<index_t> const& extents)
      : values(code, extents),
        scales(scale, {extents[0], layout.grid_rows(extents[1]), layout.grid_cols(extents[2])}) {
    if (code == dtype::fp4 && scale == dtype::e4m3) global = test_tensor(dtype::f32, {extents[0]});
  }
};

TEST(cuda_quantize, widths_of_every_format_there_and_back) {
  for (std::vector<index_t> const& extents : shapes) {
    for (dtype const type : float_types) {
      test_tensor x(type, extents);
      fill(x, 7);
      for (dtype const code : codes) {
        for (g const& layout : {g::tensor(), g::row(), g::block(128, 128), g::block(32, 64),
                                g::group(16), g::group(128), g::group(512), g::group(24)}) {
          for (dtype const scale : {dtype::f32, dtype::e8m0, dtype::e4m3}) {
            SCOPED_TRACE(to_string(x.view()) + " " + std::string(name(code)) + " " +
                         std::string(name(scale)) + " " + to_string(layout));
            quantized const out(code, scale, layout, extents);
            quantize_args const args{x, layout, out.values, out.scales, {out.global}, {}};
            for_each_implementation(args,
                                    [](quantize_args const& call) { quantize(call, target()); });
            test_tensor const back(type, extents);
            auto const view = quantized_view::scaled(out.values, out.scales, layout, {out.global});
            for_each_implementation(dequantize_args{view, back}, [](dequantize_args const& call) {
              dequantize(call, target());
            });
          }
        }
      }
    }
  }
}

TEST(cuda_quantize, every_code_with_scales_of_every_size) {
  random_source const random(4);
  for (dtype const code : codes) {
    test_tensor values(code, {256, 528});
    index_t n = 0;
    for (index_t r = 0; r < 256; ++r) {
      for (index_t c = 0; c < 528; ++c) values.set_code(random.bits(++n) & 0xff, r, c);
    }
    for (g const& layout : {g::row(), g::block(128, 128), g::group(16)}) {
      test_tensor scales(dtype::f32, {layout.grid_rows(256), layout.grid_cols(528)});
      scales.fill([&](index_t i, index_t j, index_t) {
        index_t const at = 1000 * i + 2 * j;
        return std::ldexp(random.uniform(at, 0.5, 1.0),
                          static_cast<int>(random.between(at + 1, -148, 127)));
      });
      for (dtype const type : float_types) {
        SCOPED_TRACE(std::string(name(code)) + " " + to_string(layout));
        test_tensor const out(type, {256, 528});
        for_each_implementation(
            dequantize_args{quantized_view::scaled(values, scales, layout), out},
            [](dequantize_args const& call) { dequantize(call, target()); });
      }
    }
  }
}

/// Quotients of short numbers are not divided: a row for every largest number, which holds every
/// number that is smaller by up to 2^-20, of both signs.
TEST(cuda_quantize, every_short_quotient) {
  struct short_type {
    dtype type;
    int significands, step, binades;
  };
  for (short_type const& of : {short_type{dtype::bf16, 128, 1, 21}, {dtype::f16, 1024, 32, 15}}) {
    index_t const rows = of.significands / of.step, cols = index_t{of.significands} * of.binades;
    test_tensor x(of.type, {1, rows, cols});
    x.fill([&](index_t, index_t row, index_t col) {
      double const largest = 1.0 + static_cast<double>(row * of.step) / of.significands;
      if (col == 0) return largest;
      double const significand = 1.0 + static_cast<double>(col % of.significands) / of.significands;
      double const number = std::ldexp(significand, -static_cast<int>(col / of.significands));
      return (col % 3 == 0 ? -1.0 : 1.0) * (number > largest ? largest : number);
    });
    for (dtype const code : {dtype::e4m3, dtype::e5m2}) {
      for (dtype const scale : {dtype::f32, dtype::bf16, dtype::f16}) {
        SCOPED_TRACE(to_string(x.view()) + " " + std::string(name(code)) + " " +
                     std::string(name(scale)));
        test_tensor const values(code, {1, rows, cols}), scales(scale, {1, rows, 1});
        quantize(quantize_args{x, g::row(), values, scales, {}, {}}, target());
      }
    }
  }
}

/// The implementation that runs: the first that takes the call.
std::string chosen(std::vector<implementation_report> const& found) {
  auto const takes = [](implementation_report const& one) { return bool(one.answer); };
  return std::find_if(found.begin(), found.end(), takes)->name;
}

TEST(cuda_quantize, what_people_run_is_fast) {
  test_tensor const x(dtype::bf16, {256, 7168}), values(dtype::e4m3, {256, 7168});
  test_tensor const out(dtype::bf16, {256, 7168});
  for (g const& layout : {g::row(), g::group(128), g::block(128, 128)}) {
    test_tensor const scales(dtype::f32, {layout.grid_rows(256), layout.grid_cols(7168)});
    EXPECT_EQ(chosen(explain(quantize_args{x, layout, values, scales}, target())),
              layout.kind == scale_kind::group ? "fp8_row_major" : "blocks");
    EXPECT_EQ(chosen(explain(dequantize_args{quantized_view::scaled(values, scales, layout), out},
                             target())),
              "vectors");
  }
}

}  // namespace
}  // namespace moe64
