#pragma once

// Every multiple of 8 as N; the macro belongs to CUTLASS.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include <cute/arch/mma_sm90_gmma.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

/// WGMMA by one warpgroup with both operands in shared memory: M = 64, N = `Rows`, accumulators in
/// f32. A is 64 and B is N rows of 128 bytes along k, in the 128-byte swizzle of TMA. With swapAB A
/// are weights and B are rows of x, otherwise A are rows of x and B are weights.
namespace moe64::cuda {

/// The matrix descriptor of an operand that begins at a multiple of 1024 bytes.
class smem_descriptor {
 public:
  __device__ explicit smem_descriptor(std::uint32_t shared_address)
      : low_((1U << 16) | (shared_address >> 4)) {}
  /// The operand that begins so many bytes behind: whole rows.
  [[nodiscard]] __device__ smem_descriptor further(int bytes) const {
    smem_descriptor place = *this;
    place.low_ += static_cast<std::uint32_t>(bytes >> 4);  // narrow-ok: modulo 2^32
    return place;
  }
  /// Makes the compiler compute it here and not where it is used.
  __device__ void settle() { asm volatile("" : "+r"(low_)); }
  /// For the k-step that begins `bytes` along k.
  [[nodiscard]] __device__ std::uint64_t along_k(unsigned bytes) const {
    // 8 rows take 1024 bytes; the swizzle is of 128 bytes.
    constexpr std::uint64_t high = (std::uint64_t{1} << 30) | (1024U >> 4);
    return (high << 32) | (low_ + (bytes >> 4));
  }

 private:
  std::uint32_t low_;
};

/// Types of both operands. The accumulators of e4m3 over 128 along k are promoted: scaled and added
/// in f32.
struct e4m3_elements {
  static constexpr char const* name = "w8a8";
  static constexpr bool scaled = true;
  static constexpr int stage_k = 128;  ///< values in 128 bytes
  template <int Rows>
  struct mma;
};
struct bf16_elements {
  static constexpr char const* name = "bf16";
  static constexpr bool scaled = false;
  static constexpr int stage_k = 64;
  template <int Rows>
  struct mma;
};
struct f16_elements {
  static constexpr char const* name = "f16";
  static constexpr bool scaled = false;
  static constexpr int stage_k = 64;
  template <int Rows>
  struct mma;
};

#define MOE64_WGMMA(rows)                                                                        \
  template <>                                                                                    \
  struct e4m3_elements::mma<rows> : cute::SM90::GMMA::MMA_64x##rows##x32_F32E4M3E4M3_SS_TN<> {}; \
  template <>                                                                                    \
  struct bf16_elements::mma<rows>                                                                \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K,          \
                                                            cute::SM90::GMMA::Major::K> {};      \
  template <>                                                                                    \
  struct f16_elements::mma<rows>                                                                 \
      : cute::SM90::GMMA::MMA_64x##rows##x16_F32F16F16_SS<cute::SM90::GMMA::Major::K,            \
                                                          cute::SM90::GMMA::Major::K> {};
MOE64_WGMMA(8)
MOE64_WGMMA(16)
MOE64_WGMMA(24)
MOE64_WGMMA(32)
MOE64_WGMMA(40)
MOE64_WGMMA(48)
MOE64_WGMMA(56)
MOE64_WGMMA(64)
MOE64_WGMMA(128)
MOE64_WGMMA(192)
#undef MOE64_WGMMA

template <class Elements, int Rows, std::size_t... I>
__device__ __forceinline__ void wgmma_step(std::uint64_t a, std::uint64_t b, float* acc, bool fresh,
                                           std::index_sequence<I...>) {
  using cute::SM90::GMMA::ScaleOut;
  Elements::template mma<Rows>::fma(a, b, acc[I]..., fresh ? ScaleOut::Zero : ScaleOut::One);
}

/// The WGMMAs over 128 bytes along k, as a part of the group that is committed next. `acc`: the
/// Rows / 2 accumulators of this thread. `fresh`: they are set, otherwise added to.
template <class Elements, int Rows>
__device__ __forceinline__ void wgmma_stage(smem_descriptor const& a, smem_descriptor const& b,
                                            float* acc, bool fresh) {
#pragma unroll
  for (unsigned k = 0; k < 128; k += 32) {
    wgmma_step<Elements, Rows>(a.along_k(k), b.along_k(k), acc, fresh && k == 0,
                               std::make_index_sequence<Rows / 2>());
  }
}

/// Keeps the compiler from moving accesses of registers that WGMMA reads and writes.
template <int Count>
__device__ __forceinline__ void fence_registers(float (&acc)[Count]) {
#pragma unroll
  for (float& value : acc) cute::warpgroup_fence_operand(value);
}

}  // namespace moe64::cuda
