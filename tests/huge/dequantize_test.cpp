// Whole e4m3 matrices of 1,048,576 x 6,144 and 400,000 x 6,144, block 128 x 128, dequantised to
// bf16 in one call at their true size: 6.4e9 elements, 12.9 GB of output, in a few megabytes.
//
// Values are one small file repeated over all addresses, so element i holds the code of place
// i % period. The output is repeated memory, too, with the same period in elements: elements that
// share a place have the same value, so what the file holds is right whoever wrote last, and it is
// compared between batches, before a wrong value could be written over. The period is a prime
// number of pages: an offset that lost 2^31 or 2^32 on the way lands on another place and is seen.
// In windows around 0, 2^30, 2^31, 2^32 elements and the end (so 2^31, 2^32, 2^33 bytes, too)
// values, scales and output are memory of their own: each element there names its row and column.
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"
#include "support/huge_memory.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>

namespace moe64::test {
namespace {

constexpr index_t block = 128;
constexpr std::uint16_t unwritten = 0x7fff;  // a NaN that no code decodes to

/// Never NaN.
std::uint8_t code_named(index_t a, index_t b) {
  auto const code = static_cast<std::uint8_t>(name_of(a, b));
  return (code & 0x7fU) == 0x7fU ? static_cast<std::uint8_t>(code ^ 1U) : code;
}

/// Codes times small powers of two are exact in bf16, so the product has one right answer.
std::uint16_t expected_bf16(std::uint8_t code, float scale) {
  static auto const numbers = [] {
    std::array<float, 256> table{};
    for (unsigned c = 0; c < 256; ++c) {
      auto const byte = static_cast<std::uint8_t>(c);
      table[c] = static_cast<float>(oracle::load(&byte, dtype::e4m3, 0));
    }
    return table;
  }();
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(numbers[code] * scale) >> 16);
}

struct row_range {
  index_t begin, end;
};

/// A matrix of e4m3 codes and its bf16 output, built as the head of this file says.
class repeated_matrix {
 public:
  repeated_matrix(index_t rows, index_t cols, std::vector<index_t> const& boundaries)
      : rows_(rows), cols_(cols), values_(rows * cols), output_(rows * cols * 2) {
    values_.repeat(codes_);
    output_.repeat(numbers_);
    scales_.assign(static_cast<std::size_t>(rows / block * grid_cols()), 1.0F);
    for (index_t const boundary : boundaries) {
      // The 128 rows that hold the elements on both sides, each block row once.
      for (index_t element : {boundary - 1, boundary}) {
        index_t const begin = element / cols / block * block;
        bool const known = !windows_.empty() && windows_.back().begin >= begin;
        if (element >= 0 && element < rows * cols && !known) open_window(begin);
      }
    }
    for (index_t i = 0; i < period; ++i) {
      std::uint8_t const code = code_named(-1, i);
      codes_.data<std::uint8_t>()[i] = code;
      expected_[static_cast<std::size_t>(i)] = expected_bf16(code, 1.0F);
      numbers_.data<std::uint16_t>()[i] = unwritten;
    }
  }

  void run() {
    tensor_view const values = tensor_view::contiguous(values_.data(), dtype::e4m3, {rows_, cols_});
    tensor_view const scales =
        tensor_view::contiguous(scales_.data(), dtype::f32, {rows_ / block, grid_cols()});
    page_forgetter const forget({&values_, &output_});
    // A batch of tasks of 14 rows writes less than one period.
    batched_executor threads(24, [&] { check_repeated(threads.pool(), false); });
    dequantize({.q = quantized_view::scaled(values, scales, granularity::block(block, block)),
                .out = tensor_view::contiguous(output_.data(), dtype::bf16, {rows_, cols_})},
               cpu_stream(&threads));
    check_repeated(threads.pool(), true);
    EXPECT_EQ(wrong_, 0) << "between the windows";
  }

  void check_windows() {
    for (std::size_t w = 0; w < windows_.size(); ++w) {
      auto const* const out = window_numbers_[w]->data<std::uint16_t>();
      for (index_t row = windows_[w].begin; row < windows_[w].end; ++row) {
        for (index_t col = 0; col < cols_; ++col) {
          std::uint16_t const expected = expected_bf16(code_named(row, col), scale(row, col));
          std::uint16_t const actual = out[(row - windows_[w].begin) * cols_ + col];
          ASSERT_EQ(actual, expected)
              << "row " << row << ", col " << col << ", element " << row * cols_ + col;
        }
      }
    }
  }

  [[nodiscard]] std::size_t windows() const { return windows_.size(); }

 private:
  static constexpr index_t period = 509 * page_bytes;

  [[nodiscard]] index_t grid_cols() const { return cols_ / block; }
  [[nodiscard]] float& scale(index_t row, index_t col) {
    return scales_[static_cast<std::size_t>(row / block * grid_cols() + col / block)];
  }

  void open_window(index_t begin) {
    windows_.push_back({begin, begin + block});
    auto& codes = window_codes_.emplace_back(std::make_unique<memory_file>(block * cols_));
    auto& numbers = window_numbers_.emplace_back(std::make_unique<memory_file>(block * cols_ * 2));
    values_.map(begin * cols_, codes->bytes(), *codes);
    output_.map(begin * cols_ * 2, numbers->bytes(), *numbers);
    for (index_t row = begin; row < begin + block; ++row) {
      for (index_t col = 0; col < cols_; ++col) {
        codes->data<std::uint8_t>()[(row - begin) * cols_ + col] = code_named(row, col);
        numbers->data<std::uint16_t>()[(row - begin) * cols_ + col] = unwritten;
        auto const exponent = static_cast<int>(name_of(row / block, col / block) % 9) - 4;
        scale(row, col) = std::ldexp(1.0F, exponent);
      }
    }
  }

  /// Counts places of the repeated output that hold neither their number nor, unless `complete`,
  /// what was there before.
  void check_repeated(cpu_pool& pool, bool complete) {
    std::array<index_t, 2> wrong = {};
    auto const count = [&](index_t half) {
      auto const* const actual = numbers_.data<std::uint16_t>();
      index_t found = 0;
      for (index_t i = half * period / 2; i < (half + 1) * period / 2; ++i) {
        bool const right = actual[i] == expected_[static_cast<std::size_t>(i)];
        found += right || (!complete && actual[i] == unwritten) ? 0 : 1;
      }
      wrong[static_cast<std::size_t>(half)] = found;
    };
    pool.run(
        2, [](void* self, index_t half) { (*static_cast<decltype(count) const*>(self))(half); },
        const_cast<void*>(static_cast<void const*>(&count)));
    wrong_ += wrong[0] + wrong[1];
  }

  index_t rows_, cols_;
  memory_file codes_{period};
  memory_file numbers_{2 * period};
  std::vector<std::uint16_t> expected_ = std::vector<std::uint16_t>(period);
  address_range values_, output_;
  std::vector<float> scales_;
  std::vector<row_range> windows_;
  std::vector<std::unique_ptr<memory_file>> window_codes_, window_numbers_;
  index_t wrong_ = 0;
};

constexpr index_t two_30 = index_t{1} << 30;
constexpr index_t two_31 = index_t{1} << 31;
constexpr index_t two_32 = index_t{1} << 32;

TEST(huge_dequantize, a_stack_of_1048576_x_6144) {
  on_huge_memory([] {
    index_t const rows = 1048576;
    repeated_matrix matrix(rows, 6144, {0, two_30, two_31, two_32, rows * 6144});
    ASSERT_EQ(matrix.windows(), 5U);
    matrix.run();
    matrix.check_windows();
  });
}

TEST(huge_dequantize, a_stack_of_400000_x_6144) {
  on_huge_memory([] {
    index_t const rows = 400000;
    repeated_matrix matrix(rows, 6144, {0, two_30, two_31, rows * 6144});
    ASSERT_EQ(matrix.windows(), 4U);
    matrix.run();
    matrix.check_windows();
  });
}

/// Slices of a matrix whose values and scales have more than 2^32 elements each: where the slice
/// begins is a product that 32 bits cannot hold.
TEST(huge_dequantize, slices_of_values_and_scales_past_2_32_elements) {
  on_huge_memory([] {
    index_t const rows = (index_t{1} << 23) + 3;
    index_t const cols = 1024;
    // One e8m0 scale for every two values: 2^32 of them, too, in rows of 512.
    address_range values(rows * cols), scales(rows * cols / 2);
    tensor_view const all_values =
        tensor_view::contiguous(values.data(), dtype::e4m3, {rows, cols});
    tensor_view const all_scales =
        tensor_view::contiguous(scales.data(), dtype::e8m0, {rows, cols / 2});
    for (index_t const row :
         {index_t{0}, two_31 / cols - 1, two_31 / cols, two_32 / cols - 1, two_32 / cols,
          two_32 / (cols / 2) - 1, two_32 / (cols / 2), rows - 1}) {
      for (index_t col = 0; col < cols; ++col) {
        values.data<std::uint8_t>()[row * cols + col] = code_named(row, col);
        scales.data<std::uint8_t>()[row * (cols / 2) + col / 2] =
            static_cast<std::uint8_t>(127 + name_of(row, col / 2) % 4);
      }
      quantized_view const q =
          quantized_view::scaled(all_values.slice(0, row, row + 1),
                                 all_scales.slice(0, row, row + 1), granularity::group(2));
      test_tensor out(dtype::bf16, {1, cols});
      dequantize({.q = q, .out = out}, cpu_stream());
      for (index_t col = 0; col < cols; ++col) {
        float const scale = std::ldexp(1.0F, static_cast<int>(name_of(row, col / 2) % 4));
        ASSERT_EQ(out.code(0, col), expected_bf16(code_named(row, col), scale))
            << "row " << row << ", col " << col;
      }
    }
  });
}

/// One row of `cols` columns, near 2^31: here it is the number of the column that reaches the
/// limit, and a count that is rounded up on the way may pass it before the columns do.
void check_row(index_t cols) {
  constexpr index_t margin = 65536;
  memory_file codes(509 * page_bytes), numbers(2 * codes.bytes()), window(2 * margin * 2);
  address_range values(two_31 + margin), output((two_31 + margin) * 2);
  values.repeat(codes);
  output.repeat(numbers);
  output.map((two_31 - margin) * 2, window.bytes(), window);
  for (index_t i = 0; i < codes.bytes(); ++i) codes.data<std::uint8_t>()[i] = code_named(-1, i);
  std::fill_n(numbers.data<std::uint16_t>(), codes.bytes(), unwritten);
  std::fill_n(window.data<std::uint16_t>(), 2 * margin, unwritten);
  float scale = 2.0F;
  cpu_pool threads(2);
  page_forgetter const forget({&values, &output});
  dequantize({.q = quantized_view::scaled(
                  tensor_view::contiguous(values.data(), dtype::e4m3, {1, cols}),
                  tensor_view::contiguous(&scale, dtype::f32, {1, 1}), granularity::tensor()),
              .out = tensor_view::contiguous(output.data(), dtype::bf16, {1, cols})},
             cpu_stream(&threads));
  auto const expected = [&](index_t col) {
    return expected_bf16(codes.data<std::uint8_t>()[col % codes.bytes()], scale);
  };
  for (index_t col = two_31 - margin; col < two_31 + margin; ++col) {
    ASSERT_EQ(output.data<std::uint16_t>()[col], col < cols ? expected(col) : unwritten)
        << "col " << col;
  }
  for (index_t i = 0; i < codes.bytes(); ++i) {
    ASSERT_EQ(numbers.data<std::uint16_t>()[i], expected(i)) << "place " << i;
  }
}

TEST(huge_dequantize, a_row_of_2_31_columns_less_one) {
  on_huge_memory([] { check_row(two_31 - 1); });
}
TEST(huge_dequantize, a_row_of_2_31_columns) {
  on_huge_memory([] { check_row(two_31); });
}
TEST(huge_dequantize, a_row_of_2_31_columns_and_one) {
  on_huge_memory([] { check_row(two_31 + 1); });
}

}  // namespace
}  // namespace moe64::test
