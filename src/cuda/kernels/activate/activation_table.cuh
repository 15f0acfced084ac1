#pragma once

#include "cuda/kernels/activate/activate.hpp"
#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/device/thread_index.cuh"

/// Activations of bf16 by a table in shared memory: gates of 16 bits have few values, and computing
/// gelu takes more instructions than a memory-bound kernel has room for.
namespace moe64::cuda {

/// The first factor of factors_of() for every gate of [2^-24, 2^8) and of both signs, bit for bit.
template <activation Kind>
class gate_table {
 public:
  /// By all threads of a CTA; `entries` has room for gate_table_entries. Ends with a barrier.
  __device__ gate_table(float* entries, activation_spec const& spec) : entries_(entries) {
    for (int i = thread_number(); i < gate_table_entries; i += cta_threads()) {
      auto const bits = static_cast<std::uint32_t>(i);  // narrow-ok: an entry
      float const gate = __uint_as_float((lowest + bits / 2) << 16 | (bits & 1U) << 31);
      bool const near = __all_sync(0xffffffffU, is_near<Kind>(spec, fabsf(gate)));
      entries[i] = (near ? factors_of<Kind, true>(spec, gate, 0.0F, powers_)
                         : factors_of<Kind, false>(spec, gate, 0.0F, powers_))
                       .first.value;
    }
    __syncthreads();
  }

  /// The same as activate_vec8, which computes warps that have a gate outside of the table.
  template <int Count>
  __device__ void activate(activation_spec const& spec, raw8<dtype::bf16> (&gates)[Count],
                           raw8<dtype::bf16> (&ups)[Count]) const {
    std::uint32_t indices[Count][4], outside = 0;
#pragma unroll
    for (int i = 0; i < 4 * Count; ++i) {
      std::uint32_t const pair = indices_of(gates[i / 4].word[i % 4]);
      indices[i / 4][i % 4] = pair;
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
        std::uint32_t const pair = indices[n][i / 2];
        float const first = entries_[i % 2 == 0 ? pair & 0xffffU : pair >> 16];
        out[i] = is_gated(Kind) ? first * up[i] : first;
      }
      gates[n] = encode8<dtype::bf16>(out);
    }
  }

 private:
  static constexpr std::uint32_t lowest = 0x3380;  ///< 2^-24
  static_assert(Kind == activation::gelu_glu || Kind == activation::gelu);

  /// The indices of two gates: their bits above the lowest, with the sign as the lowest bit. A gate
  /// outside of the table has higher bits, and may corrupt the other index.
  __device__ static std::uint32_t indices_of(std::uint32_t gates) {
    std::uint32_t const rotated = (gates << 1 & 0xfffefffeU) | (gates >> 15 & 0x00010001U);
    return rotated - 0x20002U * lowest;
  }

  float const* entries_;
  sixteenth_powers powers_ = sixteenth_powers::load();
};

}  // namespace moe64::cuda
