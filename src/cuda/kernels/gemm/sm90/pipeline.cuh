#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

/// Rings of shared memory between producer and consumer warps: each slot has an mbarrier that says
/// that it is filled, and one that says that it has been used.
namespace moe64::cuda {

using shared_barrier = std::uint64_t;

__device__ inline void make_barrier(shared_barrier& barrier, int arrivals) {
  cutlass::arch::ClusterBarrier::init(&barrier,
                                      static_cast<std::uint32_t>(arrivals));  // narrow-ok: warps
}
/// Waits until the barrier has left the phase of this parity. What was written before the arrivals
/// is seen afterwards, and the compiler moves no access across.
__device__ inline void await(shared_barrier const& barrier, unsigned parity) {
  cutlass::arch::ClusterBarrier::wait(&barrier, parity);
  asm volatile("" ::: "memory");
}
/// Whether it has left that phase, without waiting.
__device__ inline bool is_past(shared_barrier const& barrier, unsigned parity) {
  bool const past = cutlass::arch::ClusterBarrier::test_wait(&barrier, parity, 1U);
  asm volatile("" ::: "memory");
  return past;
}
__device__ inline void arrive(shared_barrier const& barrier) {
  asm volatile("" ::: "memory");
  cutlass::arch::ClusterBarrier::arrive(&barrier);
}

/// Proxy fence behind ordinary loads of a slot that TMA fills: an arrival alone does not order them
/// before TMA's next writes.
__device__ inline void end_reads() {
  asm volatile("" ::: "memory");
  cutlass::arch::fence_view_async_shared();
}

/// At the barrier of CTA `rank` of the cluster, by the threads for which `really`.
__device__ inline void arrive_at(shared_barrier const& barrier, int rank, bool really) {
  asm volatile("" ::: "memory");
  auto const cta = static_cast<std::uint32_t>(rank);  // narrow-ok: below 32
  cutlass::arch::ClusterBarrier::arrive(&barrier, cta, really);
}

/// A slot of a ring, and the parity of the round.
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

  /// By one thread. How many arrivals fill a slot, and how many free it.
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
