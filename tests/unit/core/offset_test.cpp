// The addresses that host and device code form alike (core/offset.hpp), at places that no 32-bit
// index reaches. Nothing is read: only where it would be.
#include "core/offset.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace moe64 {
namespace {

constexpr index_t one = 1;

tensor_view stack(dtype type, index_t experts, index_t rows, index_t cols) {
  tensor_view t;
  t.type = type;
  t.rank = 3;
  index_t const extent[] = {experts, rows, cols};
  index_t const stride[] = {rows * cols, cols, 1};
  for (int d = 0; d < 3; ++d) {
    t.extent[d] = extent[d];
    t.stride[d] = stride[d];
  }
  return t;
}

// Usable at compile time, as in kernels.
static_assert(offset_of({nullptr, dtype::f32, 1, {}, {}, {one << 40}}, 3) == 3 * (one << 40));

TEST(offset, on_both_sides_of_every_power_of_two_up_to_2_61) {
  for (int power = 8; power < 61; ++power) {
    index_t const stride = one << (power / 2);
    index_t const rows = one << (power - power / 2);
    tensor_view t;
    t.rank = 2;
    t.stride[0] = stride;
    t.stride[1] = 1;
    EXPECT_EQ(offset_of(t, rows), one << power);
    EXPECT_EQ(offset_of(t, rows - 1, stride - 1), (one << power) - 1);
    EXPECT_EQ(offset_of(t, rows, 1), (one << power) + 1);
    EXPECT_EQ(row_of(t, rows).offset, one << power);
    EXPECT_EQ(row_of(t, rows).stride, 1);
  }
}

TEST(offset, real_stacks) {
  // GLM-5.2 gate_up [256, 4096, 6144], 6.4e9 elements; past 2^31 at expert 85.
  tensor_view const glm = stack(dtype::e4m3, 256, 4096, 6144);
  EXPECT_EQ(offset_of(glm, 85), 2'139'095'040);
  EXPECT_EQ(offset_of(glm, 85, 2047, 6143), 2'151'677'951);
  EXPECT_EQ(offset_of(glm, 255, 4095, 6143), index_t{256} * 4096 * 6144 - 1);
  // DeepSeek-V4-Flash and Qwen3.5-397B: exactly 2^31 and 2^32 elements.
  tensor_view const flash = stack(dtype::e4m3, 256, 4096, 2048);
  EXPECT_EQ(offset_of(flash, 256), one << 31);
  EXPECT_EQ(row_of(flash, 255, 4095).offset + 2047, (one << 31) - 1);
  tensor_view const qwen = stack(dtype::bf16, 512, 2048, 4096);
  EXPECT_EQ(offset_of(qwen, 512), one << 32);
}

TEST(offset, rows_past_2_40_and_strides_that_go_with_them) {
  tensor_view t = stack(dtype::bf16, 3, (one << 40) + 7, 12);
  EXPECT_EQ(row_of(t, 2, one << 40).offset, 2 * 12 * ((one << 40) + 7) + 12 * (one << 40));
  t.stride[2] = (one << 44) + 1;
  EXPECT_EQ(offset_of(t, 0, 0, 11), 11 * ((one << 44) + 1));
  EXPECT_EQ(row_of(t, 0, 0).stride, (one << 44) + 1);
}

TEST(offset, views_reach_as_far_as_tensors) {
  view<std::uint16_t, 2> v;
  v.stride[0] = (one << 33) + 3;
  v.stride[1] = 5;
#ifdef MOE64_CHECKS
  v.extent[0] = v.extent[1] = std::numeric_limits<index_t>::max();
#endif
  auto const address = reinterpret_cast<std::uintptr_t>(&v(101, 7));
  EXPECT_EQ(static_cast<index_t>(address), 2 * (101 * ((one << 33) + 3) + 35));
}

}  // namespace
}  // namespace moe64
