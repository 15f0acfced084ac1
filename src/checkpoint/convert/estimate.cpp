#include "checkpoint/convert/estimate.hpp"

#include "checkpoint/convert/parallel_work.hpp"

#include <atomic>
#include <chrono>
#include <vector>

namespace moe64::checkpoint {
namespace {

constexpr std::chrono::milliseconds time_to_spend{500};
constexpr std::size_t most_samples = 256;

struct sample {
  conversion_job const* job;
  tile piece;
};

index_t bytes_of(tile const& piece) { return piece.values_bytes + piece.scales_bytes; }

/// Tiles at equal distances, in an order that has gone through the whole plan however early it is
/// stopped: each second one of what is left, again and again.
std::vector<sample> samples_of(conversion_plan const& plan, index_t& total_bytes) {
  std::vector<sample> all;
  std::size_t step = 1;
  std::size_t position = 0;
  for (planned_shard const& shard : plan.shards) {
    for_each_tile(shard, [&](tile const& piece) {
      total_bytes += bytes_of(piece);
      if (position++ % step != 0) return;
      all.push_back({&shard.jobs[static_cast<std::size_t>(piece.job)], piece});
      if (all.size() < 2 * most_samples) return;
      for (std::size_t i = 0; i < most_samples; ++i) all[i] = all[2 * i];
      all.resize(most_samples, all.front());
      step *= 2;
    });
  }
  std::vector<sample> ordered;
  std::vector<bool> taken(all.size(), false);
  for (std::size_t stride = most_samples; stride > 0; stride /= 2) {
    for (std::size_t i = 0; i < all.size(); i += stride) {
      if (!taken[i]) ordered.push_back(all[i]);
      taken[i] = true;
    }
  }
  return ordered;
}

}  // namespace

time_estimate estimate_time(folder const& files, conversion_plan const& plan,
                            tile_memory const& memory, index_t workers, stream where) {
  index_t total = 0;
  std::vector<sample> const samples = samples_of(plan, total);
  std::atomic<std::size_t> next{0};
  std::atomic<index_t> done{0};
  auto const begin = std::chrono::steady_clock::now();
  run_tasks(where, workers, [&](index_t) {
    tile_worker worker(files, plan, memory);
    while (std::chrono::steady_clock::now() - begin < time_to_spend) {
      std::size_t const position = next.fetch_add(1, std::memory_order_relaxed);
      if (position >= samples.size()) return;
      static_cast<void>(worker.run(*samples[position].job, samples[position].piece));
      done.fetch_add(bytes_of(samples[position].piece), std::memory_order_relaxed);
    }
  });
  double const seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (done == 0) return {};
  return {seconds * static_cast<double>(total) / static_cast<double>(done), done};
}

}  // namespace moe64::checkpoint
