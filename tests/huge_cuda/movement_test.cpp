// gather, combine, plan, quantize and activate past 2^31 and 2^32 elements on the GPU.
#include "huge_cuda/big_call.hpp"
#include "moe64/ops.hpp"

#include <string>

namespace moe64::test {
namespace {

using cases::purpose;

/// bf16 numbers below 2 in size: the highest bit of the exponent is never set.
constexpr std::uint64_t large_bf16 = 0x4000400040004000U;

struct shape {
  std::string name;
  index_t tokens, top_k, hidden;

  [[nodiscard]] index_t rows() const { return tokens * top_k; }
};

/// A plan of `s.rows()` slots over 64 experts, some of them empty, by the CPU's own plan.
routing_plan make_plan(big_call& call, shape const& s) {
  constexpr index_t experts = 64;
  index_t const bytes = plan_bytes(s.tokens, s.top_k, experts);
  workspace const lent{call.memory.allocate("plan", purpose::input, bytes), bytes, device::cpu()};
  tensor_view ids = call.memory.tensor("ids", purpose::input, dtype::int32, {s.tokens, s.top_k});
  tensor_view weights =
      call.memory.tensor("weights", purpose::input, dtype::f32, {s.tokens, s.top_k});
  for (index_t slot = 0; slot < s.rows(); ++slot) {
    std::uint64_t const bits = big_call::hash(slot);
    static_cast<std::int32_t*>(ids.data)[slot] = static_cast<std::int32_t>(bits % 67) - 1;
    static_cast<float*>(weights.data)[slot] = static_cast<float>(bits >> 48) * 0x1p-16F;
  }
  for (index_t slot = 0; slot < s.rows(); ++slot) {
    std::int32_t& id = static_cast<std::int32_t*>(ids.data)[slot];
    if (id > 64) id = 7;
  }
  plan_args args;
  args.expert_ids = ids;
  args.weights = weights;
  args.expert_ids.device = args.weights.device = device::cpu();
  args.experts_total = experts;
  args.plan = bind_plan(lent, s.tokens, s.top_k, experts);
  index_t const scratch = plan_scratch_bytes(s.tokens, s.top_k, experts, device::cpu());
  cpu_buffer const memory(scratch);
  args.scratch = memory.memory();
  plan(args, cpu_stream(&call.pool));
  routing_plan result = args.plan;
  for (tensor_view* tensor : {&result.expert_begin, &result.row_to_slot, &result.slot_to_row,
                              &result.slot_weight, &result.status}) {
    tensor->device = device::cuda(0);
  }
  return result;
}

class huge_movement : public testing::TestWithParam<shape> {};

TEST_P(huge_movement, gather) {
  shape const& s = GetParam();
  MOE64_NEEDS((s.tokens + s.rows()) * s.hidden * 2);
  big_call call;
  gather_args args;
  args.plan = make_plan(call, s);
  args.x = call.memory.tensor("x", purpose::input, dtype::bf16, {s.tokens, s.hidden});
  args.rows = call.memory.tensor("rows", purpose::output, dtype::bf16, {s.rows(), s.hidden});
  call.fill_bits(args.x, 0);
  call.fill(args.rows, [](index_t) { return ~std::uint64_t{0}; });  // as the device begins
  call.expect_the_bits_of_the_cpu(args, [](auto const& a, stream where) { gather(a, where); });
}

TEST_P(huge_movement, combine) {
  shape const& s = GetParam();
  MOE64_NEEDS((s.tokens + s.rows()) * s.hidden * 2);
  big_call call;
  combine_args args;
  args.plan = make_plan(call, s);
  tensor_view const rows =
      call.memory.tensor("rows", purpose::input, dtype::bf16, {s.rows(), s.hidden});
  call.fill_bits(rows, large_bf16);
  args.rows = quantized_view::plain(rows);
  args.weighted = true;
  args.y = call.memory.tensor("y", purpose::output, dtype::bf16, {s.tokens, s.hidden});
  call.expect_the_bits_of_the_cpu(args, [](auto const& a, stream where) { combine(a, where); });
}

INSTANTIATE_TEST_SUITE_P(of, huge_movement,
                         testing::Values(shape{"262144_rows_of_8192", 262144, 1, 8192},
                                         shape{"262145_rows_of_8192", 262145, 1, 8192},
                                         shape{"1050000_rows_of_7168", 131250, 8, 7168}),
                         [](auto const& given) { return given.param.name; });

TEST(huge_numbers, quantize_past_2_32) {
  index_t const rows = 1'050'000, cols = 7168;
  MOE64_NEEDS(rows * cols * 3);
  big_call call;
  quantize_args args;
  args.x = call.memory.tensor("x", purpose::input, dtype::bf16, {rows, cols});
  call.fill_bits(args.x, large_bf16);
  args.layout = granularity::group(128);
  args.values = call.memory.tensor("values", purpose::output, dtype::e4m3, {rows, cols});
  args.scales = call.memory.tensor("scales", purpose::output, dtype::f32, {rows, cols / 128});
  call.expect_the_bits_of_the_cpu(args, [](auto const& a, stream where) { quantize(a, where); });
}

TEST(huge_numbers, activate_past_2_32) {
  index_t const rows = 1'050'000, inter = 2048;
  MOE64_NEEDS(rows * inter * 6);
  big_call call;
  tensor_view const fused =
      call.memory.tensor("gate_up", purpose::input, dtype::bf16, {rows, 2 * inter});
  call.fill_bits(fused, large_bf16);
  activate_args args;
  args.gate = fused.slice(1, 0, inter);
  args.up = fused.slice(1, inter, 2 * inter);
  args.out = call.memory.tensor("out", purpose::output, dtype::bf16, {rows, inter});
  call.expect_the_bits_of_the_cpu(args, [](auto const& a, stream where) { activate(a, where); });
}

TEST(huge_numbers, plan_of_more_than_2_31_slots) {
  index_t const tokens = (index_t{1} << 28) + 1, top_k = 8, experts = 300;
  MOE64_NEEDS(tokens * top_k * 26);
  big_call call;
  plan_args args;
  args.expert_ids = call.memory.tensor("ids", purpose::input, dtype::int32, {tokens, top_k});
  call.fill(args.expert_ids, [](index_t i) {
    std::uint64_t const bits = big_call::hash(i);
    return (bits >> 33) % 300 | ((bits & 0x7fffffffU) % 300) << 32;
  });
  args.experts_total = experts;
  index_t const bytes = plan_bytes(tokens, top_k, experts);
  auto const make = [&](moe64::device where) {
    return bind_plan({call.memory.allocate("plan", purpose::output, bytes), bytes, where}, tokens,
                     top_k, experts);
  };
  args.plan = make(device::cuda(0));
  index_t const scratch = std::max(plan_scratch_bytes(tokens, top_k, experts, device::cuda(0)),
                                   plan_scratch_bytes(tokens, top_k, experts, device::cpu()));
  args.scratch = call.memory.scratch("scratch", scratch);
  call.expect_the_bits_of_the_cpu(args, [](auto const& a, stream where) { plan(a, where); });
}

}  // namespace
}  // namespace moe64::test
