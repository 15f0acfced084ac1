// Operands of synthetic problems on a device: copies of the host's, and inputs that repeat.
#include "cases/arena.hpp"

#include "cuda_host/machine.hpp"
#include "moe64/ops.hpp"

#include <cstring>
#include <vector>

namespace moe64::test {
namespace {

using cases::arena;
using cases::purpose;

class operands : public on_mock {
 protected:
  /// What the device holds of `x`; the memory of the mock's devices is that of the host.
  static std::vector<float> on_device(arena const& memory, tensor_view const& x) {
    activate_args args;
    args.gate = x;
    std::vector<float> numbers(static_cast<std::size_t>(x.size()));
    std::memcpy(numbers.data(), memory.there(args).gate.data, numbers.size() * sizeof(float));
    return numbers;
  }
  static void count_up(tensor_view const& x, index_t entries) {
    for (index_t i = 0; i < entries * x.stride[0]; ++i) {
      static_cast<float*>(x.data)[i] = static_cast<float>(i);
    }
  }
};

TEST_F(operands, large_inputs_repeat_their_first_entries) {
  arena memory(device::cuda(1));
  memory.repeat_inputs_after(20);
  tensor_view const small = memory.tensor("small", purpose::input, dtype::f32, {5, 1});
  tensor_view const large = memory.tensor("large", purpose::input, dtype::f32, {7, 3});
  EXPECT_EQ(memory.entries_to_fill(small), 5);
  ASSERT_EQ(memory.entries_to_fill(large), 2);
  count_up(small, 5);
  count_up(large, 2);
  memory.upload();
  EXPECT_EQ(on_device(memory, small), (std::vector<float>{0, 1, 2, 3, 4}));
  EXPECT_EQ(on_device(memory, large),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2}));
  memory.download();
  EXPECT_TRUE(memory.damaged().empty());
}

TEST_F(operands, nothing_repeats_unless_asked_for_nor_on_the_host) {
  arena on_device(device::cuda(1)), on_host(device::cpu());
  on_host.repeat_inputs_after(20);
  for (arena* const memory : {&on_device, &on_host}) {
    tensor_view const x = memory->tensor("x", purpose::input, dtype::f32, {7, 3});
    EXPECT_EQ(memory->entries_to_fill(x), 7);
  }
}

TEST_F(operands, outputs_are_poisoned_where_they_are_written) {
  arena memory(device::cuda(1));
  tensor_view const y = memory.tensor("y", purpose::output, dtype::f32, {2, 2});
  memory.upload();
  memory.poison();
  memory.download();
  std::vector<std::uint8_t> const poisoned(16, cases::poison_byte);
  EXPECT_EQ(std::memcmp(y.data, poisoned.data(), 16), 0);
  EXPECT_TRUE(memory.damaged().empty());
}

}  // namespace
}  // namespace moe64::test
