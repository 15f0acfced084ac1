#include "cuda/kernels/device/pdl.cuh"
#include "cuda/kernels/plan/slots.cuh"

/// A stable counting sort of slots by expert. Within a CTA every warp has consecutive slots and a
/// counter per expert; the rank of a slot is the number of slots of its expert in earlier chunks,
/// rounds and warps, plus those before it in its own warp. No result depends on timing.
namespace moe64::cuda {
namespace {

constexpr unsigned all_lanes = ~0U;

/// Exclusive prefix sum over the threads of the CTA; `all` is the sum of all, `warp_sums` scratch
/// in shared memory. Ends with a barrier.
template <int Warps>
__device__ std::int64_t exclusive_sum(std::int64_t value, std::int64_t (&warp_sums)[Warps],
                                      std::int64_t& all) {
  int const lane = threadIdx.x % 32;
  int const warp = threadIdx.x / 32;
  std::int64_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    std::int64_t const below = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  std::int64_t sums = lane < Warps ? warp_sums[lane] : 0;
  for (int step = 1; step < 32; step *= 2) {
    std::int64_t const below = __shfl_up_sync(all_lanes, sums, step);
    if (lane >= step) sums += below;
  }
  all = __shfl_sync(all_lanes, sums, 31);
  std::int64_t const before = warp == 0 ? 0 : __shfl_sync(all_lanes, sums, warp - 1);
  __syncthreads();
  return before + sum - value;
}

/// The bins of up to plan_most_bins experts, in the shared memory of a CTA.
template <int Warps>
struct expert_bins {
  std::int64_t* first;    ///< [width]: the first row of an expert
  std::int64_t* taken;    ///< [width]: slots of the expert before this round
  std::uint16_t* counts;  ///< [Warps + 1, pitch]: of this round per warp; of the last round
  int width, pitch;       ///< at most plan_most_bins

  [[nodiscard]] static constexpr index_t pitch_of(index_t width) { return (width + 1) / 2 * 2; }
  [[nodiscard]] static constexpr index_t bytes(index_t width) {
    return width * index_t{16} + (Warps + 1) * pitch_of(width) * index_t{2};
  }

  __device__ expert_bins(void* memory, int experts)
      : first(static_cast<std::int64_t*>(memory)),
        taken(first + experts),
        counts(reinterpret_cast<std::uint16_t*>(taken + experts)),
        width(experts),
        pitch(pitch_of(experts)) {}

  [[nodiscard]] __device__ std::uint16_t* row(int warp) const { return counts + warp * pitch; }
  __device__ void clear_row(int warp) const {
    __syncwarp();  // the other lanes may still read it
    auto* const words = reinterpret_cast<std::uint32_t*>(row(warp));
    for (int i = threadIdx.x % 32; i < pitch / 2; i += 32) words[i] = 0;
  }

  /// The counts of each warp become exclusive prefix sums over the warps; those of the last round
  /// are added to `taken`.
  __device__ void sum_warps() const {
    constexpr int unroll = 8;
    for (int e = threadIdx.x; e < width; e += Warps * 32) {
      taken[e] += row(Warps)[e];
      std::uint32_t sum = 0;
#pragma unroll 1
      for (int first = 0; first < Warps; first += unroll) {
        std::uint32_t count[unroll];
#pragma unroll
        for (int i = 0; i < unroll; ++i) count[i] = row(first + i)[e];
#pragma unroll
        for (int i = 0; i < unroll; ++i) {
          row(first + i)[e] = static_cast<std::uint16_t>(sum);
          sum += count[i];
        }
      }
      row(Warps)[e] = static_cast<std::uint16_t>(sum);
    }
  }

  /// Fills `first` from count(e), all slots of an expert; with `write` also expert_begin. `begin`
  /// is the first row of the first expert, and becomes the end of the last one.
  template <class Count>
  __device__ void find_first_rows(plan_parameters const& p, index_t first_expert, bool write,
                                  std::int64_t& begin, std::int64_t (&warp_sums)[Warps],
                                  Count const& count) const {
    constexpr int threads = Warps * 32;
    int const each = (width + threads - 1) / threads;
    int const thread = threadIdx.x;
    int const from = min(thread * each, width);
    int const to = min(from + each, width);
    std::int64_t mine = 0;
    for (int e = from; e < to; ++e) mine += kept_of(p, count(e));
    std::int64_t all = 0;
    std::int64_t row = begin + exclusive_sum<Warps>(mine, warp_sums, all);
    for (int e = from; e < to; ++e) {
      first[e] = row;
      row += kept_of(p, count(e));
      if (write) element<std::int64_t>(p.plan.expert_begin, first_expert + e + 1) = row;
    }
    begin += all;
  }
};

/// The slots that a thread sorts in one round: PerThread steps through those of its warp.
template <int Warps, int PerThread>
struct sorted_slots {
  static constexpr int nobody = -1;  ///< no expert of this plan
  static constexpr int other_pass = -2;

  int expert[PerThread];    ///< its bin, or one of these
  int rank[PerThread];      ///< among the slots of its expert in its warp
  float weight[PerThread];  ///< of slots of this pass

  [[nodiscard]] static __device__ int offset(int step) {
    int const warp = threadIdx.x / 32;
    return (warp * PerThread + step) * 32 + threadIdx.x % 32;
  }

  /// Slots at or past `end` belong to another chunk: they are left alone.
  __device__ void load(plan_parameters const& p, index_t begin, index_t end, index_t first,
                       int width) {
    index_t id[PerThread];
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
      index_t const slot = begin + offset(i);
      id[i] = slot < end ? id_of(p, slot) : -1;
    }
    // Weights are loaded here, so that no load latency lies between the stores at the end.
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
      index_t const slot = begin + offset(i);
      weight[i] = slot < end ? weight_of(p, slot) : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
      index_t const local = local_of(p, id[i]);
      bool const here = local >= first && local < first + width;
      expert[i] = here ? static_cast<int>(local - first)  // narrow-ok: below plan_most_bins
                       : (local < 0 ? nobody : other_pass);
      if (begin + offset(i) >= end) expert[i] = other_pass;
    }
  }

  __device__ void make_ranks(expert_bins<Warps> const& bins) {
    std::uint16_t* const counts = bins.row(threadIdx.x / 32);
    unsigned const lower_lanes = (1U << (threadIdx.x % 32)) - 1;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
      unsigned const equal = __match_any_sync(all_lanes, expert[i]);
      int const lower = __popc(equal & lower_lanes);
      int const before = expert[i] >= 0 ? counts[expert[i]] : 0;
      __syncwarp();
      if (expert[i] >= 0 && lower == 0) {
        counts[expert[i]] = static_cast<std::uint16_t>(before + __popc(equal));
      }
      __syncwarp();
      rank[i] = before + lower;
    }
  }

  __device__ void write(plan_parameters const& p, index_t begin, index_t end, bool first_pass,
                        expert_bins<Warps> const& bins) const {
    std::uint16_t const* const counts = bins.row(threadIdx.x / 32);
#pragma unroll
    for (int i = 0; i < PerThread; ++i) {
      index_t const slot = begin + offset(i);
      int const e = expert[i];
      if (slot >= end) continue;
      if (e >= 0) {
        std::int64_t const among = bins.taken[e] + counts[e] + rank[i];
        bool const kept = p.capacity < 0 || among < p.capacity;
        write_slot(p, slot, kept ? bins.first[e] + among : -1, weight[i]);
      } else if (e == nobody && first_pass) {
        write_slot(p, slot, -1, 0.0F);
      }
    }
  }
};

/// Computes: counts of each chunk: slots per expert, and slots without an expert here.
/// Grid: a CTA per chunk, grid-stride beyond. PDL.
/// Threads: plan_threads, over the slots of the chunk.
/// Shared memory: a counter per expert, at most plan_most_bins at a time. Integer atomics.
/// Limits: none.
__global__ void __launch_bounds__(plan_threads) plan_count(plan_parameters const p) {
  pdl_begin();
  constexpr int per_thread = 4;
  extern __shared__ __align__(16) std::uint8_t memory[];
  auto* const counts = reinterpret_cast<std::uint32_t*>(memory);
  __shared__ cta_others others;
  index_t const experts = p.plan.experts;
  for (index_t chunk = blockIdx.x; chunk < p.cut.chunks; chunk += gridDim.x) {
    index_t const begin = chunk * p.cut.chunk_slots;
    index_t const end = min(begin + p.cut.chunk_slots, p.plan.slots());
    for (index_t first = 0; first == 0 || first < experts; first += plan_most_bins) {
      index_t const width = min(plan_most_bins, experts - first);
      for (index_t e = threadIdx.x; e < width; e += plan_threads) counts[e] = 0;
      others.clear();
      __syncthreads();
      others_seen seen;
      for (index_t at = begin; at < end; at += per_thread * plan_threads) {
        index_t id[per_thread];
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
          index_t const slot = at + i * plan_threads + threadIdx.x;
          id[i] = slot < end ? id_of(p, slot) : -1;
        }
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
          index_t const slot = at + i * plan_threads + threadIdx.x;
          if (slot >= end) continue;
          index_t const local = local_of(p, id[i]);
          if (local >= first && local < first + width) {
            atomicAdd(&counts[local - first], 1U);
          } else if (first == 0 && local < 0) {
            // A chunk of 2^32 slots would make a plan of more than 2 TB.
            auto const place = static_cast<std::uint32_t>(slot - begin);  // narrow-ok: see above
            seen.add(p.experts_total, id[i], place);
          }
        }
      }
      others.add(seen, begin);
      __syncthreads();
      for (index_t e = threadIdx.x; e < width; e += plan_threads) {
        p.counts[(first + e) * p.cut.chunks + chunk] = counts[e];
      }
      if (first == 0 && threadIdx.x < plan_others::count) {
        p.others[chunk * plan_others::count + threadIdx.x] =
            static_cast<std::int64_t>(others.sum[threadIdx.x]);
      }
      __syncthreads();
    }
  }
}

/// Computes: the counts of each expert, in place, as exclusive prefix sums over the chunks; its
///   total.
/// Grid: a warp per expert, grid-stride beyond. PDL.
/// Threads: plan_threads, warps independent of each other.
/// Shared memory: none.
/// Limits: none.
__global__ void __launch_bounds__(plan_threads) plan_scan(plan_parameters const p) {
  pdl_begin();
  constexpr int per_lane = 4;
  constexpr index_t warps = plan_threads / 32;
  int const lane = threadIdx.x % 32;
  for (index_t e = blockIdx.x * warps + threadIdx.x / 32; e < p.plan.experts;
       e += gridDim.x * warps) {
    std::int64_t* const counts = p.counts + e * p.cut.chunks;
    std::int64_t before = 0;
    for (index_t at = 0; at < p.cut.chunks; at += per_lane * 32) {
      std::int64_t count[per_lane];
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        index_t const chunk = at + i * 32 + lane;
        count[i] = chunk < p.cut.chunks ? counts[chunk] : 0;
      }
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        index_t const chunk = at + i * 32 + lane;
        std::int64_t sum = count[i];
        for (int step = 1; step < 32; step *= 2) {
          std::int64_t const below = __shfl_up_sync(all_lanes, sum, step);
          if (lane >= step) sum += below;
        }
        if (chunk < p.cut.chunks) counts[chunk] = before + sum - count[i];
        before += __shfl_sync(all_lanes, sum, 31);
      }
    }
    if (lane == 0) p.totals[e] = before;
  }
}

/// The status, from the counts of all chunks; by one warp.
__device__ void add_status(plan_parameters const& p, std::int64_t kept) {
  int const lane = threadIdx.x % 32;
  std::int64_t sum[plan_others::count] = {0, 0, 0, ~std::uint64_t{0} >> 1};
  for (index_t chunk = lane; chunk < p.cut.chunks; chunk += 32) {
    std::int64_t const* const counted = p.others + chunk * plan_others::count;
    for (int i = 0; i < plan_others::first_invalid; ++i) sum[i] += counted[i];
    sum[plan_others::first_invalid] =
        min(sum[plan_others::first_invalid], counted[plan_others::first_invalid]);
  }
  for (int step = 16; step > 0; step /= 2) {
    for (int i = 0; i < plan_others::count; ++i) {
      std::int64_t const other = __shfl_down_sync(all_lanes, sum[i], step);
      sum[i] = i == plan_others::first_invalid ? min(sum[i], other) : sum[i] + other;
    }
  }
  if (lane != 0) return;
  auto* const status = static_cast<std::int64_t*>(p.plan.status.data);
  write_status({status, p.plan.slots(), kept, p.plan.status.stride[0]}, sum);
}

/// Computes: the row of each slot, and the arrays of the plan; the CTA of chunk 0 also expert_begin
///   and the status.
/// Grid: a CTA per chunk, grid-stride beyond; four per SM, so that all chunks of most problems are
///   resident. PDL.
/// Threads: plan_threads, 512 slots a round.
/// Shared memory: expert_bins of at most plan_most_bins experts at a time.
/// Limits: plan_count and plan_scan have run.
__global__ void __launch_bounds__(plan_threads, 4) plan_scatter(plan_parameters const p) {
  pdl_begin();
  constexpr int warps = plan_threads / 32;
  constexpr int per_thread = plan_cut::round_slots / plan_threads;
  extern __shared__ __align__(16) std::uint8_t memory[];
  __shared__ std::int64_t warp_sums[warps];
  index_t const experts = p.plan.experts;
  int const warp = threadIdx.x / 32;
  for (index_t chunk = blockIdx.x; chunk < p.cut.chunks; chunk += gridDim.x) {
    index_t const begin = chunk * p.cut.chunk_slots;
    index_t const end = min(begin + p.cut.chunk_slots, p.plan.slots());
    std::int64_t kept = 0;
    for (index_t first_expert = 0; first_expert == 0 || first_expert < experts;
         first_expert += plan_most_bins) {
      index_t const experts_here = min(plan_most_bins, experts - first_expert);
      int const width = static_cast<int>(experts_here);  // narrow-ok: at most plan_most_bins
      expert_bins<warps> const bins(memory, width);
      for (int e = threadIdx.x; e < width; e += plan_threads) {
        bins.taken[e] = p.counts[(first_expert + e) * p.cut.chunks + chunk];
        bins.row(warps)[e] = 0;
      }
      bins.find_first_rows(p, first_expert, chunk == 0, kept, warp_sums,
                           [&](int e) { return p.totals[first_expert + e]; });
      for (index_t at = begin; at < end; at += plan_cut::round_slots) {
        bins.clear_row(warp);
        sorted_slots<warps, per_thread> mine;
        mine.load(p, at, end, first_expert, width);
        mine.make_ranks(bins);
        __syncthreads();
        bins.sum_warps();
        __syncthreads();
        mine.write(p, at, end, first_expert == 0, bins);
      }
      __syncthreads();
    }
    if (chunk == 0 && warp == 0) {
      if (threadIdx.x == 0) element<std::int64_t>(p.plan.expert_begin, 0) = 0;
      add_status(p, kept);
    }
  }
}

}  // namespace

kernel<plan_parameters> plan_count_kernel() { return {"plan_count", plan_count, true}; }
kernel<plan_parameters> plan_scan_kernel() { return {"plan_scan", plan_scan, true}; }
kernel<plan_parameters> plan_scatter_kernel() { return {"plan_scatter", plan_scatter, true}; }

index_t plan_count_shared(index_t experts) {
  return std::min(experts, plan_most_bins) * index_t{sizeof(std::uint32_t)};
}
index_t plan_scatter_shared(index_t experts) {
  return expert_bins<plan_threads / 32>::bytes(std::min(experts, plan_most_bins));
}

}  // namespace moe64::cuda
