#include "machine.hpp"
#include "moe64/cuda.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <thread>

namespace moe64::cli {

machine_limits measure_cuda_limits(moe64::device where) {
  // Larger than any cache, and small enough to leave room on any GPU.
  index_t const bytes = std::min(index_t{4} << 30, cuda_info(where).memory_free / 4);
  cuda_queue const queue(where);
  cuda_buffer const from(bytes, where);
  cuda_buffer const to(bytes, where);
  cuda_fill(from.memory().data, 1, bytes, queue.get());
  cuda_timer timer(where);
  // The median, as of everything that is held against it: the first copies find a cool GPU. Each
  // takes milliseconds, of which its start is next to nothing, and is followed by a rest as long,
  // as in the times of operations.
  constexpr std::size_t copies = 21;
  std::array<double, copies> seconds{};
  for (double& one : seconds) {
    timer.start(queue.get());
    cuda_copy(to.memory().data, from.memory().data, bytes, queue.get());
    timer.stop(queue.get());
    one = timer.milliseconds() / 1e3;
    std::this_thread::sleep_for(std::chrono::duration<double>(one));
  }
  std::sort(seconds.begin(), seconds.end());
  machine_limits limits;
  limits.copy_bytes_per_s = 2.0 * static_cast<double>(bytes) / seconds[copies / 2];
  return limits;
}

}  // namespace moe64::cli
