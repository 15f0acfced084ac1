#pragma once

#include "moe64/index.hpp"

/// The few numbers that are 32-bit: where a thread is in its block, and counts within a tile.
namespace moe64::cuda {

__device__ inline int thread_number() {
  return static_cast<int>(threadIdx.x);  // narrow-ok: at most 1023
}
__device__ inline int lane_number() { return thread_number() % 32; }
__device__ inline int warp_number() { return thread_number() / 32; }

__device__ inline int block_threads() {
  return static_cast<int>(blockDim.x);  // narrow-ok: at most 1024
}

/// The smaller one of a count that is not negative and the extent of a tile.
__device__ inline int within(index_t count, int extent) {
  return count < extent ? static_cast<int>(count) : extent;  // narrow-ok: below an int
}

}  // namespace moe64::cuda
