#pragma once

#include "moe64/index.hpp"

/// The few indices that are 32-bit: of a thread in its CTA, and within a tile.
namespace moe64::cuda {

__device__ inline int thread_number() {
  return static_cast<int>(threadIdx.x);  // narrow-ok: at most 1023
}
__device__ inline int lane_number() { return thread_number() % 32; }
__device__ inline int warp_number() { return thread_number() / 32; }

__device__ inline int cta_threads() {
  return static_cast<int>(blockDim.x);  // narrow-ok: at most 1024
}

/// The smaller one of a count that is not negative and the extent of a tile.
__device__ inline int within(index_t count, int extent) {
  return count < extent ? static_cast<int>(count) : extent;  // narrow-ok: below an int
}

/// Which thread this is, read from %tid at every use: accumulators leave no register to keep it in,
/// and a spilled one would be reloaded behind the TMA traffic.
struct thread_index {
  [[nodiscard]] static __device__ __forceinline__ int number() {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
    return number;
  }
  // Masks, so that the compiler knows that they are not negative.
  [[nodiscard]] static __device__ __forceinline__ int lane() { return number() & 31; }
  [[nodiscard]] static __device__ __forceinline__ int warp() { return number() >> 5 & 3; }
};

}  // namespace moe64::cuda
