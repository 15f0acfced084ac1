#include "checkpoint/scan/zero_run.hpp"

#include "checkpoint/scan/value_sample.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace moe64::test {
namespace {

using checkpoint::find_zeros;
using checkpoint::number_at;
using checkpoint::value_kind;
using checkpoint::zero_stretch;

/// Bytes of ones with zeros in [begin, end).
std::vector<std::byte> with_hole(index_t bytes, index_t begin, index_t end) {
  std::vector<std::byte> result(static_cast<std::size_t>(bytes), std::byte{1});
  std::fill(result.begin() + begin, result.begin() + end, std::byte{0});
  return result;
}

/// Looked at in pieces of that many bytes.
zero_stretch in_pieces(std::vector<std::byte> const& bytes, index_t piece) {
  zero_stretch all;
  auto const size = std::ssize(bytes);
  for (index_t at = 0; at < size; at += piece) {
    auto const part = std::span(bytes).subspan(
        static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(piece, size - at)));
    all.append(find_zeros(part, at));
  }
  return all;
}

TEST(zero_run, is_found_wherever_it_lies_and_however_the_bytes_are_cut) {
  constexpr index_t bytes = 40'000;
  for (index_t const begin : {0, 1, 2047, 2048, 5000, 35'903}) {
    for (index_t const length : {4096, 4097}) {
      if (begin + length > bytes) continue;
      auto const content = with_hole(bytes, begin, begin + length);
      for (index_t const piece : {bytes, index_t{4096}, index_t{1000}, index_t{37}}) {
        zero_stretch const found = in_pieces(content, piece);
        EXPECT_EQ(found.run_begin, begin) << piece;
        EXPECT_EQ(found.run_bytes, length) << begin << " in pieces of " << piece;
        EXPECT_EQ(found.end, bytes);
      }
    }
  }
}

TEST(zero_run, shorter_than_a_page_is_none_and_the_longest_counts) {
  EXPECT_EQ(in_pieces(with_hole(20'000, 3000, 3000 + 4095), 700).run_bytes, 0);
  auto content = with_hole(40'000, 100, 100 + 4200);
  std::fill_n(content.begin() + 10'000, 9000, std::byte{0});
  std::fill_n(content.begin() + 30'000, 5000, std::byte{0});
  zero_stretch const found = in_pieces(content, 4500);
  EXPECT_EQ(found.run_begin, 10'000);
  EXPECT_EQ(found.run_bytes, 9000);
}

TEST(zero_run, may_be_everything) {
  zero_stretch const found = in_pieces(std::vector<std::byte>(9000), 2000);
  EXPECT_EQ(found.run_begin, 0);
  EXPECT_EQ(found.run_bytes, 9000);
  EXPECT_EQ(found.leading, 9000);
  EXPECT_EQ(found.trailing, 9000);
}

TEST(value_sample, decodes_every_kind) {
  std::vector<std::byte> const codes = {std::byte{0x7e}, std::byte{0x7f}, std::byte{0x80},
                                        std::byte{0x08}};
  EXPECT_EQ(number_at(value_kind::e4m3, codes, 0), 448.0);
  EXPECT_TRUE(std::isnan(number_at(value_kind::e4m3, codes, 1)));
  EXPECT_EQ(number_at(value_kind::e4m3fnuz, codes, 1), 240.0);
  EXPECT_EQ(number_at(value_kind::e5m2fnuz, codes, 1), 57344.0);
  EXPECT_TRUE(std::isnan(number_at(value_kind::e4m3fnuz, codes, 2)));
  EXPECT_EQ(number_at(value_kind::e4m3fnuz, codes, 3), 0x1p-7);
  EXPECT_EQ(number_at(value_kind::fp4, codes, 0), -4.0);
  EXPECT_EQ(number_at(value_kind::fp4, codes, 1), 6.0);
  EXPECT_EQ(number_at(value_kind::int4, codes, 6), 0.0);
  EXPECT_EQ(number_at(value_kind::int4, codes, 7), -8.0);
  EXPECT_EQ(number_at(value_kind::e8m0, codes, 0), 0.5);
}

TEST(value_sample, steps_are_odd_and_cover_small_matrices_as_a_whole) {
  for (index_t const elements : {1, 2048, 4095, 4096, 1 << 20, 3 << 20}) {
    index_t const step = checkpoint::sample_step(elements);
    EXPECT_EQ(step % 2, 1);
    EXPECT_GE(elements / step, std::min<index_t>(elements, 2048));
    EXPECT_LE(elements / step, 4100);
  }
}

TEST(value_sample, of_parts_is_that_of_the_whole) {
  checkpoint::value_sample first;
  first.add(3.0, 2.0);
  first.add(NAN, 1.0);
  checkpoint::value_sample second;
  second.add(4.0, 2.0);
  first.append(second);
  EXPECT_EQ(first.taken, 2);
  EXPECT_DOUBLE_EQ(first.rms(), std::sqrt(50.0));
  EXPECT_FALSE(first.constant);
}

}  // namespace
}  // namespace moe64::test
