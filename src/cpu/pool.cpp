#include "core/fail.hpp"
#include "moe64/cpu.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace moe64 {

/// One job at a time: `generation` announces it, `next` hands out its tasks, `working` counts
/// threads inside it.
struct cpu_pool::state {
  // Set while a job runs. Not a mutex: a task of the job may itself call run() on this thread.
  std::atomic<bool> busy{false};
  std::mutex mutex;
  std::condition_variable wake, done;
  std::vector<std::thread> threads;
  bool stop = false;
  index_t generation = 0;
  index_t working = 0;
  index_t tasks = 0;
  void (*task)(void*, index_t) = nullptr;
  void* context = nullptr;
  std::atomic<index_t> next{0};

  void drain() noexcept {
    for (index_t i = next.fetch_add(1); i < tasks; i = next.fetch_add(1)) task(context, i);
  }

  void worker() noexcept {
    index_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      ++working;
      lock.unlock();
      drain();
      lock.lock();
      if (--working == 0) done.notify_one();
    }
  }

  void join() noexcept {
    {
      std::lock_guard const lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
};

cpu_pool::cpu_pool(index_t threads) : state_(nullptr) {
  constexpr index_t most = 4096;
  if (threads < 1 || threads > most) {
    fail(errc::invalid_argument, "[cpu_pool] {} threads are not in 1..{}", threads, most);
  }
  state_ = std::make_unique<state>();
  state* const shared = state_.get();
  try {
    for (index_t i = 1; i < threads; ++i) {
      shared->threads.emplace_back([shared] { shared->worker(); });
    }
  } catch (std::exception const& refused) {  // no thread, or no memory to note it in
    auto const started = shared->threads.size();
    shared->join();
    fail(errc::out_of_memory, "[cpu_pool] the system gave {} of {} threads: {}", started + 1,
         threads, refused.what());
  }
}

cpu_pool::~cpu_pool() {
  if (state_) state_->join();
}

index_t cpu_pool::concurrency() const noexcept {
  return static_cast<index_t>(state_->threads.size()) + 1;
}

void cpu_pool::run(index_t tasks, void (*task)(void* context, index_t i), void* context) noexcept {
  state& shared = *state_;
  if (shared.threads.empty() || tasks <= 1 || shared.busy.exchange(true)) {
    for (index_t i = 0; i < tasks; ++i) task(context, i);
    return;
  }
  {
    // A thread that woke late for the last job may still be looking for tasks of it.
    std::unique_lock lock(shared.mutex);
    shared.done.wait(lock, [&] { return shared.working == 0; });
    shared.tasks = tasks;
    shared.task = task;
    shared.context = context;
    shared.next.store(0);
    ++shared.generation;
  }
  shared.wake.notify_all();
  shared.drain();
  {
    std::unique_lock lock(shared.mutex);
    shared.done.wait(lock, [&] { return shared.working == 0; });
    shared.tasks = 0;
  }
  shared.busy.store(false);
}

}  // namespace moe64
