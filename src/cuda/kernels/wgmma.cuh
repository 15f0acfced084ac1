#pragma once

// 8-row steps of the right operand; the macro belongs to CUTLASS.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cute/arch/mma_sm90_gmma.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

/// The matrix products of Hopper, by four warps together: 64 x Rows sums of 32-bit floats, left
/// operand 64 x 32 codes and right operand Rows x 32 codes, both in shared memory, their rows of
/// 128 bytes in the copy engine's 128-byte swizzle.
namespace moe64::cuda {

/// Where an operand begins; aligned to 1024 bytes but for its k-step.
class operand_place {
 public:
  __device__ explicit operand_place(std::uint32_t shared_address)
      : low_((1U << 16) | (shared_address >> 4)) {}
  /// `bytes` further along the contiguous k.
  [[nodiscard]] __device__ std::uint64_t along_k(unsigned bytes) const {
    // 8 rows take 1024 bytes; swizzle of 128 bytes.
    constexpr std::uint64_t high = (std::uint64_t{1} << 30) | (1024U >> 4);
    return (high << 32) | (low_ + (bytes >> 4));
  }

 private:
  std::uint32_t low_;
};

template <int Rows>
struct e4m3_product;

#define MOE64_E4M3_PRODUCT(rows)                                           \
  template <>                                                              \
  struct e4m3_product<rows> {                                              \
    using type = cute::SM90::GMMA::MMA_64x##rows##x32_F32E4M3E4M3_SS_TN<>; \
  };
MOE64_E4M3_PRODUCT(8)
MOE64_E4M3_PRODUCT(16)
MOE64_E4M3_PRODUCT(24)
MOE64_E4M3_PRODUCT(32)
MOE64_E4M3_PRODUCT(40)
MOE64_E4M3_PRODUCT(48)
MOE64_E4M3_PRODUCT(56)
MOE64_E4M3_PRODUCT(64)
MOE64_E4M3_PRODUCT(72)
MOE64_E4M3_PRODUCT(80)
MOE64_E4M3_PRODUCT(88)
MOE64_E4M3_PRODUCT(96)
MOE64_E4M3_PRODUCT(104)
MOE64_E4M3_PRODUCT(112)
MOE64_E4M3_PRODUCT(120)
MOE64_E4M3_PRODUCT(128)
#undef MOE64_E4M3_PRODUCT

template <int Rows, std::size_t... I>
__device__ __forceinline__ void multiply_step(std::uint64_t left, std::uint64_t right,
                                              float (&sums)[Rows / 2], bool fresh,
                                              std::index_sequence<I...>) {
  using cute::SM90::GMMA::ScaleOut;
  e4m3_product<Rows>::type::fma(left, right, sums[I]..., fresh ? ScaleOut::Zero : ScaleOut::One);
}

/// sums = left * right^T over 128 codes. It has only begun: cute::warpgroup_wait ends it.
template <int Rows>
__device__ __forceinline__ void begin_product(operand_place const& left, operand_place const& right,
                                              float (&sums)[Rows / 2]) {
#pragma unroll
  for (float& sum : sums) cute::warpgroup_fence_operand(sum);
  cute::warpgroup_arrive();
#pragma unroll
  for (unsigned k = 0; k < 128; k += 32) {
    multiply_step<Rows>(left.along_k(k), right.along_k(k), sums, k == 0,
                        std::make_index_sequence<Rows / 2>());
  }
  cute::warpgroup_commit_batch();
#pragma unroll
  for (float& sum : sums) cute::warpgroup_fence_operand(sum);
}

}  // namespace moe64::cuda
