// Every one of the 2^32 floats through every encoder of core/float8.hpp. The reference knows
// nothing of bits: it lists the numbers that a format can hold, from its definition, and says that
// a float belongs to the nearest one, to the one with the even code when two are equally near. The
// floats of one code are one run without gaps, so each run is found once, in double, and walked
// through.
#include "core/float8.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace moe64 {
namespace {

constexpr std::uint32_t infinity_bits = 0x7f800000U;
constexpr std::uint32_t sign_bit = 0x80000000U;

/// The numbers of the non-negative codes of a format in rising order: number[code].
struct number_list {
  std::vector<double> numbers;
  bool saturates;  // otherwise the code after the last is infinity
};

number_list binary_numbers(int exponent_bits, int mantissa_bits, std::uint32_t top,
                           bool saturates) {
  number_list list = {{}, saturates};
  int const bias = (1 << (exponent_bits - 1)) - 1;
  for (std::uint32_t code = 0; code <= top; ++code) {
    auto const exponent = static_cast<int>(code >> mantissa_bits);
    double const fraction = static_cast<double>(code % (1U << mantissa_bits)) /
                            static_cast<double>(1U << mantissa_bits);
    list.numbers.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                         : std::ldexp(1.0 + fraction, exponent - bias));
  }
  return list;
}

/// The bits of the last float that belongs to `code`.
std::uint32_t last_of(number_list const& list, std::uint32_t code) {
  if (code + 1 == list.numbers.size() && list.saturates) return infinity_bits;
  // Without saturation infinity begins where the next number of the same spacing would have been
  // nearest.
  double const here = list.numbers[code];
  double const above =
      code + 1 < list.numbers.size() ? list.numbers[code + 1] : 2 * here - list.numbers[code - 1];
  double const middle = (here + above) / 2;
  auto const nearest = static_cast<float>(middle);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  // From the float at the middle to the last that is below it, or on it when this code is even.
  auto const ours = [&](std::uint32_t candidate) {
    auto const value = static_cast<double>(std::bit_cast<float>(candidate));
    return value < middle || (value == middle && code % 2 == 0);
  };
  while (!ours(bits)) --bits;
  while (ours(bits + 1)) ++bits;
  return bits;
}

/// Where a run of one code ends; the next begins behind it.
struct run {
  std::uint32_t first, last, code;
};

std::vector<run> runs_of(number_list const& list) {
  std::vector<run> runs;
  std::uint32_t first = 0;
  for (std::uint32_t code = 0; code < list.numbers.size(); ++code) {
    std::uint32_t const last = last_of(list, code);
    if (last + 1 > first) runs.push_back({first, last, code});
    first = last + 1;
  }
  if (first <= infinity_bits) {
    runs.push_back({first, infinity_bits, static_cast<std::uint32_t>(list.numbers.size())});
  }
  return runs;
}

/// All runs on two threads. Encode: float to code; `sign` is added to the code of a negative float.
template <class Encode>
void check_every_float(std::vector<run> const& runs, std::uint32_t sign, Encode const& encode) {
  ASSERT_EQ(runs.front().first, 0U);
  ASSERT_EQ(runs.back().last, infinity_bits);
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> wrong{0}, seen{0};
  std::atomic<std::uint32_t> example{0};
  auto const work = [&] {
    for (std::size_t i = next.fetch_add(1); i < runs.size(); i = next.fetch_add(1)) {
      run const& r = runs[i];
      std::int64_t found = 0;
      for (std::uint32_t bits = r.first; bits <= r.last; ++bits) {
        bool const right = encode(std::bit_cast<float>(bits)) == r.code &&
                           encode(std::bit_cast<float>(bits | sign_bit)) == (r.code | sign);
        if (!right) {
          ++found;
          example = bits;
        }
      }
      wrong += found;
      seen += 2 * (std::int64_t{r.last} - r.first + 1);
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(seen, 2 * (std::int64_t{infinity_bits} + 1)) << "runs leave floats out";
  EXPECT_EQ(wrong, 0) << "one of them has the bits " << std::hex << example;
}

/// Every NaN, of both signs, gives a code that `is_right` accepts.
template <class Encode, class Right>
void check_every_nan(Encode const& encode, Right const& is_right) {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = infinity_bits + 1; bits < sign_bit; ++bits) {
    wrong += is_right(encode(std::bit_cast<float>(bits))) ? 0 : 1;
    wrong += is_right(encode(std::bit_cast<float>(bits | sign_bit))) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
}

/// A long run is cut, so that two threads share it.
std::vector<run> cut(std::vector<run> const& runs) {
  constexpr std::uint32_t most = 1U << 24;
  std::vector<run> result;
  for (run r : runs) {
    while (r.last - r.first >= most) {
      result.push_back({r.first, r.first + most - 1, r.code});
      r.first += most;
    }
    result.push_back(r);
  }
  return result;
}

template <float_format format>
void check_small_format(number_list const& list, std::uint32_t sign) {
  auto const encode = [](float value) { return encode_float<format>(value); };
  check_every_float(cut(runs_of(list)), sign, encode);
  check_every_nan(encode, [](std::uint32_t code) { return code == format.nan; });
}

TEST(every_float, to_e4m3) {
  number_list const list = binary_numbers(4, 3, 0x7e, true);
  ASSERT_EQ(list.numbers.size(), 127U);
  ASSERT_EQ(list.numbers.back(), 448.0);
  check_small_format<e4m3_format>(list, 0x80);
}

TEST(every_float, to_e5m2) {
  number_list const list = binary_numbers(5, 2, 0x7b, true);
  ASSERT_EQ(list.numbers.back(), 57344.0);
  check_small_format<e5m2_format>(list, 0x80);
}

TEST(every_float, to_fp4) {
  number_list const list = binary_numbers(2, 1, 0x7, true);
  ASSERT_EQ(list.numbers, (std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6}));
  check_small_format<e2m1_format>(list, 0x8);
}

TEST(every_float, to_f16) {
  number_list const list = binary_numbers(5, 10, 0x7bff, false);
  ASSERT_EQ(list.numbers.back(), 65504.0);
  check_small_format<f16_format>(list, 0x8000);
}

TEST(every_float, to_bf16) {
  number_list const list = binary_numbers(8, 7, 0x7f7f, false);
  ASSERT_EQ(list.numbers.back(), 0x1.fep127);
  auto const encode = [](float value) { return std::uint32_t{encode_bf16(value)}; };
  check_every_float(cut(runs_of(list)), 0x8000, encode);
  check_every_nan(encode, [](std::uint32_t code) { return (code & 0x7fffU) > 0x7f80U; });
}

/// Up to the next power of two: the runs are those between powers, and 2^127 takes all above it.
TEST(every_float, up_to_e8m0) {
  std::vector<run> runs;
  std::uint32_t first = 0;
  for (std::uint32_t code = 0; code <= 254; ++code) {
    auto const power = static_cast<float>(std::ldexp(1.0, static_cast<int>(code) - 127));
    std::uint32_t const last =
        code == 254 ? infinity_bits - 1 : std::bit_cast<std::uint32_t>(power);
    runs.push_back({first, last, code});
    first = last + 1;
  }
  runs.push_back({infinity_bits, infinity_bits, 0xff});
  auto const encode = [](float value) { return std::uint32_t{encode_e8m0_up(value)}; };
  std::int64_t wrong = 0;
  for (run const& r : runs) {
    for (std::uint32_t bits = r.first; bits <= r.last; ++bits) {
      std::uint32_t const negative = r.code == 0xff ? 0xff : 0;
      wrong += encode(std::bit_cast<float>(bits)) == r.code &&
                       encode(std::bit_cast<float>(bits | sign_bit)) == negative
                   ? 0
                   : 1;
    }
  }
  EXPECT_EQ(wrong, 0);
  check_every_nan(encode, [](std::uint32_t code) { return code == 0xffU; });
}

/// To nearest integer, ties to even, within the range; std::nearbyint is the reference.
TEST(every_float, to_integers) {
  std::atomic<std::int64_t> wrong{0};
  auto const work = [&](std::uint32_t sign) {
    std::int64_t found = 0;
    for (std::uint32_t magnitude = 0; magnitude <= infinity_bits; ++magnitude) {
      float const value = std::bit_cast<float>(magnitude | sign);
      float const nearest = std::nearbyint(value);
      for (int const limit : {8, 128}) {
        auto const low = static_cast<float>(-limit);
        auto const high = static_cast<float>(limit - 1);
        float const expected = nearest < low ? low : (nearest > high ? high : nearest);
        auto const actual = static_cast<float>(round_to_integer(value, -limit, limit - 1));
        found += actual == expected ? 0 : 1;
      }
    }
    wrong += found;
  };
  std::thread negative(work, sign_bit);
  work(0);
  negative.join();
  EXPECT_EQ(wrong, 0);
  check_every_nan([](float value) { return round_to_integer(value, -8, 7); },
                  [](int code) { return code == 0; });
}

}  // namespace
}  // namespace moe64
