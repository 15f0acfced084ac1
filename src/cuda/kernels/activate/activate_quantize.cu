#include "cuda/kernels/activate/activate_quantize.hpp"
#include "cuda/kernels/activate/activation.cuh"
#include "cuda/kernels/quantize/reference.cuh"
#include "cuda/kernels/quantize/rows.cuh"

namespace moe64::cuda {
namespace {

/// Computes: activation(gate, up), rounded to the type of gate, then codes and scales of it.
/// Grid: a CTA per row, grid-stride beyond.
/// Threads: any multiple of 32, over the columns.
/// Shared memory: a word per warp.
/// Limits: a scale per row or group; any strides and types.
template <activation Kind>
__global__ void activate_quantize_reference(activate_quantize_parameters const p) {
  sixteenth_powers const powers = sixteenth_powers::load();
  index_t const rows = count_rows(p.target.live_rows, p.gate.extent[0]);
  quantize_rows_of(p.target, rows, [&](index_t row, index_t col, bool exists) {
    float const gate = exists ? load_number(row_of(p.gate, row), col) : 0.0F;
    float const up = is_gated(Kind) && exists ? load_number(row_of(p.up, row), col) : 0.0F;
    return rounded_to(p.gate.type, activated<Kind>(p.spec, gate, up, powers));
  });
}

/// Activations as elements to quantise (rows.cuh says what a source has).
template <activation Kind, dtype Type>
struct activated_source {
  static constexpr dtype type = Type;
  static constexpr int held = activate_held / 16;
  struct fetched {
    raw16<Type> gate, up;
  };
  activate_quantize_parameters const& p;
  sixteenth_powers powers = sixteenth_powers::load();

  struct row_loader {
    activate_quantize_parameters const& p;
    std::uint8_t const* gate;
    std::uint8_t const* up;

    __device__ fetched fetch(index_t down, index_t col, bool exists) const {
      constexpr index_t size = bits(Type) / 8;
      fetched result = {};
      if (!exists) return result;
      result.gate = load16<Type>(gate + (down * p.gate.stride[0] + col) * size);
      if (is_gated(Kind)) result.up = load16<Type>(up + (down * p.up.stride[0] + col) * size);
      return result;
    }
  };
  __device__ row_loader row(index_t, index_t row) const {
    return {p, data_of(p.gate, row), is_gated(Kind) ? data_of(p.up, row) : nullptr};
  }
  __device__ raw16<Type> elements(fetched const& in) const {
    fetched made = in;
    activate_vec8<Kind>(p.spec, made.gate.half, made.up.half, powers);
    return made.gate;
  }

 private:
  __device__ static std::uint8_t const* data_of(tensor_view const& matrix, index_t row) {
    return static_cast<std::uint8_t const*>(matrix.data) +
           offset_of(matrix, row) * (bits(Type) / 8);
  }
};

/// Computes: activation(gate, up) as codes e4m3 and scales, a scale for every 16 * 2^n <= 512
///   columns.
/// Grid: a CTA per tile of groups_tile vec16s, grid-stride beyond.
/// Threads: groups_threads, two vec16s each; 2^n neighbouring lanes hold a group.
/// Shared memory: none.
/// Limits: can_make_groups(), can_take_vec16() of all operands.
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(groups_threads, 16)
    activate_groups(activate_quantize_parameters const p) {
  quantize_groups_of<dtype::e4m3>(activated_source<Kind, Type>{p}, p.target);
}

/// Computes: activation(gate, up) as codes e4m3 and scales, a scale for every row.
/// Grid: a CTA per row, grid-stride beyond.
/// Threads: as many as hold a row, activate_held elements each; at most activate_rows_threads.
/// Shared memory: two words per warp, for the largest magnitude.
/// Limits: can_make_blocks(), can_take_vec16() of all operands.
template <activation Kind, dtype Type>
__global__ void __launch_bounds__(activate_rows_threads)
    activate_rows(activate_quantize_parameters const p) {
  quantize_blocks_of<dtype::e4m3>(activated_source<Kind, Type>{p}, p.target);
}

using handle = kernel<activate_quantize_parameters>;

}  // namespace

handle activate_quantize_reference_kernel(activation kind) {
  return visit_kind(kind, [](auto constant) {
    return handle{"activate_quantize_reference", activate_quantize_reference<constant()>};
  });
}

handle activate_groups_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_groups", type == dtype::bf16 ? activate_groups<constant(), dtype::bf16>
                                                         : activate_groups<constant(), dtype::f16>};
  });
}

handle activate_rows_kernel(activation kind, dtype type) {
  return visit_kind(kind, [&](auto constant) {
    return handle{"activate_rows", type == dtype::bf16 ? activate_rows<constant(), dtype::bf16>
                                                       : activate_rows<constant(), dtype::f16>};
  });
}

}  // namespace moe64::cuda
