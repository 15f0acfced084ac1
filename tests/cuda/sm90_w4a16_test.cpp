// W4A16 grouped_gemm of sm_90a: the bits of dequantising the weights first, with every kind of
// scales and in every tile.
#include "cuda/mixed_input_fixture.hpp"

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

weight_spec const mx = {dtype::fp4, g::group(32), dtype::e8m0};
weight_spec const nv = {dtype::fp4, g::group(16), dtype::e4m3};

weight_spec dividing(weight_spec spec) {
  spec.global = global_scale::direction::divide;
  return spec;
}
weight_spec interleaved(weight_spec spec) {
  spec.layout = gate_up_layout::interleaved;
  return spec;
}

/// Every run of scales: 1 to 8 of them in 1 to 16 bytes, of one output or of several.
std::vector<weight_spec> const specs{
    mx,
    interleaved(mx),
    nv,
    dividing(nv),
    {dtype::fp4, g::group(32), dtype::f32},
    {dtype::fp4, g::group(16), dtype::bf16},
    {dtype::fp4, g::tensor(), dtype::f32},
    {dtype::int4, g::group(32), dtype::bf16},
    {dtype::int4, g::group(64), dtype::f16},
    {dtype::int4, g::group(128), dtype::f32},
    {dtype::int4, g::group(256), dtype::bf16},
    {dtype::int4, g::row(), dtype::f32},
    {dtype::int4, g::block(32, 64), dtype::f32},
};

class cuda_four_bits : public test::mixed_input_fixture {};

TEST_F(cuda_four_bits, have_the_bits_of_decoding_first) {
  std::size_t use = 0;
  for (weight_spec const& spec : specs) {
    // Whole runs of scales, and last ones that are cut off: 14, 13, 5 and 6 groups of 32.
    for (index_t const cols : {448, 416, 160, 192}) {
      for (auto const& counts : row_counts) {
        dtype const io = use % 4 == 3 ? dtype::f16 : dtype::bf16;
        bool const parts = spec.layout == gate_up_layout::interleaved || use % 5 != 0;
        SCOPED_TRACE(test::to_string(spec) + " " + std::string(name(io)) + " " +
                     std::to_string(cols));
        gemm_call const call(spec, {parts ? 2 : 1, 328, cols}, counts, io, content::random,
                             {false, use % 3 == 0, use % 7 == 0 ? 16 : 0});
        ++use;
        std::vector<double> const y = run(call.args, "sm90_w4a16");
        EXPECT_EQ(difference(y, by_decoded(call, "sm80_mma")), "");
        EXPECT_EQ(difference(y, run(call.args, "sm80_mma")), "");
      }
    }
  }
}

TEST_F(cuda_four_bits, exact_inputs_are_exact) {
  std::size_t use = 0;
  for (auto const& [rows, cols] : std::vector<std::pair<index_t, index_t>>{
           {192, 2560}, {320, 2880}, {704, 128}, {2880, 32}, {33, 704}, {1, 2048}, {257, 160}}) {
    for (weight_spec const& spec : {mx, nv, weight_spec{dtype::int4, g::group(32), dtype::bf16}}) {
      SCOPED_TRACE(test::to_string(spec) + " " + std::to_string(rows) + " x " +
                   std::to_string(cols));
      dtype const io = use % 5 == 4 ? dtype::f16 : dtype::bf16;
      expect_as_cpu({spec,
                     {2, rows, cols},
                     row_counts[use % row_counts.size()],
                     io,
                     content::integers,
                     {false, use % 2 == 0, 0}});
      ++use;
    }
  }
}

TEST_F(cuda_four_bits, every_number_of_rows) { expect_every_number_of_rows(mx, 160); }

TEST_F(cuda_four_bits, rings_go_round_many_times) {
  for (weight_spec const& spec : {mx, nv, weight_spec{dtype::int4, g::group(128), dtype::bf16}}) {
    expect_rings_go_round(spec, {1, 1024, 1792});
  }
}

TEST_F(cuda_four_bits, scales_that_are_no_numbers_stay_where_they_are) {
  for (auto const& counts : row_counts) {
    gemm_call call(mx, {1, 200, 416}, counts, dtype::bf16, content::random, {});
    constexpr std::uint64_t nan = 0xff;
    call.weights.scales.set_code(nan, 1, 70, 12);
    call.weights.scales.set_code(nan, 2, 199, 0);
    std::vector<double> const y = run(call.args, "sm90_w4a16");
    EXPECT_EQ(difference(y, run(call.args, "sm80_mma")), "");
  }
}

TEST_F(cuda_four_bits, a_row_has_the_same_bits_in_every_size_of_tiles) {
  for (weight_spec const& spec : {mx, nv}) {
    gemm_call const large(spec, {2, 320, 416}, {350, 90, 129}, dtype::bf16, content::random, {});
    std::vector<double> const all = run(large.args, "sm90_w4a16");
    index_t const outs = large.args.y.extent[1];
    for (index_t const capacity : {20, 100, 350}) {
      // The first rows of the first expert alone.
      test_tensor const begin = test::make_expert_begin({capacity, 0, 0});
      test_tensor const y(dtype::bf16, {capacity, outs});
      grouped_gemm_args args = large.args;
      args.x = quantized_view::plain(tensor_view(large.x).slice(0, 0, capacity));
      args.expert_begin = begin;
      args.y = y;
      std::vector<double> const now = run(args, "sm90_w4a16");
      EXPECT_EQ(difference(now, {all.begin(), all.begin() + capacity * outs}), "") << capacity;
    }
  }
}

TEST_F(cuda_four_bits, what_is_not_taken_is_said) {
  auto const reason = [](weight_spec const& spec, index_t cols, bool transpose) {
    gemm_call const call(spec, {1, 256, cols}, {3}, dtype::bf16, content::integers,
                         {transpose, false, 0});
    return answer(call.args).reason();
  };
  for (weight_spec const& spec : specs) EXPECT_EQ(reason(spec, 256, false), "");
  EXPECT_NE(reason(mx, 256, true), "");   // transposed
  EXPECT_NE(reason(mx, 144, false), "");  // rows of 72 bytes
  EXPECT_NE(reason({dtype::int4, g::group(48)}, 192, false), "");
  EXPECT_NE(reason({dtype::int4, g::group(192)}, 384, false), "");
  EXPECT_NE(reason({dtype::fp4, g::group(16), dtype::f32}, 256, false), "");  // 32 bytes per run
}

}  // namespace
}  // namespace moe64
