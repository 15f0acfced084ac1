// Stacks of experts as large as real ones on the GPU: every number of dequantize, and every expert
// of grouped_gemm on integers, bit by bit as on the CPU; a layer against the oracle.
#include "cases/problem_case.hpp"
#include "huge_cuda/big_call.hpp"
#include "moe64/ops.hpp"

#include <string>
#include <vector>

namespace moe64::test {
namespace {

using cases::purpose;

void run_dequantize(dequantize_args const& args, stream where) { dequantize(args, where); }
void run_gemm(grouped_gemm_args const& args, stream where) { grouped_gemm(args, where); }

// ---- dequantize ---------------------------------------------------------------------------------

struct stack_shape {
  std::string name;
  index_t experts, rows, cols;
};

class huge_dequantize : public testing::TestWithParam<stack_shape> {};

TEST_P(huge_dequantize, in_blocks_of_128) {
  stack_shape const& s = GetParam();
  MOE64_NEEDS(s.experts * s.rows * s.cols * 3);
  big_call call;
  granularity const layout = granularity::block(128, 128);
  tensor_view const codes =
      call.memory.tensor("codes", purpose::input, dtype::e4m3, {s.experts, s.rows, s.cols});
  tensor_view const scales =
      call.memory.tensor("scales", purpose::input, dtype::f32,
                         {s.experts, layout.grid_rows(s.rows), layout.grid_cols(s.cols)});
  call.fill(codes, [&](index_t i) {
    std::uint64_t const bits = big_call::hash(i);
    return bits & ~((bits & 0x4040404040404040U) >> 6);  // large codes are even: never 0x7f
  });
  call.fill(scales, [](index_t i) {  // two of [1, 2)
    return (big_call::hash(i) & 0x007fffff007fffffU) | 0x3f8000003f800000U;
  });
  dequantize_args args;
  args.q = quantized_view::scaled(codes, scales, layout);
  args.out = call.memory.tensor("out", purpose::output, dtype::bf16, {s.experts, s.rows, s.cols});
  call.expect_the_bits_of_the_cpu(args, run_dequantize);
}

INSTANTIATE_TEST_SUITE_P(of, huge_dequantize,
                         testing::Values(stack_shape{"glm52_gate_up", 256, 4096, 6144},
                                         stack_shape{"one_matrix_of_400000_rows", 1, 400'000,
                                                     6144}),
                         [](auto const& given) { return given.param.name; });

// ---- grouped_gemm -------------------------------------------------------------------------------

/// -1, 0 and 1 in bf16, four to a word; sums of them are exact.
std::uint64_t signs_bf16(index_t i) {
  std::uint64_t const bits = big_call::hash(i);
  std::uint64_t word = 0;
  for (int n = 0; n < 4; ++n) {
    std::uint64_t const draw = bits >> (8 * n) & 3;
    word |= (draw == 0 ? 0x3f80U : draw == 1 ? std::uint64_t{0xbf80} : 0U) << (16 * n);
  }
  return word;
}
/// The same in e4m3, eight to a word.
std::uint64_t signs_e4m3(index_t i) {
  std::uint64_t const bits = big_call::hash(i);
  std::uint64_t word = 0;
  for (int n = 0; n < 8; ++n) {
    std::uint64_t const draw = bits >> (4 * n) & 3;
    word |= (draw == 0 ? 0x38U : draw == 1 ? std::uint64_t{0xb8} : 0U) << (8 * n);
  }
  return word;
}

/// Two rows for every expert and one more for the first.
tensor_view two_rows_each(big_call& call, index_t experts) {
  tensor_view const begin =
      call.memory.tensor("expert_begin", purpose::input, dtype::int64, {experts + 1});
  for (index_t e = 0; e <= experts; ++e) {
    static_cast<index_t*>(begin.data)[e] = e == 0 ? 0 : 2 * e + 1;
  }
  return begin;
}

/// x by one stack, every expert of it.
struct stack_call {
  stack_shape shape;
  dtype type;

  void check(bool transpose) const {
    index_t const rows = 2 * shape.experts + 1;
    big_call call;
    tensor_view const values = call.memory.tensor("weights", purpose::input, type,
                                                  {shape.experts, shape.rows, shape.cols});
    grouped_gemm_args args;
    if (type == dtype::bf16) {
      call.fill(values, signs_bf16);
      args.weights = weight_stack::single(quantized_view::plain(values));
    } else {
      granularity const layout = granularity::block(128, 128);
      tensor_view const scales = call.memory.tensor(
          "scales", purpose::input, dtype::f32,
          {shape.experts, layout.grid_rows(shape.rows), layout.grid_cols(shape.cols)});
      call.fill(values, signs_e4m3);
      call.fill(scales, [](index_t i) {  // 1 or 2
        return 0x3f8000003f800000U + (big_call::hash(i) & 0x0080000000800000U);
      });
      args.weights = weight_stack::single(quantized_view::scaled(values, scales, layout));
    }
    tensor_view const x = call.memory.tensor("x", purpose::input, dtype::bf16,
                                             {rows, transpose ? shape.rows : shape.cols});
    call.fill(x, signs_bf16);
    args.x = quantized_view::plain(x);
    args.expert_begin = two_rows_each(call, shape.experts);
    args.transpose = transpose;
    args.y = call.memory.tensor("y", purpose::output, dtype::f32,
                                {rows, transpose ? shape.cols : shape.rows});
    call.expect_the_bits_of_the_cpu(args, run_gemm);
  }
};

class huge_gemm : public testing::TestWithParam<stack_call> {};

TEST_P(huge_gemm, every_expert) {
  stack_shape const& s = GetParam().shape;
  MOE64_NEEDS(s.experts * s.rows * s.cols * bits(GetParam().type) / 8);
  GetParam().check(false);
}

TEST_P(huge_gemm, every_expert_transposed) {
  stack_shape const& s = GetParam().shape;
  MOE64_NEEDS(s.experts * s.rows * s.cols * bits(GetParam().type) / 8);
  GetParam().check(true);
}

INSTANTIATE_TEST_SUITE_P(
    of, huge_gemm,
    testing::Values(stack_call{{"glm52_gate_up_e4m3", 256, 4096, 6144}, dtype::e4m3},
                    stack_call{{"deepseek_v4_flash_2_31_e4m3", 256, 4096, 2048}, dtype::e4m3},
                    stack_call{{"qwen35_397b_2_32_bf16", 512, 2048, 4096}, dtype::bf16},
                    stack_call{{"minimax_m3_bf16", 128, 6144, 6144}, dtype::bf16}),
    [](auto const& given) { return given.param.shape.name; });

/// gate and up of inter 1280 to 3072 in one buffer: stacks on both sides of 4 GiB.
TEST(huge_gemm_sweep, inter_across_4_gib) {
  index_t const experts = 128, hidden = 6144, most = 3072, rows = 2 * experts + 1;
  MOE64_NEEDS(experts * 2 * most * hidden * 2);
  big_call call;
  tensor_view const all =
      call.memory.tensor("weights", purpose::input, dtype::bf16, {experts, 2 * most, hidden});
  call.fill(all, signs_bf16);
  tensor_view const x = call.memory.tensor("x", purpose::input, dtype::bf16, {rows, hidden});
  call.fill(x, signs_bf16);
  tensor_view const begin = two_rows_each(call, experts);
  tensor_view const y = call.memory.tensor("y", purpose::output, dtype::f32, {rows, 2 * most});
  for (index_t const inter : {1280, 1365, 1366, 1408, 1536, 2048, 2730, 2731, 3072}) {
    SCOPED_TRACE(inter);
    tensor_view const fused =
        tensor_view::contiguous(all.data, dtype::bf16, {experts, 2 * inter, hidden}, all.device);
    per_part const parts = split_gate_up(fused, gate_up_layout::concatenated);
    grouped_gemm_args args;
    args.weights =
        weight_stack::gate_up(quantized_view::plain(parts[0]), quantized_view::plain(parts[1]));
    args.x = quantized_view::plain(x);
    args.expert_begin = begin;
    args.y = tensor_view::contiguous(y.data, dtype::f32, {rows, 2 * inter}, y.device);
    call.expect_the_bits_of_the_cpu(args, run_gemm);
  }
}

// ---- the layer ----------------------------------------------------------------------------------

TEST(huge_layer, minimax_m3_in_bf16) {
  MOE64_NEEDS(index_t{16} << 30);
  big_call call;
  problem const p = parse_problem(
      "tokens=96 hidden=6144 inter=3072 experts=128 top_k=4 weight=bf16 device=cuda:0");
  cases::problem_case c(p, {cases::data_mode::random, &call.pool, -1});
  cases::queue const queue(p.device, nullptr);
  run(c, queue.get());
  auto const found = c.verify(queue.get(), 2e11);
  EXPECT_TRUE(found.ok()) << found.message();
  EXPECT_EQ(found.compared, 96);
}

}  // namespace
}  // namespace moe64::test
