#include "checkpoint/merge/low_rank.hpp"

#include "core/float8.hpp"
#include "support/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace moe64::checkpoint {
namespace {

using test::random_source;

struct problem {
  index_t rows, cols, rank, pitch;
  std::vector<float> numbers, deltas, right;
  std::vector<double> left;

  problem(index_t r, index_t c, index_t k, index_t p) : rows(r), cols(c), rank(k), pitch(p) {
    random_source const draw(static_cast<std::uint64_t>(r * 1000 + c * 10 + k));
    auto const size = [](index_t n) { return static_cast<std::size_t>(n); };
    numbers.resize(size(rows * pitch));
    deltas.resize(size(rows * cols));
    left.resize(size(rows * rank));
    right.resize(size(rank * low_rank_pitch(cols)));
    index_t i = 0;
    for (float& number : numbers) number = static_cast<float>(draw.uniform(i++));
    for (double& number : left) number = draw.uniform(i++);
    for (float& number : right) number = static_cast<float>(draw.uniform(i++));
  }
  void run(bool to_odd) {
    low_rank_update update;
    update.numbers = numbers.data();
    update.pitch = pitch;
    update.rows = rows;
    update.cols = cols;
    update.rank = rank;
    update.left = left.data();
    update.right = right.data();
    update.deltas = deltas.data();
    update.to_odd = to_odd;
    add_low_rank(update);
  }
  [[nodiscard]] double sum(index_t row, index_t col) const {
    double result = 0;
    for (index_t k = 0; k < rank; ++k) {
      double const product =
          left[static_cast<std::size_t>(row * rank + k)] *
          static_cast<double>(right[static_cast<std::size_t>(k * low_rank_pitch(cols) + col)]);
      result += product;
    }
    return result;
  }
};

TEST(low_rank, sums_in_order_rounded_once) {
  for (auto const& [rows, cols, rank, gap] : {std::array<index_t, 4>{1, 1, 1, 0},
                                              {7, 33, 3, 5},
                                              {4, 16, 16, 0},
                                              {9, 15, 8, 33},
                                              {3, 64, 0, 0}}) {
    problem p(rows, cols, rank, cols + gap);
    std::vector<float> const before = p.numbers;
    p.run(false);
    for (index_t row = 0; row < rows; ++row) {
      for (index_t col = 0; col < p.pitch; ++col) {
        auto const at = static_cast<std::size_t>(row * p.pitch + col);
        if (col >= cols) {
          EXPECT_EQ(p.numbers[at], before[at]) << "written past the row";
          continue;
        }
        double const sum = p.sum(row, col);
        EXPECT_EQ(p.numbers[at], static_cast<float>(static_cast<double>(before[at]) + sum));
        EXPECT_EQ(p.deltas[static_cast<std::size_t>(row * cols + col)], static_cast<float>(sum));
      }
    }
  }
}

TEST(low_rank, in_f32_where_that_is_enough) {
  for (auto const& [rows, cols] : {std::array<index_t, 2>{19, 37}, {8, 16}, {1, 3}}) {
    problem p(rows, cols, 5, cols + 2);
    std::vector<float> narrow;
    for (double const number : p.left) narrow.push_back(static_cast<float>(number));
    std::vector<float> const before = p.numbers;
    low_rank_update update;
    update.numbers = p.numbers.data();
    update.pitch = p.pitch;
    update.rows = rows;
    update.cols = cols;
    update.rank = 5;
    update.narrow_left = narrow.data();
    update.right = p.right.data();
    update.deltas = p.deltas.data();
    add_low_rank(update);
    for (index_t row = 0; row < rows; ++row) {
      for (index_t col = 0; col < cols; ++col) {
        float sum = 0;
        for (index_t k = 0; k < 5; ++k) {
          float const product = narrow[static_cast<std::size_t>(row * 5 + k)] *
                                p.right[static_cast<std::size_t>(k * low_rank_pitch(cols) + col)];
          sum += product;
        }
        auto const at = static_cast<std::size_t>(row * p.pitch + col);
        EXPECT_EQ(p.numbers[at], before[at] + sum);
        EXPECT_EQ(p.deltas[static_cast<std::size_t>(row * cols + col)], sum);
      }
    }
  }
}

TEST(low_rank, to_odd_does_not_round_twice) {
  // 1 + 2^-8 is a tie of bf16; a little more or less, far below f32, decides
  problem p(1, 6, 1, 6);
  double const less = 1.0 - 0x1p-40;
  double const more = 1.0 + 0x1p-40;
  double const factors[] = {less, 1.0, more};
  float const ties[] = {1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F};
  std::uint16_t const wanted[2][3] = {{0x3f80, 0x3f80, 0x3f81}, {0x3f81, 0x3f82, 0x3f82}};
  for (int sign : {1, -1}) {
    for (int tie = 0; tie < 2; ++tie) {
      for (int which = 0; which < 3; ++which) {
        for (float& number : p.numbers) number = 0.0F;
        for (float& number : p.right) number = static_cast<float>(sign) * ties[tie];
        p.left[0] = factors[which];
        p.run(true);
        EXPECT_EQ(encode_bf16(p.numbers[2]), wanted[tie][which] | (sign < 0 ? 0x8000 : 0))
            << tie << " " << which;
      }
    }
  }
}

TEST(low_rank, to_odd_keeps_what_is_exact_and_what_is_no_number) {
  problem p(1, 8, 1, 8);
  float const infinity = std::numeric_limits<float>::infinity();
  p.numbers = {0.0F, 1.0F, infinity, -infinity, std::nanf(""), 0x1p-149F, -3.5F, 0x1.fffffep127F};
  std::vector<float> const before = p.numbers;
  for (float& number : p.right) number = 0.0F;
  p.run(true);
  for (std::size_t i = 0; i < 8; ++i) {
    if (std::isnan(before[i])) {
      EXPECT_TRUE(std::isnan(p.numbers[i]));
    } else {
      EXPECT_EQ(p.numbers[i], before[i]);
    }
  }
}

TEST(low_rank, measures_all_elements) {
  for (index_t const count : {1, 7, 8, 9, 100}) {
    random_source const draw(3);
    std::vector<float> written, meant, deltas;
    delta_sums want;
    for (index_t i = 0; i < count; ++i) {
      written.push_back(static_cast<float>(draw.uniform(3 * i)));
      meant.push_back(static_cast<float>(draw.uniform(3 * i + 1)));
      deltas.push_back(static_cast<float>(draw.uniform(3 * i + 2)));
      double const error = static_cast<double>(written.back()) - static_cast<double>(meant.back());
      double const delta = static_cast<double>(deltas.back());
      want.add({delta * delta, error * delta, error * error});
    }
    delta_sums const found = measure_deltas(written.data(), meant.data(), deltas.data(), count);
    EXPECT_NEAR(found.delta, want.delta, 1e-12);
    EXPECT_NEAR(found.along, want.along, 1e-12);
    EXPECT_NEAR(found.error, want.error, 1e-12);
  }
}

}  // namespace
}  // namespace moe64::checkpoint
