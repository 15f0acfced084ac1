#pragma once

#include "cuda/runtime/runtime.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// In programs that link mock_runtime.cpp the CUDA runtime is a machine of eight devices whose
/// memory is that of the host: the linker then takes no other runtime. It keeps the rules of the
/// real one that moe64 depends on, remembers what was done, and fails on demand.
namespace moe64::test {

/// The calls of the runtime that can be made to fail.
enum class runtime_call {
  device_count,
  get_device,
  set_device,
  properties,
  multiprocessors,
  shared_bytes,
  capability,
  memory_free,
  owner,
  stream_device,
  encode,
  launch,
  fill,
  copy,
  allocate,
  release,
  create_stream,
  destroy_stream,
  wait,
  create_event,
  destroy_event,
  record,
  elapsed,
  begin_capture,
  end_capture,
  replay,
  destroy_graph,
};
[[nodiscard]] std::vector<runtime_call> every_call();
[[nodiscard]] std::string name(runtime_call call);

/// Elements of cudaError_t.
inline constexpr cuda::status invalid_value = 1, out_of_memory = 2, invalid_configuration = 9,
                              no_device = 100, invalid_device = 101, invalid_handle = 400,
                              illegal_address = 700, launch_failure = 719;

class mock_cuda {
 public:
  static constexpr int devices = 8;
  static constexpr int multiprocessors = 132;

  [[nodiscard]] static mock_cuda& machine();

  /// As new, with device 0 current on this thread. Memory that somebody still holds stays.
  void reset();

  // What was done.
  struct launched {
    cuda::launch_config config;
    int device;  ///< that was current
    std::thread::id thread;
    std::string range;  ///< the NVTX ranges that were open, joined by '/'
  };
  [[nodiscard]] std::vector<launched> launches() const;
  [[nodiscard]] int calls(runtime_call call) const;
  [[nodiscard]] int current_device() const;  ///< of this thread
  void make_current(int device);             ///< as a program would that uses CUDA itself
  [[nodiscard]] int open_ranges() const;     ///< of this thread
  [[nodiscard]] cuda::status last_error() const;
  [[nodiscard]] index_t live_allocations() const;
  [[nodiscard]] index_t live_handles() const;  ///< streams, events, graphs

  // What shall happen.
  /// The call fails with `code` once, after `successes` more that do not.
  void fail(runtime_call call, cuda::status code, int successes = 0);
  /// Every call fails from now on, as after a fault of a kernel.
  void fail_for_good(cuda::status code);
  void remove_devices(cuda::status code);  ///< device_count fails, or finds none if 0
  void make_capability(int major);         ///< of all devices; 9 when new
  void make_shared_bytes(int bytes);       ///< of all devices; 227 KiB when new
  /// An error that somebody else has left behind on this thread.
  void leave_error(cuda::status code);

 private:
  friend struct mock_table;
  /// A function of the table: first what fails on demand, then the work.
  template <class Work>
  cuda::status call(runtime_call what, Work const& work);

  struct memory {
    index_t bytes;
    int device;
    std::unique_ptr<unsigned char[]> data;
  };
  struct failure {
    cuda::status code;
    int successes;
  };
  mutable std::mutex mutex_;
  std::vector<launched> launches_;
  std::map<runtime_call, int> calls_;
  std::map<runtime_call, failure> failures_;
  cuda::status sticky_ = 0;
  bool has_devices_ = true;
  cuda::status count_error_ = 0;
  int major_ = 9;
  int shared_bytes_ = 227 << 10;
  std::map<unsigned char const*, memory> memory_;
  std::map<void const*, int> handles_;  ///< streams, events and graphs, with their device
  std::uintptr_t next_handle_ = 0x1000;
};

}  // namespace moe64::test
