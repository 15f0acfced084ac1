// W8A16 grouped_gemm of sm_90a: the bits of dequantising the weights first, in every tile.
#include "cuda/mixed_input_fixture.hpp"

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using g = granularity;
using test::content;
using test::difference;
using test::gemm_call;
using test::row_counts;
using test::test_tensor;
using test::weight_spec;

weight_spec const blocks = test::e4m3_blocks;

class cuda_sm90_w8a16 : public test::mixed_input_fixture {};

/// body(spec, counts, io, use) for every granularity, type of scales and number of rows; `use`
/// counts.
template <class Body>
void for_each_use(std::initializer_list<g> granularities, Body const& body) {
  std::size_t use = 0;
  for (g const scale : granularities) {
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::e8m0}) {
      for (auto const& counts : row_counts) {
        dtype const io = use % 4 == 3 ? dtype::f16 : dtype::bf16;
        weight_spec const spec = {dtype::e4m3, scale, type};
        SCOPED_TRACE(test::to_string(spec) + " " + std::string(name(io)));
        body(spec, counts, io, use++);
      }
    }
  }
}

TEST_F(cuda_sm90_w8a16, has_the_bits_of_decoding_first) {
  for_each_use({g::block(128, 128), g::row(), g::tensor(), g::block(256, 128)},
               [&](weight_spec const& spec, auto const& counts, dtype io, std::size_t use) {
                 gemm_call const call(spec, {use % 5 == 0 ? 1 : 2, 320, 432}, counts, io,
                                      content::random, {false, use % 3 == 0, 0});
                 std::vector<double> const y = run(call.args, "sm90_w8a16");
                 EXPECT_EQ(difference(y, by_decoded(call, "sm90_bf16")), "");
                 EXPECT_EQ(difference(y, run(call.args, "sm80_mma")), "");
               });
}

TEST_F(cuda_sm90_w8a16, transposed_has_the_bits_of_decoding_first) {
  for_each_use({g::block(128, 128), g::row(), g::tensor(), g::block(128, 256)},
               [&](weight_spec const& spec, auto const& counts, dtype io, std::size_t use) {
                 gemm_call const call(spec, {use % 5 == 0 ? 1 : 2, 328, 304}, counts, io,
                                      content::random, {true, false, use % 3 == 0 ? 16 : 0});
                 std::vector<double> const y = run(call.args, "sm90_w8a16");
                 EXPECT_EQ(difference(y, by_decoded(call, "sm80_mma")), "");
                 EXPECT_EQ(difference(y, run(call.args, "sm80_mma")), "");
               });
}

TEST_F(cuda_sm90_w8a16, low_rank_terms_have_the_bits_of_mma) {
  std::size_t use = 0;
  for (index_t const rank : {8, 16, 24, 64, 72, 128, 136, 200}) {
    for (auto const& counts : row_counts) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE("rank " + std::to_string(rank) + (transpose ? " transposed" : ""));
        dtype const io = use % 4 == 3 ? dtype::f16 : dtype::bf16;
        gemm_call call(blocks, {use++ % 3 == 0 ? 1 : 2, 200, 176}, counts, io, content::random,
                       {transpose, !transpose && use % 2 == 0, rank});
        EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
        if (io != dtype::bf16) continue;
        int const parts = transpose ? 1 : call.args.weights.parts();
        test::test_weights const exact =
            transpose ? test::make_weights({dtype::f32}, std::ssize(counts), 1, rank, 176,
                                           content::random, use)
                      : test::make_weights({dtype::f32}, std::ssize(counts), parts, 200, rank,
                                           content::random, use);
        call.args.low_rank.weights = exact.stack;
        EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
      }
    }
  }
}

TEST_F(cuda_sm90_w8a16, a_low_rank_term_of_rank_0_is_none) {
  gemm_call call(blocks, {1, 200, 176}, {70, 9}, dtype::bf16, content::random, {false, false, 8});
  call.args.low_rank.u = call.args.low_rank.u.slice(1, 0, 0);
  test::test_weights const none =
      test::make_weights({dtype::bf16}, 2, 1, 200, 0, content::random, 3);
  call.args.low_rank.weights = none.stack;
  EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
}

TEST_F(cuda_sm90_w8a16, exact_inputs_are_exact) {
  std::size_t use = 0;
  for (auto const& [inter, hidden] : std::vector<std::pair<index_t, index_t>>{
           {192, 2560}, {320, 2880}, {704, 128}, {2880, 16}, {33, 704}, {1, 2048}, {257, 144}}) {
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(std::to_string(inter) + " x " + std::to_string(hidden));
      dtype const io = use % 5 == 4 ? dtype::f16 : dtype::bf16;
      expect_as_cpu({blocks,
                     {2, inter, hidden},
                     row_counts[use % row_counts.size()],
                     io,
                     content::integers,
                     {false, use % 2 == 0, 0}});
      ++use;
    }
  }
}

TEST_F(cuda_sm90_w8a16, exact_inputs_are_exact_transposed) {
  std::size_t use = 0;
  for (auto const& [inter, hidden] : std::vector<std::pair<index_t, index_t>>{
           {192, 2560}, {320, 2880}, {704, 128}, {2880, 16}, {40, 704}, {8, 2048}, {264, 144}}) {
    for (int const parts : {1, 2}) {
      SCOPED_TRACE(std::to_string(inter) + " x " + std::to_string(hidden));
      dtype const io = use % 5 == 4 ? dtype::f16 : dtype::bf16;
      expect_as_cpu({use % 3 == 1 ? weight_spec{dtype::e4m3, g::row()} : blocks,
                     {parts, inter, hidden},
                     row_counts[use % row_counts.size()],
                     io,
                     content::integers,
                     {true, false, use % 2 == 0 ? 8 : 0}});
      ++use;
    }
  }
}

TEST_F(cuda_sm90_w8a16, every_number_of_rows) { expect_every_number_of_rows(blocks, 144); }

TEST_F(cuda_sm90_w8a16, every_number_of_rows_with_a_low_rank_term) {
  for (index_t const others : {0, 40, 100}) {
    for (index_t rows = 1; rows <= 600; rows += rows < 20 ? 1 : 13) {
      for (bool const transpose : {false, true}) {
        SCOPED_TRACE(rows);
        gemm_call const call(blocks, {1, 136, 144}, {rows, others}, dtype::bf16, content::random,
                             {transpose, false, 16});
        EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
      }
    }
  }
}

TEST_F(cuda_sm90_w8a16, any_number_of_experts) {
  for (index_t const experts : {1, 2, 257, 512, 896, 1025}) {
    std::vector<index_t> counts;
    for (index_t e = 0; e < experts; ++e) counts.push_back(e % 7 == 3 ? e % 40 : e % 3);
    SCOPED_TRACE(experts);
    expect_as_cpu({blocks, {1, 24, 48}, counts, dtype::bf16, content::integers, {}});
  }
}

TEST_F(cuda_sm90_w8a16, rings_go_round_many_times) {
  for (auto const& [scale, transpose] :
       {std::pair{g::block(128, 128), false}, {g::row(), false}, {g::row(), true}}) {
    expect_rings_go_round({dtype::e4m3, scale}, {2, 2048, 2048}, transpose);
  }
}

/// Tiles of one stage to four, many of them one after the other in each CTA: y of the one before is
/// still in a stage when the next has no others left.
TEST_F(cuda_sm90_w8a16, short_tiles_whose_y_lies_in_their_last_stage) {
  for (std::vector<index_t> const& counts : {std::vector<index_t>{64, 33, 40, 47, 8, 61},
                                             {160, 129, 140, 33, 155, 97},
                                             {288, 300, 130, 600, 257, 16}}) {
    for (index_t const cols : {16, 144}) {
      for (index_t const rank : {0, 264}) {
        SCOPED_TRACE(std::to_string(cols) + " along k, rank " + std::to_string(rank));
        gemm_call const call(blocks, {1, 9'000, cols}, counts, dtype::bf16, content::random,
                             {false, true, rank});
        EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
      }
    }
  }
}

TEST_F(cuda_sm90_w8a16, more_blocks_along_k_than_one_chunk_of_scales) {
  for (g const scale : {g::block(128, 128), g::row()}) {
    for (auto const& counts : std::vector<std::vector<index_t>>{{9, 3}, {70, 1}}) {
      gemm_call const call({dtype::e4m3, scale}, {1, 160, 33'008}, counts, dtype::bf16,
                           content::random, {});
      EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
    }
  }
}

TEST_F(cuda_sm90_w8a16, a_row_has_the_same_bits_in_every_size_of_tiles) {
  gemm_call const batch(blocks, {2, 320, 432}, {350, 40, 129}, dtype::bf16, content::random, {});
  std::vector<double> const all = run(batch.args, "sm90_w8a16");
  index_t const outs = batch.args.y.extent[1];
  for (index_t const row : {0, 127, 128, 143, 144, 349}) {
    for (index_t const others : {0, 30, 90}) {
      // The row first, and rows of the other experts: with them tiles are larger.
      test_tensor const begin = test::make_expert_begin({1, others, others});
      test_tensor x(dtype::bf16, {1 + 2 * others, 432});
      for (index_t r = 0; r < 1 + 2 * others; ++r) {
        for (index_t c = 0; c < 432; ++c) x.set(batch.x.get(r == 0 ? row : r, c), r, c);
      }
      test_tensor const y(dtype::bf16, {1 + 2 * others, outs});
      grouped_gemm_args args = batch.args;
      args.x = quantized_view::plain(x);
      args.expert_begin = begin;
      args.y = y;
      std::vector<double> const now = run(args, "sm90_w8a16");
      auto const first = all.begin() + row * outs;
      EXPECT_EQ(difference({now.begin(), now.begin() + outs}, {first, first + outs}), "")
          << row << " among " << others;
    }
  }
}

TEST_F(cuda_sm90_w8a16, codes_and_scales_that_are_no_numbers_stay_where_they_are) {
  for (auto const& counts : row_counts) {
    gemm_call call({dtype::e4m3, g::row()}, {1, 200, 432}, counts, dtype::bf16, content::random,
                   {});
    constexpr std::uint64_t nan = 0x7f;
    call.weights.values.set_code(nan, 1, 70, 431);
    call.weights.scales.set(std::numeric_limits<double>::infinity(), 2, 199, 0);
    EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), by_decoded(call, "sm90_bf16")), "");
  }
}

TEST_F(cuda_sm90_w8a16, what_is_no_number_stays_where_it_is_transposed) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (auto const& counts : row_counts) {
    // 200 along k of each part: behind it, in the same box, the other part begins.
    gemm_call call({dtype::e4m3, g::row()}, {2, 200, 432}, counts, dtype::bf16, content::random,
                   {true, false, 8});
    constexpr std::uint64_t nan = 0x7f;
    call.weights.values.set_code(nan, 1, 399, 431);
    call.weights.scales.set(infinity, 2, 199, 0);
    call.x.set(infinity, 3, 200);
    call.x.set(std::numeric_limits<double>::quiet_NaN(), 5, 199);
    EXPECT_EQ(difference(run(call.args, "sm90_w8a16"), run(call.args, "sm80_mma")), "");
  }
}

/// y in rows that are so far apart, and nothing behind them.
void expect_in_rows(gemm_call const& call, index_t stride) {
  test_tensor const y(dtype::bf16, {call.args.y.extent[0], call.args.y.extent[1]}, {stride, 1});
  grouped_gemm_args args = call.args;
  args.y = y;
  args.implementation = "sm90_w8a16";
  auto const expected = test::rounded(test::multiply(args).y, dtype::bf16);
  grouped_gemm(args, test::target());
  EXPECT_EQ(difference(y.numbers(), expected), "") << stride;
}

TEST_F(cuda_sm90_w8a16, strided_results_transposed) {
  for (std::vector<index_t> const& counts : {std::vector<index_t>{9, 4}, {290, 77}}) {
    gemm_call const call(blocks, {1, 200, 208}, counts, dtype::bf16, content::integers,
                         {true, false, 16});
    for (index_t const stride : {208, 216, 211}) expect_in_rows(call, stride);
  }
}

TEST_F(cuda_sm90_w8a16, strided_results) {
  for (std::vector<index_t> const& counts : {std::vector<index_t>{9, 4}, {100, 77}, {290, 77}}) {
    gemm_call const call(blocks, {1, 200, 256}, counts, dtype::bf16, content::integers, {});
    for (index_t const stride : {200, 208, 203}) expect_in_rows(call, stride);
    // What lies behind an odd width is not y, even where rows are aligned.
    gemm_call const odd(blocks, {1, 203, 256}, counts, dtype::bf16, content::integers, {});
    expect_in_rows(odd, 208);
  }
}

TEST_F(cuda_sm90_w8a16, which_low_rank_and_transposed_calls_it_takes) {
  auto const reason = [](gemm_call::shape const& shape, bool transpose, index_t rank) {
    gemm_call const call(blocks, shape, {3}, dtype::bf16, content::integers,
                         {transpose, false, rank});
    return answer(call.args).reason();
  };
  EXPECT_EQ(reason({1, 256, 128}, false, 16), "");
  EXPECT_EQ(reason({1, 256, 128}, true, 0), "");
  EXPECT_EQ(reason({2, 256, 128}, true, 16), "");
  EXPECT_EQ(reason({2, 264, 16}, true, 8), "");
  // u and the second half of x do not begin at multiples of 16 bytes.
  EXPECT_NE(reason({1, 256, 128}, false, 4), "");
  EXPECT_NE(reason({2, 260, 128}, true, 0), "");
}

TEST_F(cuda_sm90_w8a16, what_it_does_not_take_it_says) {
  auto const reason = [](weight_spec const& spec, index_t cols, dtype io) {
    gemm_call const call(spec, {1, 256, cols}, {3}, io, content::integers, {});
    return answer(call.args).reason();
  };
  EXPECT_EQ(reason(blocks, 128, dtype::bf16), "");
  EXPECT_EQ(reason(blocks, 128, dtype::f16), "");
  weight_spec in_first = blocks;
  in_first.in_first = true;
  EXPECT_NE(reason(blocks, 136, dtype::bf16), "");
  EXPECT_NE(reason(blocks, 128, dtype::f32), "");
  EXPECT_NE(reason(in_first, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::bf16}, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::e5m2, g::block(128, 128)}, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::e4m3, g::block(64, 64)}, 128, dtype::bf16), "");
  EXPECT_NE(reason({dtype::int8, g::row()}, 128, dtype::bf16), "");
}

}  // namespace
}  // namespace moe64
