#pragma once

/// Kernels that begin early: a kernel whose handle says so is launched as soon as every block of
/// the kernel before it has called pdl_launch_dependents() or has ended, and there is room. Its
/// blocks make themselves ready and wait, while those of the kernel before still work.
///
/// What is written is written behind pdl_wait(), so nothing is overwritten that an earlier
/// kernel still reads. A kernel that has ended has waited, so that all before it have ended, too.
///
/// Kernels of activate let the next one begin at once, all others behind pdl_wait(). So all
/// that was queued before the last call that is not activate has ended when a kernel begins: this
/// much it may read ahead (grouped_gemm_args::operands_ready).
namespace moe64::cuda {

/// Until all that was queued before has ended and what it wrote can be seen.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// By any thread of a block, for all of them.
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The first thing in most kernels that begin early.
__device__ __forceinline__ void pdl_begin() {
  pdl_wait();
  pdl_launch_dependents();
}

}  // namespace moe64::cuda
