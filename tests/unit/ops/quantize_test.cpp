// quantize and dequantize, bit for bit against the oracle.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/error_matcher.hpp"
#include "support/implementations.hpp"
#include "support/random.hpp"
#include "support/weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::difference;
using test::for_each_implementation;
using test::random_source;
using test::target;
using test::test_tensor;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr auto multiply = global_scale::direction::multiply;
constexpr auto divide = global_scale::direction::divide;

struct format {
  dtype code, scale;
  g layout;
  global_scale::direction applied = multiply;

  [[nodiscard]] bool has_global() const { return code == dtype::fp4 && scale == dtype::e4m3; }
};

std::string to_string(format const& f) {
  return std::string(name(f.code)) + " " + std::string(name(f.scale)) + " " + to_string(f.layout) +
         (f.applied == divide ? " divide" : "");
}

/// Outputs of one quantize call.
struct quantized {
  test_tensor values, scales, global;

  quantized(format const& f, std::vector<index_t> const& extents) {
    std::vector<index_t> grid = extents;
    std::size_t const rank = extents.size();
    grid[rank - 2] = f.layout.grid_rows(extents[rank - 2]);
    grid[rank - 1] = f.layout.grid_cols(extents[rank - 1]);
    values = test_tensor(f.code, extents);
    scales = test_tensor(f.scale, grid);
    if (f.has_global()) global = test_tensor(dtype::f32, {rank == 3 ? extents[0] : 1});
  }
  [[nodiscard]] quantize_args args(format const& f, tensor_view const& x) const {
    return {x, f.layout, values, scales, {global, f.applied}, {}};
  }
  [[nodiscard]] quantized_view view(format const& f) const {
    return quantized_view::scaled(values, scales, f.layout, {global, f.applied});
  }
};

std::vector<std::uint64_t> codes_of(std::vector<double> const& numbers, dtype type) {
  std::vector<std::uint64_t> result;
  for (double const number : numbers) result.push_back(test::code_of(number, type));
  return result;
}

/// Where codes differ from those of numbers, in words.
std::string code_difference(test_tensor const& actual, std::vector<double> const& expected) {
  std::vector<std::uint64_t> const codes = actual.codes();
  std::vector<std::uint64_t> const wanted = codes_of(expected, actual.view().type);
  if (codes.size() != wanted.size()) return "lengths differ";
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] == wanted[i]) continue;
    return "[" + std::to_string(i) + "] code " + std::to_string(codes[i]) + " expected " +
           std::to_string(wanted[i]);
  }
  return "";
}

void expect_as_the_oracle(tensor_view const& x, format const& f) {
  SCOPED_TRACE(to_string(f) + " of " + to_string(x));
  oracle::quantized_matrix const expected =
      oracle::quantize(x, f.code, f.scale, f.layout, {{}, f.applied});
  quantized const out(f, {x.extent[0], x.extent[1]});
  for_each_implementation(out.args(f, x), [&](quantize_args const& args) {
    quantize(args, target());
    EXPECT_EQ(code_difference(out.values, expected.codes), "");
    EXPECT_EQ(difference(out.scales.numbers(), expected.scales), "");
    if (f.has_global()) {
      EXPECT_EQ(out.global.get(0), expected.global);
    }
  });
}

std::vector<format> every_format() {
  std::vector<format> result;
  for (dtype const code : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    for (dtype const scale : {dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3}) {
      for (g const& layout : {g::tensor(), g::row(), g::block(1, 1), g::block(3, 5),
                              g::block(128, 128), g::group(1), g::group(16), g::group(32)}) {
        result.push_back({code, scale, layout});
        if (result.back().has_global()) result.push_back({code, scale, layout, divide});
      }
    }
  }
  return result;
}

/// Numbers of very different sizes, a zero block or two, both zeros.
void fill_varied(test_tensor& x, std::uint64_t seed) {
  random_source const random(seed);
  index_t n = 0;
  x.fill([&](index_t i, index_t j, index_t) {
    ++n;
    if (i / 3 == 1 && j / 5 == 1) return n % 2 == 0 ? 0.0 : -0.0;
    return std::ldexp(random.uniform(2 * n), static_cast<int>(random.between(2 * n + 1, -6, 6)));
  });
}

class quantize_from : public testing::TestWithParam<dtype> {};

TEST_P(quantize_from, every_format_gives_the_oracles_bits) {
  test_tensor x(GetParam(), {19, 37});
  fill_varied(x, 3);
  for (format const& f : every_format()) expect_as_the_oracle(x, f);
}

TEST_P(quantize_from, strided_inputs) {
  test_tensor rows(GetParam(), {9, 21}, {50, 1});
  test_tensor columns(GetParam(), {9, 21}, {1, 11});
  test_tensor spread(GetParam(), {9, 21}, {64, 3});
  test_tensor repeated(GetParam(), {9, 21}, {0, 1});
  std::uint64_t seed = 11;
  for (test_tensor* x : {&rows, &columns, &spread, &repeated}) {
    fill_varied(*x, ++seed);
    for (dtype const code : {dtype::e4m3, dtype::int4}) {
      for (g const& layout : {g::row(), g::block(4, 6), g::tensor()}) {
        expect_as_the_oracle(*x, {code, dtype::f32, layout});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(types, quantize_from, testing::Values(dtype::f32, dtype::bf16, dtype::f16),
                         [](auto const& tested) { return std::string(name(tested.param)); });

TEST(quantize, magnitudes_at_both_ends_of_f32) {
  for (double const size : {1e-45, 3e-44, 1e-40, 1e-38, 1e-36, 1e-30, 1e-10, 1e10, 1e30, 1e36,
                            double{std::numeric_limits<float>::max()}}) {
    test_tensor x(dtype::f32, {5, 33});
    random_source const random(5);
    x.fill([&](index_t i, index_t j, index_t) {
      return i == 2 && j == 3 ? size : size * random.uniform(i * 33 + j);
    });
    for (format const& f : every_format()) {
      if (f.layout == g::block(128, 128)) continue;
      SCOPED_TRACE(size);
      expect_as_the_oracle(x, f);
    }
  }
}

TEST(quantize, a_zero_block_has_scale_one_and_exact_zeros) {
  test_tensor x(dtype::f32, {2, 64});
  x.fill([](index_t i, index_t j, index_t) { return i == 0 || j < 32 ? 0.0 : 3.0; });
  for (dtype const code : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    for (dtype const scale : {dtype::f32, dtype::e8m0, dtype::bf16, dtype::f16}) {
      format const f{code, scale, g::group(32)};
      quantized const out(f, {2, 64});
      quantize(out.args(f, x), target());
      for (index_t col = 0; col < 64; ++col) EXPECT_EQ(out.values.code(0, col), 0U);
      EXPECT_EQ(out.scales.get(0, 0), 1.0);
      EXPECT_EQ(out.scales.get(1, 0), 1.0);
      EXPECT_NE(out.scales.get(1, 1), 1.0);
    }
  }
}

TEST(quantize, a_block_with_nan_or_infinity_reads_back_as_nan_and_spoils_no_other) {
  for (double const bad : {nan, infinity, -infinity}) {
    test_tensor x(dtype::bf16, {6, 10});
    x.fill_integers(1, -9, 9).set(bad, 4, 7);
    for (format const& f : every_format()) {
      expect_as_the_oracle(x, f);
      quantized const out(f, {6, 10});
      quantize(out.args(f, x), target());
      quantized_view const q = out.view(f);
      for (index_t r = 0; r < 6; ++r) {
        for (index_t c = 0; c < 10; ++c) {
          bool const same_block =
              r / f.layout.rows_per_scale(6) == 4 / f.layout.rows_per_scale(6) &&
              c / f.layout.cols_per_scale(10) == 7 / f.layout.cols_per_scale(10);
          EXPECT_EQ(std::isnan(oracle::at(q, 0, r, c)), same_block)
              << to_string(f) << " " << r << "," << c;
        }
      }
    }
  }
}

TEST(quantize, nothing_saturates_with_power_of_two_scales) {
  test_tensor x(dtype::f32, {8, 32});
  fill_varied(x, 9);
  format const f{dtype::e4m3, dtype::e8m0, g::group(32)};
  quantized const out(f, {8, 32});
  quantize(out.args(f, x), target());
  for (index_t r = 0; r < 8; ++r) {
    for (index_t c = 0; c < 32; ++c) {
      // Half a step of e4m3 is 1/16 of the number, or half the smallest step.
      double const bound = std::fabs(x.get(r, c)) / 16.0 + out.scales.get(r, 0) * 0x1p-10;
      EXPECT_LE(std::fabs(oracle::at(out.view(f), 0, r, c) - x.get(r, c)), bound);
    }
  }
}

/// Every finite bf16 up to a largest one, whose mantissa decides the scale: each implementation
/// gives the codes of the reference. The largest ones are beyond what e4m3 scales can bring down:
/// their codes saturate.
TEST(quantize, every_bf16_under_scales_of_every_mantissa) {
  constexpr index_t rows = 16;
  for (index_t mantissa = 0; mantissa < 128; mantissa += 3) {
    double const largest =
        std::ldexp(128.0 + static_cast<double>(mantissa), mantissa % 2 == 0 ? -5 : 20);
    auto const count = static_cast<index_t>(test::code_of(largest, dtype::bf16)) + 1;
    test_tensor x(dtype::bf16, {rows, ceil_div(2 * count, rows)});
    for (index_t n = 0; n < rows * x.view().extent[1]; ++n) {
      index_t const code = std::min(n / 2, count - 1) | (n % 2 != 0 ? 0x8000 : 0);
      x.set_code(static_cast<std::uint64_t>(code), n % rows, n / rows);
    }
    for (format const& f : {format{dtype::e4m3, dtype::f32, g::tensor()},
                            format{dtype::e5m2, dtype::bf16, g::tensor()},
                            format{dtype::e4m3, dtype::e8m0, g::tensor()},
                            format{dtype::e4m3, dtype::e4m3, g::tensor()},
                            format{dtype::e5m2, dtype::e4m3, g::tensor()}}) {
      SCOPED_TRACE(to_string(f) + " largest " + std::to_string(largest));
      quantized const expected(f, {rows, x.view().extent[1]});
      quantize_args args = expected.args(f, x);
      args.implementation = "reference";
      quantize(args, target());
      quantized const out(f, {rows, x.view().extent[1]});
      for_each_implementation(out.args(f, x), [&](quantize_args const& call) {
        quantize(call, target());
        EXPECT_EQ(out.values.codes(), expected.values.codes());
      });
    }
  }
}

TEST(quantize, stacks_have_one_grid_per_expert) {
  test_tensor stack(dtype::bf16, {3, 7, 20});
  stack.fill_uniform(5).fill([&](index_t e, index_t r, index_t c) {
    return stack.get(e, r, c) * static_cast<double>(1 + 10 * e);
  });
  for (format const& f :
       {format{dtype::e4m3, dtype::f32, g::block(4, 6)}, format{dtype::int8, dtype::f16, g::row()},
        format{dtype::int4, dtype::bf16, g::group(7)},
        format{dtype::fp4, dtype::e4m3, g::group(16)},
        format{dtype::fp4, dtype::e4m3, g::group(16), divide},
        format{dtype::e5m2, dtype::e8m0, g::tensor()}}) {
    SCOPED_TRACE(to_string(f));
    quantized const out(f, {3, 7, 20});
    for_each_implementation(out.args(f, stack), [&](quantize_args const& args) {
      quantize(args, target());
      for (index_t e = 0; e < 3; ++e) {
        test_tensor matrix(dtype::bf16, {7, 20});
        matrix.fill([&](index_t r, index_t c, index_t) { return stack.get(e, r, c); });
        auto const expected = oracle::quantize(matrix, f.code, f.scale, f.layout, {{}, f.applied});
        index_t n = 0;
        for (index_t r = 0; r < 7; ++r) {
          for (index_t c = 0; c < 20; ++c, ++n) {
            ASSERT_EQ(out.values.code(e, r, c),
                      test::code_of(expected.codes[static_cast<std::size_t>(n)], f.code));
          }
        }
        EXPECT_EQ(out.scales.get(e, 0, 0), expected.scales[0]);
        if (f.has_global()) {
          EXPECT_EQ(out.global.get(e), expected.global);
        }
      }
    });
  }
}

TEST(quantize, strided_outputs_and_empty_inputs) {
  test_tensor x(dtype::f32, {4, 6});
  x.fill_uniform(2);
  test_tensor values(dtype::e4m3, {4, 6}, {2, 9});
  test_tensor scales(dtype::f32, {4, 3}, {1, 5});
  quantize({x, g::group(2), values, scales, {}, {}}, target());
  auto const expected = oracle::quantize(x, dtype::e4m3, dtype::f32, g::group(2));
  EXPECT_EQ(code_difference(values, expected.codes), "");
  EXPECT_EQ(scales.numbers(), expected.scales);
  for (auto const& [rows, cols] : {std::pair{0, 5}, std::pair{5, 0}, std::pair{0, 0}}) {
    test_tensor const nothing(dtype::f32, {rows, cols});
    format const f{dtype::int4, dtype::f32, g::block(2, 2)};
    quantized const out(f, {rows, cols});
    EXPECT_NO_THROW(quantize(out.args(f, nothing), target()));
  }
}

TEST(quantize, only_live_rows_are_read_and_written) {
  test_tensor x(dtype::f32, {6, 8});
  x.fill([](index_t i, index_t j, index_t) { return i < 4 ? static_cast<double>(i + j) : nan; });
  for (index_t const live : {0, 1, 4}) {
    test_tensor live_rows(dtype::int64, {1});
    live_rows.set(static_cast<double>(live), 0);
    for (g const& layout : {g::row(), g::group(4)}) {
      format const f{dtype::e4m3, dtype::f32, layout};
      quantized const out(f, {6, 8});
      quantize_args call = out.args(f, x);
      call.live_rows = live_rows;
      for_each_implementation(call, [&](quantize_args const& args) {
        quantize(args, target());
        auto const expected = oracle::quantize(x.view().slice(0, 0, live), f.code, f.scale, layout);
        for (index_t r = 0; r < 6; ++r) {
          for (index_t c = 0; c < 8; ++c) {
            auto const i = static_cast<std::size_t>(r * 8 + c);
            EXPECT_EQ(out.values.code(r, c),
                      r < live ? test::code_of(expected.codes[i], f.code) : 0xffU);
          }
          EXPECT_EQ(std::isnan(out.scales.get(r, 0)), r >= live);
        }
      });
    }
  }
  test_tensor too_many(dtype::int64, {1});
  too_many.set(7.0, 0);
  format const f{dtype::e4m3, dtype::f32, g::row()};
  quantized const out(f, {6, 8});
  quantize_args call = out.args(f, x);
  call.live_rows = too_many;
  auto const before = out.values.bytes();
  if constexpr (test::on_cuda) {
    quantize(call, target());  // the host cannot see it: no more rows than there are
  } else {
    EXPECT_MOE64_ERROR(quantize(call, target()), errc::invalid_argument, "live_rows", "7", "6");
    EXPECT_EQ(out.values.bytes(), before);
  }
}

// ---- dequantize ---------------------------------------------------------------------------------

TEST(dequantize, every_format_is_one_product_and_one_rounding) {
  for (test::weight_spec const& spec : test::every_weight_format()) {
    test::test_weights const w = test::make_weights(spec, 2, 1, 11, 37, test::content::random, 17);
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
      SCOPED_TRACE(test::to_string(spec) + " to " + std::string(name(type)));
      test_tensor const out(type, {2, 11, 37});
      for_each_implementation(dequantize_args{w.stack.part(0), out},
                              [&](dequantize_args const& args) {
                                dequantize(args, target());
                                EXPECT_EQ(difference(out.numbers(), w.numbers(type)), "");
                              });
    }
  }
}

TEST(dequantize, gate_and_up_views_with_their_own_grids) {
  for (auto const layout : {gate_up_layout::concatenated, gate_up_layout::interleaved}) {
    for (bool const in_first : {false, true}) {
      for (g const& scale : {g::block(128, 128), g::row(), g::tensor()}) {
        test::weight_spec const spec{dtype::e4m3, scale, dtype::f32, multiply, layout, in_first};
        test::test_weights const w =
            test::make_weights(spec, 2, 2, 141, 9, test::content::random, 3);
        for (int part = 0; part < 2; ++part) {
          test_tensor const out(dtype::f32, {2, 141, 9});
          dequantize({w.stack.part(part), out}, target());
          for (index_t e = 0; e < 2; ++e) {
            for (index_t r = 0; r < 141; ++r) {
              ASSERT_EQ(out.get(e, r, 8), oracle::at(w.stack, e, part * 141 + r, 8))
                  << test::to_string(spec);
            }
          }
        }
      }
    }
  }
}

TEST(dequantize, every_code_of_every_type_with_special_scales) {
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    index_t const count = index_t{1} << bits(type);
    test_tensor values(type, {4, count});
    for (index_t r = 0; r < 4; ++r) {
      for (index_t c = 0; c < count; ++c) values.set_code(static_cast<std::uint64_t>(c), r, c);
    }
    test_tensor scales(dtype::f32, {4, 1});
    scales.fill([](index_t r, index_t, index_t) {
      return std::vector{0.1, nan, infinity, 1e-40}[static_cast<std::size_t>(r)];
    });
    quantized_view const q = quantized_view::scaled(values, scales, g::row());
    for (dtype const as : {dtype::f32, dtype::bf16, dtype::f16}) {
      test_tensor const out(as, {4, count});
      dequantize({q, out}, target());
      std::vector<double> expected;
      for (index_t r = 0; r < 4; ++r) {
        for (index_t c = 0; c < count; ++c) {
          expected.push_back(oracle::round_to(oracle::at(q, 0, r, c), as));
        }
      }
      EXPECT_EQ(difference(out.numbers(), expected), "") << name(type) << " to " << name(as);
    }
  }
}

TEST(dequantize, quantising_again_changes_nothing) {
  for (format const& f :
       {format{dtype::e4m3, dtype::f32, g::block(4, 8)}, format{dtype::e5m2, dtype::f32, g::row()},
        format{dtype::int8, dtype::f32, g::group(8)}, format{dtype::int4, dtype::f32, g::group(8)},
        format{dtype::e4m3, dtype::e8m0, g::group(8)}, format{dtype::fp4, dtype::f32, g::row()}}) {
    SCOPED_TRACE(to_string(f));
    test_tensor x(dtype::f32, {8, 24});
    // The largest number of each block is the largest code times a power of two: the scale that is
    // found again is then exact.
    double const top = f.code == dtype::e4m3   ? 448.0
                       : f.code == dtype::e5m2 ? 57344.0
                       : f.code == dtype::int8 ? 127.0
                       : f.code == dtype::int4 ? 7.0
                                               : 6.0;
    x.fill_uniform(3, -top, top).fill([&](index_t r, index_t c, index_t) {
      return c % 8 == 0 ? top : x.get(r, c);
    });
    quantized const first(f, {8, 24});
    quantize(first.args(f, x), target());
    test_tensor const back(dtype::f32, {8, 24});
    dequantize({first.view(f), back}, target());
    quantized const second(f, {8, 24});
    quantize(second.args(f, back), target());
    EXPECT_EQ(first.values.bytes(), second.values.bytes());
    EXPECT_EQ(first.scales.bytes(), second.scales.bytes());
  }
}

TEST(dequantize, doubled_codes_with_halved_scales_are_the_same_numbers) {
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    test_tensor single(type, {3, 10}), doubled(type, {3, 10});
    single.fill_integers(4, -3, 3);
    doubled.fill([&](index_t r, index_t c, index_t) { return 2.0 * single.get(r, c); });
    test_tensor scale(dtype::f32, {3, 1}), half(dtype::f32, {3, 1});
    scale.fill_uniform(5, 0.5, 1.0);
    half.fill([&](index_t r, index_t, index_t) { return scale.get(r, 0) / 2.0; });
    test_tensor const left(dtype::f32, {3, 10}), right(dtype::f32, {3, 10});
    dequantize({quantized_view::scaled(single, scale, g::row()), left}, target());
    dequantize({quantized_view::scaled(doubled, half, g::row()), right}, target());
    EXPECT_EQ(left.bytes(), right.bytes()) << name(type);
  }
}

TEST(dequantize, plain_views_are_converted) {
  test_tensor x(dtype::f32, {2, 3, 5});
  x.fill_uniform(8, -1e5, 1e5);
  for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
    test_tensor const out(type, {2, 3, 5}, {40, 1, 7});
    dequantize({quantized_view::plain(x), out}, target());
    std::vector<double> expected;
    for (double const number : x.numbers()) expected.push_back(oracle::round_to(number, type));
    EXPECT_EQ(difference(out.numbers(), expected), "");
  }
}

}  // namespace
}  // namespace moe64
