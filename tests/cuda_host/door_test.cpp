// Whole operations on a mock of the runtime: the launches that they make, and where.
#include "cuda_host/machine.hpp"

#include <thread>
#include <vector>

namespace moe64::test {
namespace {

class door : public on_mock {};

TEST_F(door, gather_launches_on_the_device_of_its_stream) {
  make_current(1);
  cuda_queue const queue(device::cuda(5));
  small_gather const call(device::cuda(5));
  gather(call.args, queue.get());
  ASSERT_FALSE(machine.launches().empty());
  for (mock_cuda::launched const& launch : machine.launches()) {
    EXPECT_EQ(launch.device, 5);
    EXPECT_EQ(launch.config.stream, queue.get().handle);
    EXPECT_EQ(launch.range, "gather");
  }
}

TEST_F(door, an_operation_neither_allocates_nor_waits) {
  cuda_queue const queue(device::cuda(5));
  small_gather const call(device::cuda(5));
  machine.reset();
  gather(call.args, queue.get());
  for (runtime_call const what :
       {runtime_call::allocate, runtime_call::release, runtime_call::wait, runtime_call::copy,
        runtime_call::create_stream, runtime_call::properties}) {
    EXPECT_EQ(machine.calls(what), 0) << name(what);
  }
}

TEST_F(door, operands_that_say_another_device_are_refused_before_the_launcher) {
  cuda_queue const queue(device::cuda(5));
  small_gather const call(device::cuda(5)), other(device::cuda(2));
  gather_args args = call.args;
  args.x = other.args.x;
  EXPECT_MOE64_ERROR(gather(args, queue.get()), errc::device_mismatch, "[gather] x is on cuda:2",
                     "cuda:5");
  args.x.device = device::cuda(5);  // a lie
  EXPECT_MOE64_ERROR(gather(args, queue.get()), errc::device_mismatch, "[gather] x at",
                     "memory of cuda:2", "cuda:5");
  EXPECT_TRUE(machine.launches().empty());
}

TEST_F(door, tables_of_places_are_operands_like_others) {
  cuda_queue const queue(device::cuda(5));
  cuda_buffer const memory(1 << 16, device::cuda(5)), other(1 << 12, device::cuda(2));
  index_t used = 0;
  auto const cut = [&](dtype type, std::initializer_list<index_t> extents) {
    auto* const data = static_cast<char*>(memory.memory().data) + used;
    used += 4096;
    return tensor_view::contiguous(data, type, extents, device::cuda(5));
  };
  tensor_view const values = cut(dtype::e4m3, {9, 8, 16}), scales = cut(dtype::f32, {7, 8, 1});
  expert_places const good = {cut(dtype::int64, {3}), cut(dtype::int64, {3})};
  grouped_gemm_args args;
  args.x = quantized_view::plain(cut(dtype::bf16, {6, 16}));
  args.expert_begin = cut(dtype::int64, {4});
  args.y = cut(dtype::bf16, {6, 8});
  auto const multiply = [&](expert_places const& places) {
    args.weights = weight_stack::single(
        quantized_view::scaled(values, scales, granularity::row(), {}, places));
    grouped_gemm(args, queue.get());
  };
  multiply(good);
  EXPECT_EQ(machine.launches().size(), 1U);
  for (tensor_view expert_places::*const table : {&expert_places::values, &expert_places::scales}) {
    expert_places places = good;
    (places.*table).data = other.memory().data;  // says that it is on cuda:5
    char const* const member =
        table == &expert_places::values ? "weights.places at" : "weights.scale_places at";
    EXPECT_MOE64_ERROR(multiply(places), errc::device_mismatch, "[grouped_gemm]", member,
                       "memory of cuda:2", "cuda:5");
  }
  // A table of a device is not looked at by the host: here its memory is none.
  EXPECT_EQ(machine.calls(runtime_call::copy), 0);
  EXPECT_EQ(machine.launches().size(), 1U);
}

TEST_F(door, devices_that_do_not_exist) {
  small_gather const call(device::cuda(5));
  for (std::int16_t const ordinal : std::initializer_list<std::int16_t>{-1, 8, 30000}) {
    EXPECT_MOE64_ERROR(gather(call.args, {device::cuda(ordinal), nullptr}), errc::device_mismatch,
                       "cuda:5");
  }
  EXPECT_MOE64_ERROR(plan_scratch_bytes(3, 2, 4, device::cuda(8)), errc::unsupported,
                     "there is no cuda:8", "8 CUDA devices");
  machine.remove_devices(no_device);
  EXPECT_MOE64_ERROR(plan_scratch_bytes(3, 2, 4, device::cuda(0)), errc::unsupported,
                     "cuda:0 cannot be used", "as the mock says");
}

TEST_F(door, eight_threads_each_on_its_own_device) {
  std::vector<std::thread> threads;
  for (std::int16_t ordinal = 0; ordinal < mock_cuda::devices; ++ordinal) {
    threads.emplace_back([&, ordinal] {
      machine.make_current((ordinal + 3) % mock_cuda::devices);
      cuda_queue const queue(device::cuda(ordinal));
      small_gather const call(device::cuda(ordinal));
      for (int i = 0; i < 100; ++i) gather(call.args, queue.get());
      EXPECT_EQ(machine.current_device(), (ordinal + 3) % mock_cuda::devices);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> per_device(mock_cuda::devices, 0);
  for (mock_cuda::launched const& launch : machine.launches()) {
    ++per_device[static_cast<std::size_t>(launch.device)];
  }
  for (int const count : per_device) EXPECT_EQ(count, per_device[0]);
  EXPECT_GE(per_device[0], 100);
}

}  // namespace
}  // namespace moe64::test
