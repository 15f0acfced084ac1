// grouped_gemm of codes on the tensor cores of Hopper: exact inputs bit by bit as the CPU, others
// within what 8-bit products are added with, and a row with the same bits whatever rows are next to
// it.
#include "oracle/oracle.hpp"
#include "support/gemm.hpp"
#include "support/gemm_call.hpp"
#include "support/target.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::gemm_call;
using test::test_tensor;
using test::test_weights;
using test::weight_spec;

weight_spec const x_blocks = {dtype::e4m3, g::group(128)};
weight_spec const weight_blocks = {dtype::e4m3, g::block(128, 128)};

/// A call whose x are codes; rows of x past the last expert are NaN, by code and by scale.
struct codes_call : gemm_call {
  test_weights x_codes;

  codes_call(weight_spec const& x_spec, weight_spec const& spec, shape const& s,
             std::vector<index_t> const& counts, dtype io, content what, bool with_bias = false)
      : gemm_call(spec, s, counts, io, what, {false, with_bias, 0}) {
    index_t const live = std::accumulate(counts.begin(), counts.end(), index_t{0});
    index_t const capacity = x.view().extent[0];
    x_codes = test::make_weights(x_spec, 1, 1, capacity, s.cols, what, 9);
    constexpr std::uint64_t nan = 0x7f;
    for (index_t r = live; r < capacity; ++r) {
      for (index_t c = 0; c < s.cols; ++c) x_codes.values.set_code(nan, 0, r, c);
      if (x_spec.scale.kind == scale_kind::tensor) continue;
      for (index_t c = 0; c < x_codes.scales.view().extent[2]; ++c) {
        x_codes.scales.set(std::nan(""), 0, r, c);
      }
    }
    args.x = x_codes.stack.part(0);
    args.implementation = "sm90_w8a8";
  }
};

class cuda_sm90_gemm : public testing::Test {
 protected:
  [[nodiscard]] static test::target_stream where() { return test::target(); }
  [[nodiscard]] static support answer(grouped_gemm_args const& args) {
    for (implementation_report const& report : explain(args, where())) {
      if (report.name == "sm90_w8a8") return report.answer;
    }
    return support::no("there are no kernels of sm_90a");
  }
  void SetUp() override {
    codes_call call(x_blocks, weight_blocks, {1, 128, 128}, {1}, dtype::bf16, content::integers);
    call.args.implementation = {};
    if (support const can = answer(call.args); !can) GTEST_SKIP() << can.reason();
  }
  static void expect_as_cpu(codes_call const& call) {
    test_tensor const expected(call.args.y.type, {call.args.y.extent[0], call.args.y.extent[1]});
    grouped_gemm_args args = call.args;
    args.y = expected;
    args.implementation = {};
    grouped_gemm(args, cpu_stream());
    grouped_gemm(call.args, where());
    EXPECT_EQ(difference(call.y.numbers(), expected.numbers()), "");
  }
};

/// Average rows that lead to every tile, and counts around their edges. In W8A8 the third and the
/// last two have m192n128 from k = 1024 on, the last of these m192n128_tma_store; for k from 513 to
/// 1,023 the last has m128n192.
std::vector<std::vector<index_t>> const row_counts{{0, 1, 7, 8, 9, 33, 0}, {31, 0, 63, 1, 64},
                                                   {127, 128, 129, 0, 65}, {256, 257, 0, 289},
                                                   {1, 33, 97, 161, 225},  {192, 193, 384, 417}};
index_t const short_k = 656, long_k = 1040;

TEST_F(cuda_sm90_gemm, every_scale_is_exact) {
  std::size_t use = 0;
  for (g const x_scale : {g::group(128), g::row(), g::group(256)}) {
    for (g const scale : {g::block(128, 128), g::row(), g::tensor(), g::block(256, 128)}) {
      for (dtype const type : {dtype::f32, dtype::bf16, dtype::e8m0}) {
        for (std::size_t i = 0; i < 2; ++i) {
          auto const& counts = row_counts[(use + 2 * i) % row_counts.size()];
          dtype const io = use % 4 == 3 ? dtype::f16 : dtype::bf16;
          weight_spec const x_spec = {dtype::e4m3, x_scale, use % 2 == 0 ? dtype::f32 : type};
          weight_spec const spec = {dtype::e4m3, scale, type};
          SCOPED_TRACE(test::to_string(x_spec) + " by " + test::to_string(spec));
          int const parts = use % 5 == 0 ? 1 : 2;
          for (index_t const k : {index_t{272}, short_k, long_k}) {
            expect_as_cpu(
                {x_spec, spec, {parts, 160, k}, counts, io, content::integers, use % 3 == 0});
          }
          ++use;
        }
      }
    }
  }
}

TEST_F(cuda_sm90_gemm, widths_of_models) {
  std::size_t use = 0;
  for (auto const& [inter, hidden] : std::vector<std::pair<index_t, index_t>>{
           {192, 2560}, {320, 2880}, {704, 128}, {2880, 16}, {33, 704}, {1, 2048}, {257, 144}}) {
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(std::to_string(inter) + " x " + std::to_string(hidden));
      expect_as_cpu({x_blocks,
                     weight_blocks,
                     {2, inter, hidden},
                     row_counts[use++ % row_counts.size()],
                     dtype::bf16,
                     content::integers});
    }
  }
}

TEST_F(cuda_sm90_gemm, numbers_have_the_bits_of_the_portable_tensor_core_kernels) {
  for (dtype const io : {dtype::bf16, dtype::f16}) {
    for (auto const& counts : row_counts) {
      gemm_call const call({io}, {2, 320, 432}, counts, io, content::random, {false, true, 0});
      grouped_gemm_args args = call.args;
      args.implementation = "sm80_mma";
      grouped_gemm(args, where());
      std::vector<double> const expected = call.y.numbers();
      args.implementation = "sm90_bf16";
      grouped_gemm(args, where());
      EXPECT_EQ(difference(call.y.numbers(), expected), "") << name(io);
    }
  }
}

TEST_F(cuda_sm90_gemm, numbers_are_exact) {
  for (dtype const io : {dtype::bf16, dtype::f16}) {
    for (auto const& counts : row_counts) {
      gemm_call const call({io}, {2, 160, 264}, counts, io, content::integers, {false, true, 0});
      grouped_gemm_args args = call.args;
      test_tensor const expected(io, {args.y.extent[0], args.y.extent[1]});
      args.y = expected;
      grouped_gemm(args, cpu_stream());
      args.y = call.y;
      args.implementation = "sm90_bf16";
      grouped_gemm(args, where());
      EXPECT_EQ(difference(call.y.numbers(), expected.numbers()), "") << name(io);
    }
  }
}

TEST_F(cuda_sm90_gemm, rings_go_round_many_times) {
  // More stages and tiles than rings have places, so that whoever runs ahead must wait.
  for (auto const& counts : std::vector<std::vector<index_t>>{{9, 1, 30, 8, 17, 2},
                                                              {60, 33, 47, 8, 64, 20},
                                                              {150, 64, 137, 33, 192, 97},
                                                              {300, 260, 137, 64, 272, 545},
                                                              {600, 577, 300, 193},
                                                              {1100, 30, 700, 64, 1, 193, 900}}) {
    for (index_t const k : {index_t{2048}, short_k}) {
      codes_call const call(x_blocks, weight_blocks, {2, 512, k}, counts, dtype::bf16,
                            content::integers);
      grouped_gemm_args args = call.args;
      args.implementation = "reference";
      grouped_gemm(args, where());
      std::vector<double> const expected = call.y.numbers();
      for (int repeat = 0; repeat < 5; ++repeat) {
        test_tensor const y(dtype::bf16, {call.args.y.extent[0], call.args.y.extent[1]});
        args.y = y;
        args.implementation = "sm90_w8a8";
        grouped_gemm(args, where());
        EXPECT_EQ(difference(y.numbers(), expected), "");
      }
    }
  }
}

TEST_F(cuda_sm90_gemm, tiles_taken_from_a_counter_have_the_same_bits) {
  // More tiles than clusters, of all experts and of two, and fewer. Averages, with the rows
  // of no expert, at which tiles have two groups.
  index_t const rows = 2112, k = 2176;  // of codes more than 8 MiB
  for (auto const& counts :
       std::vector<std::vector<index_t>>{{600, 545, 461}, {257, 0, 400}, {200}}) {
    codes_call const call(x_blocks, weight_blocks, {2, rows, k}, counts, dtype::bf16,
                          content::random);
    grouped_gemm(call.args, where());
    std::vector<double> const expected = call.y.numbers();
    test_tensor const memory = test::make_workspace(grouped_gemm_scratch_bytes);
    for (int repeat = 0; repeat < 5; ++repeat) {
      test_tensor const y(dtype::bf16, {call.args.y.extent[0], call.args.y.extent[1]});
      grouped_gemm_args args = call.args;
      args.y = y;
      args.scratch = memory.as_workspace();
      grouped_gemm(args, where());
      EXPECT_EQ(difference(y.numbers(), expected), "");
    }
    // It has counted: at least a tile for each 256 outputs of each part.
    std::vector<double> const bytes = memory.numbers();
    EXPECT_GE(bytes[0] + 256 * bytes[1] + 65536 * bytes[2], 2 * 9);
    EXPECT_EQ(bytes[3], 0);
  }
}

TEST_F(cuda_sm90_gemm, any_number_of_experts) {
  for (index_t const experts : {1, 2, 257, 512, 896, 1025}) {
    std::vector<index_t> counts;
    for (index_t e = 0; e < experts; ++e) counts.push_back(e % 7 == 3 ? e % 40 : e % 3);
    SCOPED_TRACE(experts);
    expect_as_cpu({x_blocks, weight_blocks, {1, 24, 48}, counts, dtype::bf16, content::integers});
  }
}

TEST_F(cuda_sm90_gemm, every_number_of_rows) {
  for (index_t const k : {index_t{144}, long_k}) {
    for (index_t const others : {0, 50, 200, 400}) {
      for (index_t rows = 1; rows <= 300; rows += rows < 20 ? 1 : 13) {
        SCOPED_TRACE(rows);
        expect_as_cpu(
            {x_blocks, weight_blocks, {1, 136, k}, {rows, others}, dtype::bf16, content::integers});
      }
    }
  }
  // m128n192: so many rows that there are those, and outputs of two.
  for (index_t rows = 1; rows <= 300; rows += rows < 20 ? 1 : 13) {
    SCOPED_TRACE(rows);
    std::vector<index_t> const counts = {560, rows, 560};
    expect_as_cpu(
        {x_blocks, weight_blocks, {1, 200, short_k}, counts, dtype::bf16, content::integers});
  }
}

/// What FP8 tensor cores may lose: 32 products and the sum so far are cut to 14 bits of the largest
/// of them. Scales are then exact to f32.
std::vector<double> bound_of(codes_call const& call, test::reference_product const& expected) {
  auto bound = test::rounding_bound(expected, call.terms, call.y.view().type);
  index_t const outs = call.y.view().extent[1], depth = call.terms;
  for (index_t e = 0; e < call.args.weights.experts(); ++e) {
    auto const begin = static_cast<index_t>(oracle::at(call.args.expert_begin, e));
    auto const end = static_cast<index_t>(oracle::at(call.args.expert_begin, e + 1));
    for (index_t row = begin; row < end; ++row) {
      for (index_t n = 0; n < outs; ++n) {
        double lost = 0.0, sum = 0.0;
        for (index_t k = 0; k < depth; k += 32) {
          if (k % 128 == 0) sum = 0.0;
          double largest = std::fabs(sum);
          for (index_t i = k; i < std::min(k + 32, depth); ++i) {
            double const term =
                oracle::at(call.args.x, 0, row, i) * oracle::at(call.args.weights, e, n, i);
            largest = std::max(largest, std::fabs(term));
            sum += term;
          }
          lost += 33 * 0x1p-13 * largest;
        }
        bound[static_cast<std::size_t>(row * outs + n)] += lost;
      }
    }
  }
  return bound;
}

TEST_F(cuda_sm90_gemm, random_numbers_stay_within_the_bound_of_8_bit_products) {
  for (g const scale : {g::block(128, 128), g::row()}) {
    codes_call const call(x_blocks, {dtype::e4m3, scale}, {2, 80, 416}, {9, 1, 0, 40}, dtype::bf16,
                          content::random, true);
    test::reference_product const expected = test::multiply(call.args);
    grouped_gemm(call.args, where());
    EXPECT_EQ(difference(call.y.numbers(), expected.y, bound_of(call, expected)), "");
  }
}

TEST_F(cuda_sm90_gemm, a_row_has_the_same_bits_alone_and_in_a_batch) {
  for (auto const& [x_scale, scale, k, first] :
       {std::tuple{g::group(128), g::block(128, 128), 432, 350},
        {g::group(128), g::block(128, 128), 1168, 350},
        {g::group(128), g::block(128, 128), 784, 750},
        {g::row(), g::row(), 432, 350}}) {
    codes_call const batch({dtype::e4m3, x_scale}, {dtype::e4m3, scale}, {2, 320, k},
                           {first, 40, 129}, dtype::bf16, content::random);
    grouped_gemm(batch.args, where());
    std::vector<double> const all = batch.y.numbers();
    index_t const outs = batch.y.view().extent[1];
    for (index_t const row : {0, 127, 128, first - 1, first, first + 39, first + 40, first + 168}) {
      for (index_t const others : {0, 60, 150}) {
        // The row, and behind it rows of the other experts: with them tiles are larger.
        index_t const expert = row < first ? 0 : row < first + 40 ? 1 : 2;
        std::vector<index_t> counts(3, others);
        counts[static_cast<std::size_t>(expert)] = 1;
        index_t const mine = others * expert;
        index_t const rows = 1 + 2 * others;
        test_tensor const begin = test::make_expert_begin(counts);
        test_tensor values(dtype::e4m3, {rows, k});
        test_tensor scales(dtype::f32, {rows, batch.x_codes.scales.view().extent[2]});
        for (index_t r = 0; r < rows; ++r) {
          index_t const from = r == mine ? row : (r * 7) % 500;
          for (index_t c = 0; c < k; ++c) {
            values.set_code(batch.x_codes.values.code(0, from, c), r, c);
          }
          for (index_t c = 0; c < scales.view().extent[1]; ++c) {
            scales.set(batch.x_codes.scales.get(0, from, c), r, c);
          }
        }
        test_tensor const y(dtype::bf16, {rows, outs});
        grouped_gemm_args args = batch.args;
        args.x = quantized_view::scaled(values, scales, x_scale);
        args.expert_begin = begin;
        args.y = y;
        grouped_gemm(args, where());
        std::vector<double> const now = y.numbers();
        auto const alone = all.begin() + row * outs;
        EXPECT_EQ(difference({now.begin() + mine * outs, now.begin() + (mine + 1) * outs},
                             {alone, alone + outs}),
                  "")
            << row << " among " << others;
      }
    }
  }
}

TEST_F(cuda_sm90_gemm, strided_operands) {
  for (auto const& [counts, k] : {std::pair{std::vector<index_t>{40, 9}, 256},
                                  {std::vector<index_t>{300, 129}, 256},
                                  {std::vector<index_t>{500, 229}, 640},
                                  {std::vector<index_t>{180, 129}, 1152},
                                  {std::vector<index_t>{400, 229}, 1152}}) {
    codes_call const call(x_blocks, weight_blocks, {1, 200, k}, counts, dtype::bf16,
                          content::integers);
    for (auto const& strides : {std::vector<index_t>{200, 1}, {208, 1}, {203, 1}}) {
      test_tensor const y(dtype::bf16, {call.args.y.extent[0], 200}, strides);
      grouped_gemm_args args = call.args;
      args.y = y;
      auto const expected = test::rounded(test::multiply(args).y, dtype::bf16);
      grouped_gemm(args, where());
      EXPECT_EQ(difference(y.numbers(), expected), "");
    }
  }
  // An odd width in rows that are aligned: what is behind it is not y.
  for (index_t const k : {256, 640, 1152}) {
    codes_call const odd(x_blocks, weight_blocks, {1, 203, k}, {400, 229}, dtype::bf16,
                         content::integers);
    test_tensor const y(dtype::bf16, {odd.args.y.extent[0], 203}, {208, 1});
    grouped_gemm_args args = odd.args;
    args.y = y;
    auto const expected = test::rounded(test::multiply(args).y, dtype::bf16);
    grouped_gemm(args, where());
    EXPECT_EQ(difference(y.numbers(), expected), "");
  }
}

// Large tiles copy 4, 2 or 1 scales of a row at a time, as they lie.
TEST_F(cuda_sm90_gemm, scales_of_x_lie_anywhere) {
  for (index_t const cols : {384, 512, 768, 1152, 1280, 2048}) {
    index_t const blocks = cols / 128;
    // Tiles of three groups along 1152 and 1280, of two along the others.
    index_t const first = cols == 1152 || cols == 1280 ? 200 : 300;
    codes_call const call(x_blocks, weight_blocks, {1, 136, cols}, {first, 129, 71}, dtype::bf16,
                          content::integers);
    auto const expected = test::rounded(test::multiply(call.args).y, dtype::bf16);
    index_t const rows = call.args.x.rows();
    for (index_t const more : {0, 1, 2, 4}) {
      for (index_t const from : {0, 1, 2}) {
        test_tensor const memory(dtype::f32, {1, rows, blocks + more + from});
        tensor_view scales = memory;
        scales.extent[2] = blocks;
        scales.data = static_cast<float*>(scales.data) + from;
        for (index_t r = 0; r < rows; ++r) {
          for (index_t k = 0; k < blocks; ++k) {
            static_cast<float*>(scales.data)[r * scales.stride[1] + k] =
                static_cast<float>(call.x_codes.scales.get(0, r, k));
          }
        }
        grouped_gemm_args args = call.args;
        args.x = quantized_view::scaled(args.x.values(), scales, args.x.layout());
        test_tensor const y(dtype::bf16, {rows, 136});
        args.y = y;
        grouped_gemm(args, where());
        EXPECT_EQ(difference(y.numbers(), expected), "")
            << cols << " numbers, " << more << " behind and " << from << " before the scales";
      }
    }
  }
}

TEST_F(cuda_sm90_gemm, what_it_does_not_take_it_says) {
  auto const reason = [](weight_spec const& x_spec, weight_spec const& spec, index_t cols,
                         dtype io) {
    codes_call const call(x_spec, spec, {1, 256, cols}, {3}, io, content::integers);
    grouped_gemm_args args = call.args;
    args.implementation = {};
    return answer(args).reason();
  };
  EXPECT_EQ(reason(x_blocks, weight_blocks, 128, dtype::bf16), "");
  weight_spec in_first = weight_blocks;
  in_first.in_first = true;
  EXPECT_NE(reason(x_blocks, weight_blocks, 136, dtype::bf16), "");
  EXPECT_NE(reason(x_blocks, weight_blocks, 128, dtype::f32), "");
  EXPECT_NE(reason(x_blocks, in_first, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::e4m3, g::group(64)}, weight_blocks, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::e5m2, g::group(128)}, weight_blocks, 128, dtype::bf16), "");
  EXPECT_NE(reason(x_blocks, {dtype::e4m3, g::block(64, 64)}, 128, dtype::bf16), "");
  EXPECT_NE(reason(x_blocks, {dtype::int8, g::row()}, 128, dtype::bf16), "");
}

}  // namespace
}  // namespace moe64
