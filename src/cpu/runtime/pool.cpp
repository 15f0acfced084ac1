#include "core/fail.hpp"
#include "moe64/cpu.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace moe64 {
namespace {

/// How long a thread looks for work, or for the end of a job, before it sleeps: longer than the
/// serial code between two operations of a layer, shorter than anybody notices.
constexpr std::chrono::microseconds patience{30};

void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// True as soon as done() is, false when patience has run out. It never yields: on a crowded
/// machine a thread that yields loses its turn to whoever is there, one that sleeps is woken first.
template <class Done>
bool spin(bool patient, Done const& done) noexcept {
  if (done()) return true;
  if (!patient) return false;
  constexpr int looks_per_clock = 16;
  auto const limit = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < looks_per_clock; ++i) {
      relax();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < limit);
  return false;
}

/// The CPU that runs this thread; -1 where the system does not say.
int current_cpu() noexcept {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

/// Move this thread off the CPU `crowded`, if it may run on another. Schedulers like to wake a
/// thread on the CPU of its waker, above all in virtual machines, and then take milliseconds to
/// notice that both want to run.
void move_away_from([[maybe_unused]] int crowded) noexcept {
#if defined(__linux__)
  if (crowded < 0 || crowded >= CPU_SETSIZE) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<std::size_t>(crowded), &others);
  if (CPU_COUNT(&others) == 0) return;
  if (sched_setaffinity(0, sizeof others, &others) == 0) {
    sched_setaffinity(0, sizeof allowed, &allowed);
  }
#endif
}

/// Tasks that are taken at once. Few, because neighbours tend to cost alike and a row of expensive
/// ones must spread over all threads; more than one only when there are very many.
constexpr index_t most_taken = 16;
constexpr index_t takes_per_thread = 256;

constexpr index_t cache_line = 64;

}  // namespace

/// One job at a time. Everybody meets at the gate: [number of the job | caller sleeps | open |
/// threads inside]. The fields of a job change only while the gate is closed with nobody inside.
struct cpu_pool::state {
  // Fields of the gate.
  static constexpr std::uint64_t inside = (1U << 14) - 1;
  static constexpr std::uint64_t open = 1U << 14;
  static constexpr std::uint64_t caller_sleeps = 1U << 15;
  static constexpr int number_shift = 16;

  // Set while a job runs. Not a mutex: a task of the job may itself call run() on this thread.
  std::atomic<bool> busy{false};
  std::vector<std::thread> threads;
  bool patient = false;  // there is a core for every thread

  index_t tasks = 0;
  index_t taken_at_once = 1;
  void (*task)(void*, index_t) = nullptr;
  void* context = nullptr;

  alignas(cache_line) std::atomic<std::uint64_t> gate{0};
  std::atomic<bool> stop{false};
  std::atomic<int> caller_cpu{-1};
  alignas(cache_line) std::atomic<index_t> next{0};

  alignas(cache_line) std::atomic<index_t> sleepers{0};
  std::mutex mutex;
  std::condition_variable wake, done;

  /// Whoever finds no more tasks closes the gate, so that nobody enters for nothing.
  void drain() noexcept {
    index_t const count = tasks;
    index_t const step = taken_at_once;
    for (index_t i = next.fetch_add(step); i < count; i = next.fetch_add(step)) {
      index_t const end = std::min(count, i + step);
      for (; i < end; ++i) task(context, i);
    }
    gate.fetch_and(~open);
  }

  /// A job that this thread has not been in.
  [[nodiscard]] bool is_news(std::uint64_t seen) const noexcept {
    std::uint64_t const now = gate.load();
    return stop.load() || ((now & open) != 0 && now >> number_shift != seen);
  }

  void await_news(std::uint64_t seen) noexcept {
    if (spin(patient, [&] { return is_news(seen); })) return;
    std::unique_lock lock(mutex);
    // Counted before the last look, as the caller opens the gate before it looks at the count.
    ++sleepers;
    wake.wait(lock, [&] { return is_news(seen); });
    --sleepers;
  }

  void worker() noexcept {
    std::uint64_t seen = 0;
    for (;;) {
      await_news(seen);
      if (stop.load()) return;
      if (patient && current_cpu() == caller_cpu.load(std::memory_order_relaxed)) {
        move_away_from(current_cpu());
      }
      std::uint64_t now = gate.load();
      do {
        if ((now & open) == 0) break;
      } while (!gate.compare_exchange_weak(now, now + 1));
      if ((now & open) == 0) continue;
      seen = now >> number_shift;
      drain();
      std::uint64_t const before = gate.fetch_sub(1);
      if ((before & inside) == 1 && (before & caller_sleeps) != 0) {
        std::lock_guard const lock(mutex);
        done.notify_one();
      }
    }
  }

  void start(index_t count) noexcept {
    tasks = count;
    taken_at_once =
        std::clamp<index_t>(count / (std::ssize(threads) * takes_per_thread), 1, most_taken);
    next.store(0);
    caller_cpu.store(current_cpu(), std::memory_order_relaxed);
    std::uint64_t const number = (gate.load() >> number_shift) + 1;
    gate.store(number << number_shift | open);
    index_t const asleep = sleepers.load();
    if (asleep == 0) return;
    { std::lock_guard const lock(mutex); }  // whoever counted itself is now waiting
    if (asleep < count) {
      wake.notify_all();
    } else {
      for (index_t i = 1; i < count; ++i) wake.notify_one();
    }
  }

  void finish() noexcept {
    if (spin(patient, [&] { return (gate.load() & inside) == 0; })) return;
    std::unique_lock lock(mutex);
    gate.fetch_or(caller_sleeps);
    done.wait(lock, [&] { return (gate.load() & inside) == 0; });
  }

  void join() noexcept {
    stop.store(true);
    { std::lock_guard const lock(mutex); }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }
};

cpu_pool::cpu_pool(index_t threads) : state_(nullptr) {
  constexpr index_t most = 4096;
  static_assert(most <= state::inside);
  if (threads < 1 || threads > most) {
    fail(errc::invalid_argument, "[cpu_pool] {} threads are not in 1..{}", threads, most);
  }
  state_ = std::make_unique<state>();
  state* const shared = state_.get();
  // With fewer cores than threads, one that spins keeps another from its work.
  shared->patient = threads <= index_t{std::thread::hardware_concurrency()};
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
  shared.task = task;
  shared.context = context;
  shared.start(tasks);
  shared.drain();
  shared.finish();
  shared.busy.store(false);
}

}  // namespace moe64
