#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// The instructions of sm_80 that the tensor-core kernels are made of, one wrapper each.
namespace moe64::cuda {

/// An address of shared memory as these instructions take it.
using shared_address = std::uint32_t;

__device__ inline shared_address shared_address_of(void const* pointer) {
  return static_cast<shared_address>(__cvta_generic_to_shared(pointer));
}

/// Issues a copy of 16 bytes, of which the first `bytes` are read and the others become zero.
__device__ inline void copy_async(shared_address to, void const* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void copy_async(shared_address to, void const* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
/// The copies that this thread has issued since the last call are one commit group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the last `Pending` commit groups of this thread are in flight.
template <int Pending>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane 8 i + j gives the address of row j of matrix i.
__device__ inline void load_matrices(std::uint32_t (&to)[4], shared_address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
/// The same, each matrix transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], shared_address row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

/// The two 16-bit formats that tensor cores multiply, as pairs in one register, the first element
/// in its lower half.
struct bf16_pair {
  static constexpr char const* name = "bf16";

  static __device__ void multiply(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  /// Rounded to nearest even.
  static __device__ std::uint32_t of(float low, float high) {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<std::uint32_t const&>(pair);
  }
  static __device__ float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }
};

struct f16_pair {
  static constexpr char const* name = "f16";

  static __device__ void multiply(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ std::uint32_t of(float low, float high) {
    __half2 const pair = __floats2half2_rn(low, high);
    return reinterpret_cast<std::uint32_t const&>(pair);
  }
  static __device__ float2 values(std::uint32_t pair) {
    return __half22float2(reinterpret_cast<__half2 const&>(pair));
  }
  static __device__ float low(std::uint32_t pair) { return values(pair).x; }
  static __device__ float high(std::uint32_t pair) { return values(pair).y; }
};

}  // namespace moe64::cuda
