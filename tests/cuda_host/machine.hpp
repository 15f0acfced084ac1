#pragma once

#include "cuda_host/mock_runtime.hpp"
#include "moe64/cuda.hpp"
#include "moe64/ops.hpp"
#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

namespace moe64::test {

/// A fresh machine of eight devices. At the end of every test the device that was current is
/// current again, no range is open, and no stream, event or memory is left.
class on_mock : public testing::Test {
 protected:
  void SetUp() override { machine.reset(); }
  void TearDown() override {
    EXPECT_EQ(machine.current_device(), expected_device);
    EXPECT_EQ(machine.open_ranges(), 0);
    EXPECT_EQ(machine.live_allocations(), 0);
    EXPECT_EQ(machine.live_handles(), 0);
  }
  void make_current(int device) {
    machine.make_current(device);
    expected_device = device;
  }

  mock_cuda& machine = mock_cuda::machine();
  int expected_device = 0;
};

/// A call of gather whose operands lie in one buffer of a device: nobody reads them.
struct small_gather {
  cuda_buffer memory;
  gather_args args;

  explicit small_gather(moe64::device where) : memory(1 << 16, where) {
    index_t used = 0;
    auto const cut = [&](dtype type, std::initializer_list<index_t> extents) {
      auto* const data = static_cast<char*>(memory.memory().data) + used;
      used += 4096;
      return tensor_view::contiguous(data, type, extents, memory.memory().device);
    };
    args.x = cut(dtype::bf16, {3, 8});
    args.rows = cut(dtype::bf16, {6, 8});
    routing_plan& p = args.plan;
    p.tokens = 3;
    p.top_k = 2;
    p.experts = 4;
    p.expert_begin = cut(dtype::int64, {5});
    p.row_to_slot = cut(dtype::int64, {6});
    p.slot_to_row = cut(dtype::int64, {6});
    p.slot_weight = cut(dtype::f32, {6});
    p.status = cut(dtype::int64, {plan_status::count});
  }
};

}  // namespace moe64::test
