#pragma once

#include "core/fail.hpp"
#include "moe64/checkpoint.hpp"
#include "moe64/cpu.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>

namespace moe64::checkpoint {

/// How many tasks the stream runs at once.
[[nodiscard]] inline index_t workers_of(stream where) noexcept {
  auto const* const executor = static_cast<cpu_executor const*>(where.handle);
  return executor == nullptr ? 1 : std::max<index_t>(1, executor->concurrency());
}

/// errc::device_mismatch unless the stream is one of the CPU: files are read into host memory.
inline void require_cpu(stream where, char const* operation) {
  if (where.device == device::cpu()) return;
  fail(errc::device_mismatch, "[{}] the stream is on {}, but this work runs on the cpu", operation,
       to_string(where.device));
}

/// body(i) for every i in [0, tasks) on the executor of the stream. The first exception that a body
/// throws is thrown again once no body runs any more; tasks that had not begun by then never run.
template <class Body>
void run_tasks(stream where, index_t tasks, Body&& body) {
  struct shared_state {
    Body& body;
    std::atomic<bool> stopped{false};
    std::mutex mutex;
    std::exception_ptr failure;
  };
  shared_state shared{body, {}, {}, nullptr};
  auto const task = [](void* context, index_t i) {
    auto& self = *static_cast<shared_state*>(context);
    if (self.stopped.load(std::memory_order_relaxed)) return;
    try {
      self.body(i);
    } catch (...) {
      std::scoped_lock const lock(self.mutex);
      if (!self.failure) self.failure = std::current_exception();
      self.stopped.store(true, std::memory_order_relaxed);
    }
  };
  if (auto* const executor = static_cast<cpu_executor*>(where.handle); executor != nullptr) {
    executor->run(tasks, task, &shared);
  } else {
    for (index_t i = 0; i < tasks; ++i) task(&shared, i);
  }
  if (shared.failure) std::rethrow_exception(shared.failure);
}

/// Counts bytes from all threads and tells a progress_report from one at a time, some ten times a
/// second. What the report throws comes out of add() or finish(): inside run_tasks it stops the
/// job.
class progress_counter {
 public:
  progress_counter(progress_report const& report, index_t total_bytes)
      : report_(report), total_(total_bytes) {}

  void add(index_t bytes) {
    done_.fetch_add(bytes, std::memory_order_relaxed);
    if (!report_) return;
    std::unique_lock const lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // another thread is telling
    auto const now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + interval;
    tell();
  }

  /// The last word. Call it when no thread adds any more.
  void finish() {
    if (!report_) return;
    std::scoped_lock const lock(mutex_);
    tell();
  }

  [[nodiscard]] index_t done() const noexcept { return done_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::chrono::milliseconds interval{100};

  void tell() { report_(done(), total_); }

  progress_report const& report_;
  index_t total_;
  std::atomic<index_t> done_{0};
  std::mutex mutex_;
  std::chrono::steady_clock::time_point next_{};  // the first add tells at once
};

}  // namespace moe64::checkpoint
