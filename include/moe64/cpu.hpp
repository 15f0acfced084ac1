#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"
#include "moe64/tensor.hpp"

#include <memory>

namespace moe64 {

/// Runs the independent tasks of one CPU operation. Derive from it to run moe64 on threads that the
/// host program owns already. Results never depend on the executor: tasks write disjoint memory and
/// each is computed the same way whoever runs it.
class MOE64_API cpu_executor {
 public:
  virtual ~cpu_executor() = default;

  /// How many tasks may run at once; operations use it to size tasks, never to choose an order of
  /// additions.
  [[nodiscard]] virtual index_t concurrency() const noexcept = 0;

  /// Call task(context, i) once for every i in [0, tasks), in any order, on any threads; return
  /// when all are done. `task` never throws. May be called from several threads at once. A task
  /// needs up to 300 KiB of stack.
  virtual void run(index_t tasks, void (*task)(void* context, index_t i),
                   void* context) noexcept = 0;
};

/// A pool of threads. The calling thread works too, so a pool of n starts n - 1 threads. A thread
/// without work looks for more for some 30 microseconds, so that operations in a row find it awake,
/// and then sleeps; in a pool of more threads than cores it sleeps at once. When two threads call
/// at once, or a task calls run() itself, the second call runs its tasks on its own thread: it
/// never waits for the first.
class MOE64_API cpu_pool final : public cpu_executor {
 public:
  /// threads in [1, 4096], otherwise errc::invalid_argument; errc::out_of_memory if the system
  /// refuses a thread.
  explicit cpu_pool(index_t threads);
  ~cpu_pool() override;
  cpu_pool(cpu_pool const&) = delete;
  cpu_pool& operator=(cpu_pool const&) = delete;

  [[nodiscard]] index_t concurrency() const noexcept override;
  void run(index_t tasks, void (*task)(void* context, index_t i), void* context) noexcept override;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Host memory for a workspace: aligned, owned, not initialised.
class MOE64_API cpu_buffer {
 public:
  /// errc::invalid_argument for a negative size, errc::out_of_memory when the system has not that
  /// much.
  explicit cpu_buffer(index_t bytes);

  [[nodiscard]] workspace memory() const noexcept { return {data_.get(), bytes_, device::cpu()}; }

 private:
  struct release {
    void operator()(void* data) const noexcept;
  };
  std::unique_ptr<void, release> data_;
  index_t bytes_;
};

/// The CPU as a stream: work runs on `executor`, or on the calling thread when it is null. Keep it
/// alive while used.
[[nodiscard]] constexpr stream cpu_stream(cpu_executor* executor = nullptr) noexcept {
  return {device::cpu(), executor};
}

}  // namespace moe64
