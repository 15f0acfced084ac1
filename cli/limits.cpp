#include "arithmetic.hpp"
#include "cases/mapping.hpp"
#include "cases/parallel.hpp"
#include "machine.hpp"
#include "timing.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace moe64::cli {
namespace {

constexpr index_t buffer_bytes = index_t{256} << 20;  // larger than the caches

using word = std::uint64_t;

/// The sum of `words` numbers, read as Streams ranges side by side: which number of them keeps most
/// lines on their way differs from machine to machine. Inlined into one function per instruction
/// set; two lines of sums per range hide the latency of the additions.
template <std::size_t Streams>
[[gnu::always_inline]] inline word sum_of(word const* data, index_t words) {
  constexpr std::size_t lanes = 16;
  index_t const range = words / static_cast<index_t>(Streams * lanes) * index_t{lanes};
  word sums[Streams][lanes] = {};
  for (index_t i = 0; i < range; i += index_t{lanes}) {
    for (std::size_t s = 0; s < Streams; ++s) {
      word const* const at = data + static_cast<index_t>(s) * range + i;
      for (std::size_t lane = 0; lane < lanes; ++lane) sums[s][lane] += at[lane];
    }
  }
  word total = 0;
  for (auto const& range_sums : sums) {
    for (word const sum : range_sums) total += sum;
  }
  return total;
}

word one_range(word const* data, index_t words) { return sum_of<1>(data, words); }
word four_ranges(word const* data, index_t words) { return sum_of<4>(data, words); }
#if defined(__x86_64__)
__attribute__((target("avx512f"))) word four_wide_ranges(word const* data, index_t words) {
  return sum_of<4>(data, words);
}
#endif

using read_loop = word (*)(word const*, index_t);

std::vector<read_loop> read_loops() {
  std::vector<read_loop> loops{one_range, four_ranges};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) loops.push_back(four_wide_ranges);
#endif
  return loops;
}

void measure_memory(cpu_executor& executor, machine_limits& limits) {
  index_t const threads = executor.concurrency();
  index_t const share = buffer_bytes / threads / 4096 * 4096;
  auto const bytes = static_cast<double>(share * threads);
  cases::mapping const from(share * threads);
  cases::mapping const to(share * threads);
  cases::parallel_for(&executor, threads, [&](index_t thread) {
    std::memset(from.data() + thread * share, 1, static_cast<std::size_t>(share));
    std::memset(to.data() + thread * share, 2, static_cast<std::size_t>(share));
  });
  limits.copy_bytes_per_s = 2.0 * bytes / fastest_of_three(executor, [&](index_t thread) {
                              std::memcpy(to.data() + thread * share, from.data() + thread * share,
                                          static_cast<std::size_t>(share));
                            });
  // Both buffers in turn: of one alone a cache could keep a tenth from run to run.
  std::vector<word> sink(static_cast<std::size_t>(threads));
  for (read_loop const loop : read_loops()) {
    double const seconds = fastest_of_three(executor, [&](index_t thread) {
      word sum = 0;
      for (cases::mapping const* const buffer : {&from, &to}) {
        auto const* const data = reinterpret_cast<word const*>(buffer->data() + thread * share);
        sum += loop(data, share / index_t{sizeof(word)});
      }
      sink[static_cast<std::size_t>(thread)] = sum;
    });
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, 2.0 * bytes / seconds);
  }
}

}  // namespace

machine_limits measure_limits(cpu_executor& executor) {
  machine_limits limits;
  measure_memory(executor, limits);
  measure_arithmetic(executor, limits);
  return limits;
}

}  // namespace moe64::cli
