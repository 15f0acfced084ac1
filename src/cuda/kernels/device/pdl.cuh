#pragma once

/// Programmatic dependent launch (PDL): a kernel whose handle says so starts as soon as every CTA
/// of the kernel before it has called pdl_launch_dependents() or has ended, and there is room. Its
/// CTAs run their prologue while those of the kernel before still work.
///
/// All writes are behind pdl_wait(), so nothing is overwritten that an earlier kernel still reads.
/// A kernel that has ended has waited, so all kernels before it have ended, too.
///
/// Kernels of activate let the next one start at once, all others behind pdl_wait(). So all that
/// was queued before the last call that is not activate has ended when a kernel starts: this much
/// it may read before pdl_wait() (grouped_gemm_args::operands_ready).
namespace moe64::cuda {

/// Waits until all that was queued before has ended and what it wrote is visible.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// By any thread of a CTA, for all of them.
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The first statement of most kernels with PDL.
__device__ __forceinline__ void pdl_begin() {
  pdl_wait();
  pdl_launch_dependents();
}

}  // namespace moe64::cuda
