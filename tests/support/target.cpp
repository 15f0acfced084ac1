#include "support/target.hpp"

namespace moe64::test {

#ifdef MOE64_TEST_CUDA

target_stream target() {
  static cuda_queue const queue(device::cuda(0));
  return {queue.get(), {queue.get().device}};
}

#endif

}  // namespace moe64::test
