// gather and combine where tokens x hidden and slots x hidden reach 2^31 elements, all rows live:
// at 262,144 rows of 8,192 the last offset is the last that 31 bits hold, at 262,145 it is the
// first that they do not.
//
// Both sides are repeated memory (see support/huge_memory.hpp) of 127 rows, a prime, so a row that
// lost 2^31 elements is another row. With one expert per token, in reverse, row r is token
// tokens - 1 - r: low tokens become high rows and the other way round, and both sides keep the
// period. Rows near 0, 2^30 elements (2^31 bytes), 2^31 elements (2^32 bytes) and the end are
// memory of their own.
#include "moe64/ops.hpp"
#include "support/huge_memory.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <set>

namespace moe64::test {
namespace {

constexpr index_t hidden = 8192;
constexpr index_t period = 127;
constexpr index_t row_bytes = hidden * 2;
constexpr std::uint16_t unwritten = 0x7fff;

/// A matrix [rows, 8192] bf16: `period` rows again and again, except for some that are their own.
class repeated_rows {
 public:
  repeated_rows(index_t rows, std::set<index_t> const& own)
      : rows_(rows), memory_(rows * row_bytes) {
    memory_.repeat(file_);
    for (index_t const row : own) {
      auto& file = own_[row] = std::make_unique<memory_file>(row_bytes);
      memory_.map(row * row_bytes, row_bytes, *file);
    }
    std::fill_n(file_.data<std::uint16_t>(), period * hidden, unwritten);
    for (auto& [row, file] : own_) std::fill_n(file->data<std::uint16_t>(), hidden, unwritten);
  }

  /// Every element names its row (the repeated ones: their place) and column.
  void fill() {
    for (index_t row = 0; row < period; ++row)
      write(file_.data<std::uint16_t>() + row * hidden, row);
    for (auto& [row, file] : own_) write(file->data<std::uint16_t>(), row + period);
  }

  [[nodiscard]] std::uint16_t const* repeated(index_t row) const {
    return file_.data<std::uint16_t>() + row % period * hidden;
  }
  /// What lies at a row.
  [[nodiscard]] std::uint16_t const* row(index_t row) const {
    auto const own = own_.find(row);
    return own == own_.end() ? repeated(row) : own->second->data<std::uint16_t>();
  }
  [[nodiscard]] bool is_own(index_t row) const { return own_.contains(row); }
  [[nodiscard]] tensor_view view() const {
    return tensor_view::contiguous(memory_.data(), dtype::bf16, {rows_, hidden});
  }
  [[nodiscard]] address_range const& memory() const { return memory_; }

 private:
  static void write(std::uint16_t* to, index_t row) {
    for (index_t col = 0; col < hidden; ++col) to[col] = bf16_name_of(row, col);
  }

  index_t rows_;
  memory_file file_{period * row_bytes};
  address_range memory_;
  std::map<index_t, std::unique_ptr<memory_file>> own_;
};

/// Rows on both sides of every limit, and the rows that a reversal sends there.
std::set<index_t> rows_of_interest(index_t rows) {
  std::set<index_t> result;
  for (index_t const limit : {index_t{0}, index_t{131072}, index_t{262144}, rows}) {
    for (index_t const row : {limit - 1, limit}) {
      if (row < 0 || row >= rows) continue;
      result.insert(row);
      result.insert(rows - 1 - row);
    }
  }
  return result;
}

/// A power of two that is the same for tokens that share a place.
float weight_of(index_t token) {
  return std::ldexp(1.0F, static_cast<int>(token % period % 3) - 1);
}

/// The plan that reverses `tokens` tokens, by the operation itself.
class reversal {
 public:
  explicit reversal(index_t tokens)
      : memory_(plan_bytes(tokens, 1, tokens)), ids_(static_cast<std::size_t>(tokens)) {
    std::vector<float> weights;
    for (index_t token = 0; token < tokens; ++token) {
      ids_[static_cast<std::size_t>(token)] = narrow<std::int32_t>(tokens - 1 - token);
      weights.push_back(weight_of(token));
    }
    plan_ = bind_plan(memory_.as_workspace(memory_.bytes()), tokens, 1, tokens);
    test_tensor const scratch =
        make_workspace(plan_scratch_bytes(tokens, 1, tokens, device::cpu()));
    plan({.expert_ids = tensor_view::contiguous(ids_.data(), dtype::int32, {tokens, 1}),
          .weights = tensor_view::contiguous(weights.data(), dtype::f32, {tokens, 1}),
          .experts_total = tokens,
          .plan = plan_,
          .scratch = scratch.as_workspace()},
         cpu_stream());
  }
  [[nodiscard]] routing_plan const& operator*() const { return plan_; }

 private:
  address_range memory_;
  std::vector<std::int32_t> ids_;
  routing_plan plan_;
};

/// Compares a repeated output with what `expected(row, col)` says, while it is being written.
template <class Expected>
class watcher {
 public:
  watcher(repeated_rows const& output, index_t rows, Expected expected)
      : output_(output), rows_(rows), expected_(std::move(expected)) {
    // A row of each place that is not one of the rows with their own memory.
    for (index_t place = 0; place < period; ++place) {
      index_t row = place;
      while (output.is_own(row)) row += period;
      for (index_t col = 0; col < hidden; ++col) places_.push_back(expected_(row, col));
    }
  }

  void look(bool complete) {
    std::uint16_t const* const actual = output_.repeated(0);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      bool const right = actual[i] == places_[i] || (!complete && actual[i] == unwritten);
      wrong_ += right ? 0 : 1;
    }
  }

  void finish() {
    look(true);
    EXPECT_EQ(wrong_, 0) << "in repeated rows";
    for (index_t const row : rows_of_interest(rows_)) {
      for (index_t col = 0; col < hidden; ++col) {
        ASSERT_EQ(output_.row(row)[col], expected_(row, col)) << "row " << row << ", col " << col;
      }
    }
  }

 private:
  repeated_rows const& output_;
  index_t rows_;
  Expected expected_;
  std::vector<std::uint16_t> places_;
  index_t wrong_ = 0;
};

void check_gather(index_t tokens, bool weighted) {
  reversal const plan(tokens);
  repeated_rows x(tokens, rows_of_interest(tokens));
  repeated_rows const rows(tokens, rows_of_interest(tokens));
  x.fill();
  page_forgetter const forget({&x.memory(), &rows.memory()});
  watcher watch(rows, tokens, [&](index_t row, index_t col) {
    index_t const token = tokens - 1 - row;
    float const value = std::bit_cast<float>(std::uint32_t{x.row(token)[col]} << 16);
    float const weight = weighted ? weight_of(token) : 1.0F;
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value * weight) >> 16);
  });
  batched_executor threads(64, [&] { watch.look(false); });
  gather({.x = x.view(), .plan = *plan, .weighted = weighted, .rows = rows.view()},
         cpu_stream(&threads));
  watch.finish();
}

void check_combine(index_t tokens) {
  reversal const plan(tokens);
  repeated_rows rows(tokens, rows_of_interest(tokens));
  repeated_rows const y(tokens, rows_of_interest(tokens));
  rows.fill();
  page_forgetter const forget({&rows.memory(), &y.memory()});
  watcher watch(y, tokens, [&](index_t token, index_t col) {
    std::uint16_t const bits = rows.row(tokens - 1 - token)[col];
    float const value = std::bit_cast<float>(std::uint32_t{bits} << 16) * weight_of(token);
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  });
  batched_executor threads(64, [&] { watch.look(false); });
  combine(
      {.rows = quantized_view::plain(rows.view()), .plan = *plan, .weighted = true, .y = y.view()},
      cpu_stream(&threads));
  watch.finish();
}

TEST(huge_movement, gather_of_262144_rows) {
  on_huge_memory([] { check_gather(262144, false); });
}
TEST(huge_movement, gather_of_262145_rows) {
  on_huge_memory([] { check_gather(262145, false); });
}
TEST(huge_movement, weighted_gather_of_262145_rows) {
  on_huge_memory([] { check_gather(262145, true); });
}
TEST(huge_movement, combine_of_262144_rows) {
  on_huge_memory([] { check_combine(262144); });
}
TEST(huge_movement, combine_of_262145_rows) {
  on_huge_memory([] { check_combine(262145); });
}

/// Eight choices per token: tokens x top_k x hidden passes 2^31 where tokens x hidden does not come
/// near. Choice k goes to expert 7 - k, so row e * tokens + t is slot 8 t + 7 - e, and tokens is a
/// multiple of the period.
constexpr index_t top_k = 8;
constexpr index_t eight_tokens = 259 * period;
static_assert(eight_tokens * top_k * hidden > (index_t{1} << 31));

class eightfold {
 public:
  eightfold() {
    for (index_t slot = 0; slot < eight_tokens * top_k; ++slot) ids_.push_back(7 - slot % top_k);
    plan_ = bind_plan(memory_.as_workspace(memory_.bytes()), eight_tokens, top_k, top_k);
    test_tensor const scratch =
        make_workspace(plan_scratch_bytes(eight_tokens, top_k, top_k, device::cpu()));
    plan({.expert_ids = tensor_view::contiguous(ids_.data(), dtype::int64, {eight_tokens, top_k}),
          .experts_total = top_k,
          .plan = plan_,
          .scratch = scratch.as_workspace()},
         cpu_stream());
  }
  [[nodiscard]] routing_plan const& operator*() const { return plan_; }

 private:
  address_range memory_{plan_bytes(eight_tokens, top_k, top_k)};
  std::vector<std::int64_t> ids_;
  routing_plan plan_;
};

std::set<index_t> high_rows() {
  return {0, 131071, 131072, 262143, 262144, eight_tokens * top_k - 1};
}

TEST(huge_movement, gather_where_only_the_slots_pass_2_31_elements) {
  on_huge_memory([] {
    eightfold const plan;
    index_t const slots = eight_tokens * top_k;
    repeated_rows x(eight_tokens, {});
    repeated_rows const rows(slots, high_rows());
    x.fill();
    page_forgetter const forget({&x.memory(), &rows.memory()});
    index_t wrong = 0;
    auto const look = [&](index_t row, bool complete) {
      for (index_t col = 0; col < hidden; ++col) {
        std::uint16_t const actual = rows.row(row)[col];
        bool const right = actual == x.row(row % eight_tokens)[col];
        wrong += right || (!complete && actual == unwritten) ? 0 : 1;
      }
    };
    batched_executor threads(64, [&] {
      for (index_t row = period; row < 2 * period; ++row) look(row, false);
    });
    gather({.x = x.view(), .plan = *plan, .rows = rows.view()}, cpu_stream(&threads));
    for (index_t row = period; row < 2 * period; ++row) look(row, true);
    EXPECT_EQ(wrong, 0) << "in repeated rows";
    for (index_t const row : high_rows()) look(row, true);
    EXPECT_EQ(wrong, 0) << "around the limits";
  });
}

TEST(huge_movement, combine_where_only_the_slots_pass_2_31_elements) {
  on_huge_memory([] {
    eightfold const plan;
    repeated_rows rows(eight_tokens * top_k, high_rows());
    // Tokens that take one of the rows with memory of their own have memory of their own, too.
    std::set<index_t> own;
    for (index_t const row : high_rows()) own.insert(row % eight_tokens);
    repeated_rows const y(eight_tokens, own);
    rows.fill();
    page_forgetter const forget({&rows.memory(), &y.memory()});
    auto const expected = [&](index_t token, index_t col) {
      // In slot order, which is expert 7 first. All numbers have 8 bits and exponents within 8, so
      // that these sums are exact and one rounding to bf16 follows.
      double sum = 0.0;
      for (index_t e = top_k - 1; e >= 0; --e) {
        std::uint16_t const bits = rows.row(e * eight_tokens + token)[col];
        sum += std::bit_cast<float>(std::uint32_t{bits} << 16);
      }
      return static_cast<std::uint16_t>(code_of(sum, dtype::bf16));
    };
    std::vector<std::uint16_t> places;
    for (index_t place = period; place < 2 * period; ++place) {
      ASSERT_FALSE(y.is_own(place));
      for (index_t col = 0; col < hidden; ++col) places.push_back(expected(place, col));
    }
    index_t wrong = 0;
    auto const look = [&](bool complete) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        std::uint16_t const actual = y.repeated(0)[i];
        wrong += actual == places[i] || (!complete && actual == unwritten) ? 0 : 1;
      }
    };
    batched_executor threads(64, [&] { look(false); });
    combine({.rows = quantized_view::plain(rows.view()), .plan = *plan, .y = y.view()},
            cpu_stream(&threads));
    look(true);
    EXPECT_EQ(wrong, 0) << "in repeated rows";
    for (index_t const token : own) {
      for (index_t col = 0; col < hidden; ++col) {
        ASSERT_EQ(y.row(token)[col], expected(token, col)) << "token " << token << ", col " << col;
      }
    }
  });
}

}  // namespace
}  // namespace moe64::test
