#pragma once

#include "moe64/device.hpp"
#include "moe64/error.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"
#include "moe64/tensor.hpp"

#include <string>

/// CUDA for programs that do not use its own headers: what is there, memory, streams, time.
/// Operations need none of it: they take any device pointer and any cudaStream_t. Every function
/// leaves the current device of the calling thread as it was.
namespace moe64 {

/// Whether there is a CUDA device that moe64 can use, and if not why not: a build without CUDA, no
/// driver, no device.
[[nodiscard]] MOE64_API support cuda_support();
/// 0 where there is none.
[[nodiscard]] MOE64_API index_t cuda_device_count() noexcept;
/// Which GPUs this build has machine code for, as CMAKE_CUDA_ARCHITECTURES spells them.
/// Empty in a build without CUDA.
[[nodiscard]] MOE64_API std::string cuda_architectures();

struct cuda_device_info {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  index_t multiprocessors = 0;
  index_t memory_bytes = 0;
  index_t memory_free = 0;
};
[[nodiscard]] MOE64_API cuda_device_info cuda_info(moe64::device where);

/// Device memory that it owns, aligned, not initialised.
class MOE64_API cuda_buffer {
 public:
  /// errc::out_of_memory when the device has not that much.
  cuda_buffer(index_t bytes, moe64::device where);
  ~cuda_buffer();
  cuda_buffer(cuda_buffer&& other) noexcept;
  cuda_buffer& operator=(cuda_buffer&& other) noexcept;

  [[nodiscard]] workspace memory() const noexcept { return memory_; }

 private:
  workspace memory_;
};

/// A stream that it owns. Work queued on it does not wait for the default stream.
class MOE64_API cuda_queue {
 public:
  explicit cuda_queue(moe64::device where);
  ~cuda_queue();
  cuda_queue(cuda_queue const&) = delete;
  cuda_queue& operator=(cuda_queue const&) = delete;

  [[nodiscard]] stream get() const noexcept { return stream_; }

 private:
  stream stream_;
};

/// Queue a copy of `bytes` bytes between any two places, or the setting of each to one value. Host
/// memory must stay as it is until the stream has reached the copy.
MOE64_API void cuda_copy(void* to, void const* from, index_t bytes, stream where);
MOE64_API void cuda_fill(void* data, int byte, index_t bytes, stream where);
/// Return when everything queued so far is done; errc::device_failure when some of it failed.
MOE64_API void cuda_wait(stream where);

/// The time between two places of a stream.
class MOE64_API cuda_timer {
 public:
  explicit cuda_timer(moe64::device where);
  ~cuda_timer();
  cuda_timer(cuda_timer const&) = delete;
  cuda_timer& operator=(cuda_timer const&) = delete;

  void start(stream where);
  void stop(stream where);
  /// Waits until the stream has reached stop().
  [[nodiscard]] double milliseconds() const;

 private:
  moe64::device device_;
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

/// Calls that were queued once and can be queued again as a whole, at the cost of one launch. What
/// they read is read anew each time: routing may change between two replays, sizes may not.
class MOE64_API cuda_graph {
 public:
  /// Records what body() queues on `where`, a stream that is no default stream; nothing of it runs.
  template <class Body>
  cuda_graph(stream where, Body const& body) : cuda_graph(where) {
    body();
    finish();
  }
  ~cuda_graph();
  cuda_graph(cuda_graph const&) = delete;
  cuda_graph& operator=(cuda_graph const&) = delete;

  void replay(stream where) const;

 private:
  explicit cuda_graph(stream where);
  void finish();

  stream recorded_;
  bool recording_ = true;
  void* graph_ = nullptr;
};

}  // namespace moe64
