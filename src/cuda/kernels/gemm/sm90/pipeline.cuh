#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

/// Rings of shared memory between warps that fill and warps that use it.
namespace moe64::cuda {

using shared_barrier = std::uint64_t;

__device__ inline void make_barrier(shared_barrier& barrier, int arrivals) {
  cutlass::arch::ClusterBarrier::init(&barrier,
                                      static_cast<std::uint32_t>(arrivals));  // narrow-ok: warps
}
/// Until the barrier has left the phase of this parity. What was written before the arrivals is
/// seen afterwards, and the compiler moves no access across.
__device__ inline void await(shared_barrier const& barrier, unsigned parity) {
  cutlass::arch::ClusterBarrier::wait(&barrier, parity);
  asm volatile("" ::: "memory");
}
/// Whether it has, without waiting.
__device__ inline bool is_past(shared_barrier const& barrier, unsigned parity) {
  bool const past = cutlass::arch::ClusterBarrier::test_wait(&barrier, parity, 1U);
  asm volatile("" ::: "memory");
  return past;
}
__device__ inline void arrive(shared_barrier const& barrier) {
  asm volatile("" ::: "memory");
  cutlass::arch::ClusterBarrier::arrive(&barrier);
}

/// What this thread has read of shared memory the copy engine may overwrite once it has heard of
/// it: an arrival alone does not order ordinary loads before its writes.
__device__ inline void end_reads() {
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
}

/// In block `rank` of the cluster, by the threads for which `really`.
__device__ inline void arrive_at(shared_barrier const& barrier, int rank, bool really) {
  asm volatile("" ::: "memory");
  auto const block = static_cast<std::uint32_t>(rank);  // narrow-ok: below 32
  cutlass::arch::ClusterBarrier::arrive(&barrier, block, really);
}

/// A place in a ring of `Slots`, and which time round it is.
template <int Slots>
struct ring_place {
  int slot = 0;
  unsigned parity = 0;

  __device__ void next() {
    if (++slot != Slots) return;
    slot = 0;
    parity ^= 1;
  }
};

/// The barriers of a ring.
template <int Slots>
struct ring_barriers {
  shared_barrier filled[Slots], used[Slots];

  /// How many arrivals fill a slot and how many free it.
  __device__ void make(int fillers, int users) {
    for (int i = 0; i < Slots; ++i) make_barrier(filled[i], fillers), make_barrier(used[i], users);
  }
  __device__ void await_filled(ring_place<Slots> const& at) const {
    await(filled[at.slot], at.parity);
  }
  __device__ void await_free(ring_place<Slots> const& at) const {
    await(used[at.slot], at.parity ^ 1);
  }
};

}  // namespace moe64::cuda
