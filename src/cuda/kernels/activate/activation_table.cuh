#pragma once

#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/device/thread_index.cuh"

/// Activations of bf16 by a table in shared memory: a gate of 16 bits has few values, and the gelu
/// takes more instructions for each than memory leaves time for.
namespace moe64::cuda {

/// The first factor of every gate of [2^-24, 2^8) and of both signs, bit for bit as computed.
template <activation Kind>
class gate_table {
 public:
  /// By all threads of a block; `numbers` holds gate_table_entries.
  __device__ gate_table(float* numbers, activation_spec const& spec) : numbers_(numbers) {
    for (int i = thread_number(); i < gate_table_entries; i += block_threads()) {
      auto const bits = static_cast<std::uint32_t>(i);  // narrow-ok: an entry
      float const gate = __uint_as_float((lowest + bits / 2) << 16 | (bits & 1U) << 31);
      bool const near = __all_sync(0xffffffffU, is_near<Kind>(spec, fabsf(gate)));
      numbers[i] = (near ? factors_of<Kind, true>(spec, gate, 0.0F, powers_)
                         : factors_of<Kind, false>(spec, gate, 0.0F, powers_))
                       .first.value;
    }
    __syncthreads();
  }

  /// As activate_vec8.
  template <int Count>
  __device__ void activate(activation_spec const& spec, raw8<dtype::bf16> (&gates)[Count],
                           raw8<dtype::bf16> (&ups)[Count]) const {
    std::uint32_t entries[Count][4], outside = 0;
#pragma unroll
    for (int i = 0; i < 4 * Count; ++i) {
      std::uint32_t const pair = entries_of(gates[i / 4].word[i % 4]);
      entries[i / 4][i % 4] = pair;
      outside |= pair & ~(0x10001U * (gate_table_entries - 1));
    }
    if (__any_sync(0xffffffffU, outside != 0)) {
      activate_vec8<Kind>(spec, gates, ups, powers_);
      return;
    }
#pragma unroll
    for (int n = 0; n < Count; ++n) {
      float up[8], out[8];
      decode8<dtype::bf16>(ups[n], up);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        std::uint32_t const pair = entries[n][i / 2];
        float const first = numbers_[i % 2 == 0 ? pair & 0xffffU : pair >> 16];
        out[i] = is_gated(Kind) ? first * up[i] : first;
      }
      gates[n] = encode8<dtype::bf16>(out);
    }
  }

 private:
  static constexpr std::uint32_t lowest = 0x3380;  ///< 2^-24
  static_assert(Kind == activation::gelu_glu || Kind == activation::gelu);

  /// The entries of two gates: what they are above the lowest, and the sign in the lowest bit. A
  /// gate that is outside has higher bits, and may spoil the other one.
  __device__ static std::uint32_t entries_of(std::uint32_t gates) {
    std::uint32_t const turned = (gates << 1 & 0xfffefffeU) | (gates >> 15 & 0x00010001U);
    return turned - 0x20002U * lowest;
  }

  float const* numbers_;
  sixteenth_powers powers_ = sixteenth_powers::load();
};

}  // namespace moe64::cuda
