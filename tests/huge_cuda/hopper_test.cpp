// Batches whose rows hold more than 2^31 and 2^32 numbers under the kernels of Hopper: what a row
// gives does not depend on how far behind the first it lies.
#include "cuda/hopper_layer.hpp"
#include "huge_cuda/big_call.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace moe64::test {
namespace {

/// Gate and up of three experts over many rows.
struct batch {
  index_t rows, hidden, inter;
  [[nodiscard]] constexpr index_t row_bytes() const { return 2 * inter * 2; }  // of y
};
constexpr index_t experts = 3;
/// DeepSeek-V3's: x has 4.3e9 numbers, y 2.5e9.
constexpr batch large = {600'000, 7168, 2048};
static_assert(large.rows * large.hidden > index_t{1} << 32);
static_assert(large.rows * 2 * large.inter > index_t{1} << 31);
/// Small experts, of which codes have tiles of their own: x and y have 4.4e9 numbers.
constexpr batch small = {4'300'000, 1024, 512};
static_assert(small.rows * small.hidden > index_t{1} << 32);
static_assert(small.rows * 2 * small.inter > index_t{1} << 32);
/// After so many rows x repeats.
constexpr index_t period = 4099;
/// Rows of y that are looked at together.
constexpr index_t piece = 20'000;
static_assert(large.rows % piece == 0 && small.rows % piece == 0);

void multiply(grouped_gemm_args const& args, stream where) { grouped_gemm(args, where); }

bool same(std::uint8_t const* a, std::uint8_t const* b, index_t bytes) {
  return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
}

/// A matrix of the device, [1, rows, cols], repeated until it has `rows` rows.
class repeated {
 public:
  repeated(tensor_view const& some, index_t rows, stream where)
      : memory_(rows * line_bytes(some), where.device), view_(some) {
    view_.extent[1] = rows;
    view_.stride[0] = rows * view_.stride[1];
    view_.data = memory_.memory().data;
    for (index_t row = 0; row < rows; row += period) {
      cuda_copy(static_cast<std::uint8_t*>(view_.data) + row * line_bytes(some), some.data,
                std::min(period, rows - row) * line_bytes(some), where);
    }
    cuda_wait(where);
  }
  [[nodiscard]] tensor_view const& view() const { return view_; }

 private:
  static index_t line_bytes(tensor_view const& some) {
    return some.stride[1] * bits(some.type) / 8;
  }
  cuda_buffer memory_;
  tensor_view view_;
};

/// Each row of all has the bits that it has near the first one, and those have the CPU's.
void expect_rows_as_near_the_first(product kind, batch const& of) {
  auto const [rows, hidden, inter] = of;
  index_t const row_bytes = of.row_bytes();
  stream const where = target().where;
  big_call call;
  product_source const source(call.memory, kind, cases::data_mode::exact, &call.pool);
  grouped_gemm_args args;
  args.weights = source.weights(matrices::gate_up(experts, hidden, inter));
  args.implementation = hopper_implementation(kind);
  quantized_view const x = source.x(period, hidden);
  // The first rows of all, on each expert in turn; a few of them on all experts, for the CPU.
  args.x = x;
  args.y = call.memory.tensor("y", cases::purpose::output, dtype::bf16, {period, 2 * inter});
  std::vector<grouped_gemm_args> low(experts, args);
  for (index_t e = 0; e < experts; ++e) {
    std::vector<index_t> counts(experts, 0);
    counts[static_cast<std::size_t>(e)] = period;
    low[static_cast<std::size_t>(e)].expert_begin = ranges_of(call.memory, counts);
  }
  constexpr index_t sample = 32;
  args.x = rows_of(x, 0, experts * sample);
  args.y = call.memory.tensor("sampled y", cases::purpose::output, dtype::bf16,
                              {experts * sample, 2 * inter});
  args.expert_begin = ranges_of(call.memory, std::vector<index_t>(experts, sample));
  std::vector<index_t> const bounds = {0, rows / 3 - 1, 2 * rows / 3 + 1, rows};
  tensor_view const far_begin = ranges_of(
      call.memory, std::vector<index_t>{bounds[1], bounds[2] - bounds[1], rows - bounds[2]});
  call.expect_the_bits_of_the_cpu(args, multiply);  // args.y now holds those of the CPU

  std::vector<std::uint8_t> wanted(static_cast<std::size_t>(experts * period * row_bytes));
  for (index_t e = 0; e < experts; ++e) {
    auto const there = call.run_on_device(low[static_cast<std::size_t>(e)], multiply);
    std::uint8_t* const mine = wanted.data() + e * period * row_bytes;
    cuda_copy(mine, there.y.data, period * row_bytes, where);
    cuda_wait(where);
    index_t const offset = e * sample * row_bytes;
    EXPECT_TRUE(same(mine + offset, static_cast<std::uint8_t const*>(args.y.data) + offset,
                     sample * row_bytes))
        << "the CPU has other bits for expert " << e;
  }

  grouped_gemm_args far = call.memory.there(args);
  quantized_view const start = call.memory.there(low[0]).x;
  repeated const values(start.values(), rows, where);
  std::optional<repeated> scales;
  if (!start.is_plain()) scales.emplace(start.scales(), rows, where);
  far.x = scales ? quantized_view::scaled(values.view(), scales->view(), x_blocks)
                 : quantized_view::plain(values.view());
  cuda_buffer const y(rows * row_bytes, where.device);
  far.y = tensor_view::contiguous(y.memory().data, dtype::bf16, {rows, 2 * inter}, where.device);
  far.expert_begin = far_begin;
  far.expert_begin = call.memory.there(far).expert_begin;
  cuda_fill(far.y.data, 0xff, y.memory().bytes, where);
  grouped_gemm(far, where);

  std::vector<std::uint8_t> staged(static_cast<std::size_t>(piece * row_bytes));
  std::atomic<index_t> wrong = 0, first_wrong = rows;
  for (index_t begin = 0; begin < rows; begin += piece) {
    cuda_copy(staged.data(), static_cast<std::uint8_t const*>(far.y.data) + begin * row_bytes,
              std::ssize(staged), where);
    cuda_wait(where);
    cases::parallel_for(&call.pool, piece, [&](index_t i) {
      index_t const row = begin + i;
      index_t const e = row < bounds[1] ? 0 : row < bounds[2] ? 1 : 2;
      std::uint8_t const* const right = wanted.data() + (e * period + row % period) * row_bytes;
      if (same(staged.data() + i * row_bytes, right, row_bytes)) return;
      ++wrong;
      index_t seen = first_wrong;
      while (row < seen && !first_wrong.compare_exchange_weak(seen, row)) {
      }
    });
  }
  EXPECT_EQ(wrong, 0) << "first row " << first_wrong;
}

class huge_hopper : public testing::TestWithParam<product> {
 protected:
  void SetUp() override {
    std::string const lacking = lacks_hopper(GetParam(), target().where);
    if (!lacking.empty()) GTEST_SKIP() << lacking;
  }
};

TEST_P(huge_hopper, products_of_rows_past_2_32_numbers) {
  MOE64_NEEDS(large.rows * (2 * large.hidden + large.row_bytes()), index_t{2} << 30);
  expect_rows_as_near_the_first(GetParam(), large);
}

TEST_P(huge_hopper, products_of_small_experts_past_2_32_numbers) {
  MOE64_NEEDS(small.rows * (2 * small.hidden + small.row_bytes()), index_t{2} << 30);
  expect_rows_as_near_the_first(GetParam(), small);
}

TEST_P(huge_hopper, layer_of_75000_tokens) {
  constexpr hopper_layer::size size = {large.hidden, large.inter, 16, 8, 75'000};
  static_assert(size.tokens * size.top_k * size.hidden > index_t{1} << 32);
  MOE64_NEEDS(index_t{48} << 30, index_t{6} << 30);
  hopper_layer const layer(GetParam(), size, {[](index_t token, index_t k) {
                             return (token * 5 + token / 16 + k * 2) % 16;
                           }});
  layer.queue_run(0, 0, size.tokens);
  std::vector<std::uint16_t> const whole = layer.y(0, size.tokens);
  ASSERT_TRUE(all_finite(whole));
  constexpr index_t chunk = 5'000;
  for (index_t begin = 0; begin < size.tokens; begin += chunk) {
    layer.queue_run(0, begin, begin + chunk);
    auto const part = layer.y(0, chunk);
    EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin * size.hidden, part.size() * 2), 0)
        << "tokens from " << begin;
  }
}

INSTANTIATE_TEST_SUITE_P(of, huge_hopper, testing::ValuesIn(every_product),
                         [](auto const& given) { return name(given.param); });

}  // namespace
}  // namespace moe64::test
