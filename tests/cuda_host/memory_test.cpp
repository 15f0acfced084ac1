// Buffers, streams, copies and timers of moe64/cuda.hpp on eight devices.
#include "cuda/runtime/device.hpp"
#include "cuda_host/machine.hpp"

#include <array>
#include <thread>
#include <utility>
#include <vector>

namespace moe64::test {
namespace {

class memory : public on_mock {};

TEST_F(memory, lies_on_the_device_that_was_asked_for) {
  for (std::int16_t ordinal = 0; ordinal < mock_cuda::devices; ++ordinal) {
    make_current(3);
    cuda_buffer const buffer(1000, device::cuda(ordinal));
    EXPECT_EQ(buffer.memory().bytes, 1000);
    EXPECT_EQ(buffer.memory().device, device::cuda(ordinal));
    EXPECT_NO_THROW(
        cuda::check_owner("test", "buffer", "", buffer.memory().data, device::cuda(ordinal)));
    EXPECT_MOE64_ERROR(cuda::check_owner("test", "buffer", "part", buffer.memory().data,
                                         device::cuda(ordinal == 7 ? 0 : 7)),
                       errc::device_mismatch, "[test] buffer.part at");
    EXPECT_EQ(machine.current_device(), 3);
  }
}

TEST_F(memory, sizes_that_are_none_and_sizes_that_are_too_large) {
  cuda_buffer const empty(0, device::cuda(1));
  EXPECT_EQ(empty.memory().data, nullptr);
  EXPECT_MOE64_ERROR(cuda_buffer(-1, device::cuda(1)), errc::invalid_argument, "negative");
  EXPECT_MOE64_ERROR(cuda_buffer(index_t{1} << 50, device::cuda(1)), errc::out_of_memory,
                     "[cuda_buffer] cuda:1", "cudaErrorMemoryAllocation");
}

TEST_F(memory, is_moved_and_never_given_back_twice) {
  cuda_buffer first(100, device::cuda(1));
  void* const data = first.memory().data;
  cuda_buffer second(std::move(first));
  EXPECT_EQ(second.memory().data, data);
  cuda_buffer third(200, device::cuda(2));
  third = std::move(second);
  EXPECT_EQ(third.memory().data, data);
  EXPECT_EQ(third.memory().device, device::cuda(1));
}

TEST_F(memory, copies_there_and_back) {
  std::array<int, 4> const numbers{1, 2, 3, 4};
  std::array<int, 4> back{};
  cuda_queue const queue(device::cuda(4));
  cuda_buffer const buffer(16, device::cuda(4));
  cuda_copy(buffer.memory().data, numbers.data(), 16, queue.get());
  cuda_copy(back.data(), buffer.memory().data, 16, queue.get());
  cuda_wait(queue.get());
  EXPECT_EQ(back, numbers);
  cuda_fill(buffer.memory().data, 0, 16, queue.get());
  cuda_copy(back.data(), buffer.memory().data, 16, queue.get());
  EXPECT_EQ(back, (std::array<int, 4>{}));
}

TEST_F(memory, support_says_why_not) {
  EXPECT_TRUE(cuda_support());
  EXPECT_EQ(cuda_device_count(), mock_cuda::devices);
  machine.remove_devices(0);
  EXPECT_EQ(cuda_support().reason(), "there is no CUDA device");
  EXPECT_EQ(cuda_device_count(), 0);
  machine.remove_devices(no_device);
  EXPECT_EQ(cuda_support().reason(), "as the mock says");
  EXPECT_EQ(cuda_device_count(), 0);
  EXPECT_EQ(machine.last_error(), 0);
}

TEST_F(memory, the_cpu_is_no_cuda_device) {
  EXPECT_MOE64_ERROR(cuda_buffer(64, device::cpu()), errc::device_mismatch, "[cuda_buffer] cpu");
  EXPECT_MOE64_ERROR(cuda_queue(device::cpu()), errc::device_mismatch, "[cuda_queue] cpu");
  EXPECT_MOE64_ERROR(cuda_wait({device::cpu(), nullptr}), errc::device_mismatch, "[cuda_wait]");
  char from[4] = {}, to[4] = {};
  EXPECT_MOE64_ERROR(cuda_copy(to, from, 4, {device::cpu(), nullptr}), errc::device_mismatch,
                     "[cuda_copy]");
}

TEST_F(memory, info_of_a_device) {
  make_current(1);
  cuda_device_info const info = cuda_info(device::cuda(5));
  EXPECT_EQ(info.name, "mock 5");
  EXPECT_EQ(info.major, 9);
  EXPECT_EQ(info.multiprocessors, mock_cuda::multiprocessors);
  EXPECT_MOE64_ERROR(cuda_info(device::cuda(9)), errc::device_failure, "cuda:9");
}

/// Everything that the header offers, once.
void use_everything() {
  device const where = device::cuda(6);
  cuda_queue const queue(where);
  cuda_buffer const buffer(64, where);
  cuda_timer timer(where);
  timer.start(queue.get());
  cuda_fill(buffer.memory().data, 0, 64, queue.get());
  char host[8] = {};
  cuda_copy(host, buffer.memory().data, 8, queue.get());
  timer.stop(queue.get());
  cuda_wait(queue.get());
  EXPECT_EQ(timer.milliseconds(), 1.5);
  static_cast<void>(cuda_info(where));
  cuda_graph const graph(queue.get(), [&] { cuda_fill(buffer.memory().data, 1, 64, queue.get()); });
  graph.replay(queue.get());
}

TEST_F(memory, leaves_the_current_device_alone_and_nothing_behind_whatever_fails) {
  int failing = 0;
  for (runtime_call const what : every_call()) {
    machine.reset();
    machine.make_current(2);
    use_everything();
    for (int successes = machine.calls(what); successes-- > 0;) {
      SCOPED_TRACE(name(what) + " after " + std::to_string(successes));
      machine.reset();
      machine.make_current(2);
      machine.fail(what, launch_failure, successes);
      // What is put back or given back has nobody to tell.
      bool const silent = what == runtime_call::release || what == runtime_call::destroy_stream ||
                          what == runtime_call::destroy_event ||
                          what == runtime_call::destroy_graph ||
                          (what == runtime_call::set_device && successes % 2 == 1);
      if (silent) {
        EXPECT_NO_THROW(use_everything());
      } else {
        EXPECT_MOE64_ERROR(use_everything(), errc::device_failure, "cuda:6");
        EXPECT_EQ(machine.current_device(), 2);
      }
      ++failing;
    }
  }
  EXPECT_GE(failing, 25);
  machine.make_current(0);
}

TEST_F(memory, a_recording_that_breaks_off_leaves_nothing_behind) {
  cuda_queue const queue(device::cuda(3));
  EXPECT_THROW(cuda_graph(queue.get(), [] { throw 1; }), int);
  EXPECT_EQ(machine.calls(runtime_call::end_capture), 1);
}

TEST_F(memory, threads_have_their_own_current_device) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(mock_cuda::devices, 0);
  for (std::int16_t ordinal = 0; ordinal < mock_cuda::devices; ++ordinal) {
    threads.emplace_back([&, ordinal] {
      machine.make_current((ordinal + 1) % mock_cuda::devices);
      cuda_queue const queue(device::cuda(ordinal));
      for (int i = 0; i < 200; ++i) {
        cuda_buffer const buffer(64, device::cuda(ordinal));
        cuda_fill(buffer.memory().data, i, 64, queue.get());
        cuda::check_owner("test", "buffer", "", buffer.memory().data, device::cuda(ordinal));
        bool const same = machine.current_device() == (ordinal + 1) % mock_cuda::devices;
        wrong[static_cast<std::size_t>(ordinal)] += same ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(mock_cuda::devices, 0));
}

}  // namespace
}  // namespace moe64::test
