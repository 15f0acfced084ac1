// TMA loads from stacks of more than 2^32 elements: experts at their far end and across 2^31 and
// 2^32, all others NaN.
#include "cuda/hopper_layer.hpp"
#include "huge_cuda/big_call.hpp"

#include <array>
#include <vector>

namespace moe64::test {
namespace {

/// GLM-5.2: 6.4e9 numbers of gate and up.
constexpr index_t all_experts = 256, hidden = 6144, inter = 2048;
constexpr index_t numbers_each = 2 * inter * hidden;
/// Across 2^31, across 2^32, behind it, and the last two.
constexpr std::array<index_t, 5> used = {(index_t{1} << 31) / numbers_each,
                                         (index_t{1} << 32) / numbers_each, 171, 254, 255};
static_assert(used[0] == 85 && used[1] == 170 && (index_t{1} << 32) % numbers_each != 0);

using row_counts = std::array<index_t, used.size()>;
/// Few, some and many rows for each of 256 experts.
constexpr row_counts counts[] = {
    {9, 1, 7, 8, 128}, {1000, 129, 2200, 128, 1000}, {4000, 127, 5000, 1, 3872}};
constexpr index_t most_rows = 13'000;

void multiply(grouped_gemm_args const& args, stream where) { grouped_gemm(args, where); }

/// The numbers of a bf16 tensor of the device.
std::vector<std::uint16_t> numbers_of(tensor_view const& tensor, stream where) {
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(tensor.size()));
  cuda_copy(numbers.data(), tensor.data, std::ssize(numbers) * 2, where);
  cuda_wait(where);
  return numbers;
}

/// A tensor [all_experts, rows, cols] of NaN, with the entries of `some` at the places of `used`.
class spread {
 public:
  spread(tensor_view const& some, stream where)
      : memory_(all_experts * expert_bytes(some), where.device), view_(some) {
    view_.extent[0] = all_experts;
    view_.data = memory_.memory().data;
    cuda_fill(view_.data, 0xff, memory_.memory().bytes, where);
    for (std::size_t i = 0; i < used.size(); ++i) {
      auto* const to = static_cast<std::uint8_t*>(view_.data) + used[i] * expert_bytes(some);
      auto const* const from = static_cast<std::uint8_t const*>(some.data) +
                               static_cast<index_t>(i) * expert_bytes(some);
      cuda_copy(to, from, expert_bytes(some), where);
    }
  }
  [[nodiscard]] tensor_view const& view() const { return view_; }

 private:
  static index_t expert_bytes(tensor_view const& some) {
    return some.stride[0] * bits(some.type) / 8;
  }
  cuda_buffer memory_;
  tensor_view view_;
};

/// The array that the parts of a stack share: the first begins it.
tensor_view fused(tensor_view first) {
  first.extent[1] *= 2;
  return first;
}

class hopper_stack : public testing::TestWithParam<product> {};

TEST_P(hopper_stack, past_2_32_numbers_with_nan_in_every_other_expert) {
  product const kind = GetParam();
  stream const where = target().where;
  if (std::string const lacking = lacks_hopper(kind, where); !lacking.empty()) {
    GTEST_SKIP() << lacking;
  }
  MOE64_NEEDS(all_experts * numbers_each * bits(type_of_weights(kind)) / 8, index_t{1} << 30);
  big_call call;
  product_source const source(call.memory, kind, cases::data_mode::exact, &call.pool);
  grouped_gemm_args args;
  args.weights = source.weights(matrices::gate_up(std::ssize(used), hidden, inter));
  args.implementation = hopper_implementation(kind);
  quantized_view const x = source.x(most_rows, hidden);
  tensor_view const y =
      call.memory.tensor("y", cases::purpose::output, dtype::bf16, {most_rows, 2 * inter});
  std::vector<grouped_gemm_args> few, all;
  for (row_counts const& rows : counts) {
    std::array<index_t, all_experts> places = {};
    index_t live = 0;
    for (std::size_t i = 0; i < used.size(); ++i) {
      places[static_cast<std::size_t>(used[i])] = rows[i];
      live += rows[i];
    }
    args.x = rows_of(x, 0, live);
    args.y = y.slice(0, 0, live);
    args.expert_begin = ranges_of(call.memory, rows);
    few.push_back(args);
    args.expert_begin = ranges_of(call.memory, places);
    all.push_back(args);
  }
  cases::poison(few[0].y, 0, few[0].y.extent[0]);
  call.expect_the_bits_of_the_cpu(few[0], multiply);

  quantized_view const first = call.memory.there(few[0]).weights.part(0);
  spread const values(fused(first.values()), where);
  std::optional<spread> scales;
  if (!first.is_plain()) scales.emplace(fused(first.scales()), where);
  cuda_wait(where);
  weight_stack const whole = stack_on(kind, matrices::gate_up(all_experts, hidden, inter),
                                      values.view(), scales ? scales->view() : tensor_view{});
  auto const multiply_whole = [&](grouped_gemm_args there, stream on) {
    there.weights = whole;
    grouped_gemm(there, on);
  };
  for (std::size_t i = 0; i < few.size(); ++i) {
    SCOPED_TRACE(few[i].y.extent[0]);
    auto const wanted = numbers_of(call.run_on_device(few[i], multiply).y, where);
    auto const found = numbers_of(call.run_on_device(all[i], multiply_whole).y, where);
    EXPECT_TRUE(all_finite(wanted));
    EXPECT_TRUE(found == wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(of, hopper_stack, testing::ValuesIn(every_product),
                         [](auto const& given) { return name(given.param); });

}  // namespace
}  // namespace moe64::test
