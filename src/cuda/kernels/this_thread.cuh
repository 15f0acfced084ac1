#pragma once

namespace moe64::cuda {

/// Which thread this is, found anew at every use: the sums leave no register for what could be
/// kept, and a register kept in memory waits behind all that the copy engine brings.
struct this_thread {
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
