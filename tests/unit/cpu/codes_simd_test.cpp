// The vectorised runs of cpu/quantize/codes_simd.hpp give the bits of cpu/runtime/rows.hpp, at
// every width.
#include "core/float8.hpp"
#include "cpu/runtime/rows.hpp"
#include "support/buffer.hpp"
#include "support/random.hpp"
#include "support/runs.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace moe64 {
namespace {

using test::random_source;
using test::run_functions;
using test::run_widths;

constexpr dtype number_types[] = {dtype::f32,  dtype::bf16, dtype::f16,  dtype::e4m3, dtype::e5m2,
                                  dtype::e8m0, dtype::int8, dtype::int4, dtype::fp4};

template <class Body>
void for_each_width(Body const& body) {
  ASSERT_FALSE(run_widths().empty());
  for (run_functions const& width : run_widths()) {
    SCOPED_TRACE(width.name);
    body(width);
  }
}

std::vector<std::uint32_t> bits_of(std::vector<float> const& values) {
  std::vector<std::uint32_t> result;
  for (float const value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

/// Every 16-bit word in order, so also every byte and every pair of nibbles.
std::vector<std::uint16_t> every_word() {
  std::vector<std::uint16_t> words(1 << 16);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint16_t>(i);
  return words;
}

TEST(codes_simd, every_code_of_every_type_is_loaded_as_by_rows) {
  std::vector<std::uint16_t> words = every_word();
  for_each_width([&](run_functions const& width) {
    for (dtype const type : number_types) {
      index_t const count = (index_t{1} << 16) * 16 / bits(type);
      row_view const row = {words.data(), 0, 1, type};
      std::vector<float> actual(static_cast<std::size_t>(count)), expected(actual);
      width.load(row, 0, count, actual.data());
      load_row(row, 0, count, expected.data());
      EXPECT_EQ(bits_of(actual), bits_of(expected)) << name(type);
    }
  });
}

TEST(codes_simd, every_start_and_length_is_loaded_and_nothing_beyond) {
  std::vector<std::uint16_t> words = every_word();
  for_each_width([&](run_functions const& width) {
    for (dtype const type : number_types) {
      for (index_t const stride : {1, 3}) {
        for (index_t offset = 0; offset < 3; ++offset) {
          for (index_t begin = 0; begin < 4; ++begin) {
            for (index_t count = 0; count < 70; ++count) {
              row_view const row = {words.data(), 777 + offset, stride, type};
              std::vector<float> actual(80, 5.0F), expected(80, 5.0F);
              width.load(row, begin, count, actual.data());
              load_row(row, begin, count, expected.data());
              ASSERT_EQ(bits_of(actual), bits_of(expected))
                  << name(type) << " " << offset << " " << begin << " " << count;
            }
          }
        }
      }
    }
  });
}

/// The bits where encoders change their mind: around every power of two, around the ties of each
/// format, infinity, NaN of all payloads' ends; then random bits.
std::vector<float> difficult_floats() {
  std::vector<float> result;
  auto const add = [&](std::uint32_t bits) {
    result.push_back(std::bit_cast<float>(bits));
    result.push_back(std::bit_cast<float>(bits ^ 0x80000000U));
  };
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (std::uint32_t step = 0; step < 32; ++step) {
      std::uint32_t const middle = (exponent << 23) + (step << 18);
      for (std::uint32_t near = 0; near < 3; ++near) add((middle + near - 1) & 0x7fffffffU);
    }
    for (int bit = 0; bit < 23; ++bit) add((exponent << 23) + (1U << bit));
    for (int bit = 0; bit < 23; ++bit) add((exponent << 23) + 0x7fffffU - (1U << bit));
  }
  random_source const random(5);
  for (index_t i = 0; i < 1 << 20; ++i) add(static_cast<std::uint32_t>(random.bits(i)));
  // Numbers of the range that small types hold.
  for (index_t i = 0; i < 1 << 18; ++i) {
    result.push_back(static_cast<float>(random.uniform(i, -9.0, 9.0)));
    result.push_back(static_cast<float>(random.uniform(i, -600.0, 600.0)));
    result.push_back(static_cast<float>(random.between(i, -600, 600)) * 0.5F);
  }
  return result;
}

TEST(codes_simd, floats_are_stored_and_rounded_as_by_rows) {
  std::vector<float> const values = difficult_floats();
  auto const count = static_cast<index_t>(values.size());
  for_each_width([&](run_functions const& width) {
    for (dtype const type : number_types) {
      std::vector<std::uint8_t> actual(values.size() * 4 + 8, 0xa5), expected(actual);
      width.store({actual.data(), 1, 1, type}, 0, count, values.data());
      store_row({expected.data(), 1, 1, type}, 0, count, values.data());
      EXPECT_TRUE(actual == expected) << name(type);
      std::vector<float> rounded(values), rounded_too(values);
      width.round(type, count, rounded.data());
      round_row(type, count, rounded_too.data());
      EXPECT_TRUE(bits_of(rounded) == bits_of(rounded_too)) << name(type);
    }
  });
}

TEST(codes_simd, every_start_and_length_is_stored_and_nothing_beyond) {
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37F - 9.0F;
  for_each_width([&](run_functions const& width) {
    for (dtype const type : number_types) {
      for (index_t const stride : {1, 3}) {
        for (index_t offset = 0; offset < 3; ++offset) {
          for (index_t begin = 0; begin < 4; ++begin) {
            for (index_t count = 0; count < 70; ++count) {
              std::vector<std::uint8_t> actual(1200, 0xa5), expected(actual);
              width.store({actual.data(), offset, stride, type}, begin, count, values.data());
              store_row({expected.data(), offset, stride, type}, begin, count, values.data());
              ASSERT_EQ(actual, expected)
                  << name(type) << " " << offset << " " << begin << " " << count;
            }
          }
        }
      }
    }
  });
}

struct scaled_case {
  test::test_tensor values, scales, global;
  quantized_view q;
};

/// Codes and scales of all kinds but NaN in codes: NaN times NaN may be either of them.
scaled_case make_scaled(dtype type, granularity layout, dtype scale_type,
                        global_scale::direction applied) {
  constexpr index_t experts = 2, rows = 5, cols = 1300;
  random_source const random(7);
  scaled_case c;
  c.values = test::test_tensor(type, {experts, rows, cols});
  c.values.fill([&](index_t i, index_t j, index_t k) {
    return static_cast<double>(random.between((i * rows + j) * cols + k, -16, 16)) / 2.0;
  });
  index_t const grid_rows = layout.grid_rows(rows), grid_cols = layout.grid_cols(cols);
  c.scales = test::test_tensor(scale_type, {experts, grid_rows, grid_cols});
  for (index_t i = 0; i < experts; ++i) {
    for (index_t j = 0; j < grid_rows; ++j) {
      for (index_t k = 0; k < grid_cols; ++k) {
        c.scales.set_code(random.bits(7 * i + 5 * j + k) >> 33, i, j, k);
      }
    }
  }
  global_scale global;
  if (type == dtype::fp4 && scale_type == dtype::e4m3) {
    c.global = test::test_tensor(dtype::f32, {experts});
    c.global.fill([](index_t i, index_t, index_t) { return 0.3 + static_cast<double>(i); });
    global = {c.global, applied};
  }
  c.q = quantized_view::scaled(c.values, c.scales, layout, global);
  return c;
}

TEST(codes_simd, scaled_runs_as_by_rows) {
  granularity const layouts[] = {granularity::tensor(),      granularity::row(),
                                 granularity::block(2, 128), granularity::block(3, 1),
                                 granularity::block(1, 100), granularity::group(16),
                                 granularity::group(32),     granularity::group(7)};
  dtype const scale_types[] = {dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0, dtype::e4m3};
  for (dtype const type : {dtype::e4m3, dtype::e5m2, dtype::int8, dtype::int4, dtype::fp4}) {
    for (granularity const& layout : layouts) {
      for (dtype const scale_type : scale_types) {
        for (auto const applied :
             {global_scale::direction::multiply, global_scale::direction::divide}) {
          scaled_case const c = make_scaled(type, layout, scale_type, applied);
          for_each_width([&](run_functions const& width) {
            struct piece {
              index_t begin, count;
            };
            for (piece const p : {piece{0, 1300}, piece{1, 1299}, piece{127, 130}, piece{640, 0},
                                  piece{33, 31}, piece{5, 512}, piece{1299, 1}}) {
              std::vector<float> actual(1301, 5.0F), expected(actual);
              width.load_scaled(c.q, 1, 4, p.begin, p.count, actual.data());
              load_scaled_row(c.q, 1, 4, p.begin, p.count, expected.data());
              ASSERT_EQ(bits_of(actual), bits_of(expected))
                  << name(type) << " " << to_string(layout) << " " << name(scale_type) << " "
                  << p.begin << " " << p.count;
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace moe64
