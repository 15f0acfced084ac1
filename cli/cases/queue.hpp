#pragma once

#include "moe64/cpu.hpp"
#include "moe64/cuda.hpp"

#include <optional>

namespace moe64::cases {

/// The stream on which the problems of one device run: the executor on the CPU, a stream of its own
/// on a CUDA device.
class queue {
 public:
  queue(moe64::device where, cpu_executor* executor) : stream_{where, executor} {
    if (where.kind == device_kind::cpu) return;
    own_.emplace(where);
    stream_ = own_->get();
  }

  [[nodiscard]] stream get() const noexcept { return stream_; }

 private:
  stream stream_;
  std::optional<cuda_queue> own_;
};

/// Return when everything that was queued is done.
inline void wait(stream where) {
  if (where.device.kind == device_kind::cuda) cuda_wait(where);
}

}  // namespace moe64::cases
