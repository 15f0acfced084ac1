#include "cases/mapping.hpp"
#include "cases/parallel.hpp"
#include "machine.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

namespace moe64::cli {
namespace {

using clock = std::chrono::steady_clock;

/// Seconds of the fastest of three runs of body(thread) on all threads.
template <class Body>
double fastest(cpu_executor& executor, Body const& body) {
  double best = 1e300;
  for (int i = 0; i < 3; ++i) {
    auto const begin = clock::now();
    cases::parallel_for(&executor, executor.concurrency(), body);
    best = std::min(best, std::chrono::duration<double>(clock::now() - begin).count());
  }
  return best;
}

constexpr index_t rounds = index_t{1} << 21;
constexpr int accumulators = 12;  // enough to hide the latency of a multiply-add

/// Rounds of multiply-adds on registers of Lanes floats. It is inlined into functions that are
/// compiled for one instruction set each; the sum keeps the compiler from leaving the work out.
template <std::size_t Lanes, bool Fused>
[[gnu::always_inline]] inline float multiply_add_loop() {
  constexpr std::size_t registers = accumulators;
  float sums[registers][Lanes];
  for (std::size_t a = 0; a < registers; ++a) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) sums[a][lane] = static_cast<float>(a + lane);
  }
  for (index_t i = 0; i < rounds; ++i) {
    for (std::size_t a = 0; a < registers; ++a) {
      for (std::size_t lane = 0; lane < Lanes; ++lane) {
        float& sum = sums[a][lane];
        sum = Fused ? __builtin_fmaf(sum, 0.999F, 0.001F) : sum * 0.999F + 0.001F;
      }
    }
  }
  float total = 0.0F;
  for (std::size_t a = 0; a < registers; ++a) {
    for (std::size_t lane = 0; lane < Lanes; ++lane) total += sums[a][lane];
  }
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float loop_avx512() { return multiply_add_loop<16, true>(); }
__attribute__((target("avx2,fma"))) float loop_avx2() { return multiply_add_loop<8, true>(); }
float loop_baseline() { return multiply_add_loop<4, false>(); }
#elif defined(__ARM_FEATURE_FMA)
float loop_baseline() { return multiply_add_loop<4, true>(); }
#else
float loop_baseline() { return multiply_add_loop<4, false>(); }
#endif

struct multiply_add {
  float (*loop)();
  int lanes;
};

/// Every loop that this machine can run: the widest is not always the fastest.
std::vector<multiply_add> runnable_loops() {
  std::vector<multiply_add> loops{{loop_baseline, 4}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    loops.push_back({loop_avx2, 8});
  }
  if (__builtin_cpu_supports("avx512f") != 0) loops.push_back({loop_avx512, 16});
#endif
  return loops;
}

double measure_fma(cpu_executor& executor) {
  double best = 0.0;
  std::vector<float> sink(static_cast<std::size_t>(executor.concurrency()));
  for (multiply_add const& candidate : runnable_loops()) {
    double const seconds = fastest(executor, [&](index_t thread) {
      sink[static_cast<std::size_t>(thread)] = candidate.loop();
    });
    double const flops = 2.0 * static_cast<double>(rounds) * double{accumulators} *
                         static_cast<double>(candidate.lanes) *
                         static_cast<double>(executor.concurrency());
    best = std::max(best, flops / seconds);
  }
  return best;
}

double measure_copy(cpu_executor& executor) {
  index_t const threads = executor.concurrency();
  index_t const share = (index_t{256} << 20) / threads;  // larger than the caches
  cases::mapping const from(share * threads);
  cases::mapping const to(share * threads);
  std::memset(from.data(), 1, static_cast<std::size_t>(from.bytes()));
  double const seconds = fastest(executor, [&](index_t thread) {
    std::memcpy(to.data() + thread * share, from.data() + thread * share,
                static_cast<std::size_t>(share));
  });
  return 2.0 * static_cast<double>(share * threads) / seconds;
}

}  // namespace

machine_limits measure_limits(cpu_executor& executor) {
  return {measure_copy(executor), measure_fma(executor)};
}

}  // namespace moe64::cli
