#pragma once

// 8-row steps of the right operand; the macro belongs to CUTLASS.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cute/arch/mma_sm90_gmma.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

/// The matrix products of Hopper, by four warps together: 64 x Rows sums in f32, left operand 64
/// rows and right operand Rows rows of 32 bytes of numbers, both in shared memory, their rows of
/// 128 bytes in the copy engine's 128-byte swizzle.
namespace moe64::cuda {

/// Where an operand begins; aligned to 1024 bytes but for its k-step.
class smem_descriptor {
 public:
  __device__ explicit smem_descriptor(std::uint32_t shared_address)
      : low_((1U << 16) | (shared_address >> 4)) {}
  /// That many bytes further: whole rows.
  [[nodiscard]] __device__ smem_descriptor further(int bytes) const {
    smem_descriptor place = *this;
    place.low_ += static_cast<std::uint32_t>(bytes >> 4);  // narrow-ok: modulo 2^32
    return place;
  }
  /// Found here, rather than by the compiler's choice where it is used.
  __device__ void settle() { asm volatile("" : "+r"(low_)); }
  /// `bytes` further along the contiguous k.
  [[nodiscard]] __device__ std::uint64_t along_k(unsigned bytes) const {
    // 8 rows take 1024 bytes; swizzle of 128 bytes.
    constexpr std::uint64_t high = (std::uint64_t{1} << 30) | (1024U >> 4);
    return (high << 32) | (low_ + (bytes >> 4));
  }

 private:
  std::uint32_t low_;
};

/// Codes, whose sums over 128 of them are scaled before they are added, and numbers.
struct e4m3_elements {
  static constexpr char const* name = "w8a8";
  static constexpr bool scaled = true;
  static constexpr int stage_k = 128;  ///< numbers of a row of 128 bytes
  template <int Rows>
  struct product;
};
struct bf16_elements {
  static constexpr char const* name = "bf16";
  static constexpr bool scaled = false;
  static constexpr int stage_k = 64;
  template <int Rows>
  struct product;
};
struct f16_elements {
  static constexpr char const* name = "f16";
  static constexpr bool scaled = false;
  static constexpr int stage_k = 64;
  template <int Rows>
  struct product;
};

#define MOE64_PRODUCTS(rows)                                                                       \
  template <>                                                                                      \
  struct e4m3_elements::product<rows> : cute::SM90::GMMA::MMA_64x##rows##x32_F32E4M3E4M3_SS_TN<> { \
  };                                                                                               \
  template <>                                                                                      \
  struct bf16_elements::product<rows>                                                              \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K,            \
                                                            cute::SM90::GMMA::Major::K> {};        \
  template <>                                                                                      \
  struct f16_elements::product<rows>                                                               \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32F16F16_SS<cute::SM90::GMMA::Major::K,              \
                                                          cute::SM90::GMMA::Major::K> {};
MOE64_PRODUCTS(8)
MOE64_PRODUCTS(16)
MOE64_PRODUCTS(24)
MOE64_PRODUCTS(32)
MOE64_PRODUCTS(40)
MOE64_PRODUCTS(48)
MOE64_PRODUCTS(56)
MOE64_PRODUCTS(64)
MOE64_PRODUCTS(128)
MOE64_PRODUCTS(192)
#undef MOE64_PRODUCTS

template <class Elements, int Rows, std::size_t... I>
__device__ __forceinline__ void wgmma_step(std::uint64_t left, std::uint64_t right, float* sums,
                                           bool fresh, std::index_sequence<I...>) {
  using cute::SM90::GMMA::ScaleOut;
  Elements::template product<Rows>::fma(left, right, sums[I]...,
                                        fresh ? ScaleOut::Zero : ScaleOut::One);
}

/// The products over one row of 128 bytes, as a part of what is committed next. `sums`: Rows / 2 of
/// this thread, in registers. `fresh`: they are set, otherwise added to.
template <class Elements, int Rows>
__device__ __forceinline__ void wgmma_stage(smem_descriptor const& left,
                                            smem_descriptor const& right, float* sums, bool fresh) {
#pragma unroll
  for (unsigned k = 0; k < 128; k += 32) {
    wgmma_step<Elements, Rows>(left.along_k(k), right.along_k(k), sums, fresh && k == 0,
                               std::make_index_sequence<Rows / 2>());
  }
}

/// Keeps the compiler from moving accesses of registers that the tensor cores read and write.
template <int Count>
__device__ __forceinline__ void fence_registers(float (&sums)[Count]) {
#pragma unroll
  for (float& sum : sums) cute::warpgroup_fence_operand(sum);
}

}  // namespace moe64::cuda
