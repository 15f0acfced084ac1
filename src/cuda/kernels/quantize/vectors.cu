#include "cuda/kernels/quantize/quantize.hpp"
#include "cuda/kernels/quantize/rows.cuh"

namespace moe64::cuda {
namespace {

/// Elements of a stack as they are.
template <dtype X>
struct stack_source {
  static constexpr dtype type = X;
  static constexpr int held = quantize_held(X) / 16;
  using fetched = raw16<X>;
  tensor_view const& x;

  struct row_loader {
    std::uint8_t const* data;
    index_t row_bytes;

    __device__ fetched fetch(index_t down, index_t col, bool exists) const {
      return exists ? load16<X>(data + down * row_bytes + col * (bits(X) / 8)) : fetched{};
    }
  };
  __device__ row_loader row(index_t expert, index_t row) const {
    constexpr index_t size = bits(X) / 8;
    return {static_cast<std::uint8_t const*>(x.data) + offset_of(x, expert, row) * size,
            x.stride[1] * size};
  }
  __device__ fetched const& elements(fetched const& x16) const { return x16; }
};

/// Computes: codes and scales in one pass, a scale for every 16 * 2^n <= 512 columns of a row.
/// Grid: a CTA per tile of groups_tile vec16s, grid-stride beyond.
/// Threads: groups_threads, two vec16s each; 2^n neighbouring lanes hold a group.
/// Shared memory: none.
/// Limits: can_make_groups(), can_take_vec16() of x and codes.
template <dtype X, dtype Code>
__global__ void __launch_bounds__(groups_threads) quantize_groups(quantize_parameters const p) {
  quantize_groups_of<Code>(stack_source<X>{p.x}, p.target);
}

/// Computes: codes and scales in one pass, a scale for every block of rows and columns.
/// Grid: a CTA per block, grid-stride beyond.
/// Threads: as many as hold a block, quantize_held(X) elements each; at most 1024.
/// Shared memory: two words per warp, for the largest magnitude.
/// Limits: can_make_blocks(), can_take_vec16() of x and codes.
template <dtype X, dtype Code>
__global__ void __launch_bounds__(1024) quantize_blocks(quantize_parameters const p) {
  quantize_blocks_of<Code>(stack_source<X>{p.x}, p.target);
}

using handle = kernel<quantize_parameters>;

/// visitor(constant) with x's type as a constant.
template <class Visitor>
handle visit_x(dtype x, Visitor const& visitor) {
  if (x == dtype::bf16) return visitor(std::integral_constant<dtype, dtype::bf16>{});
  if (x == dtype::f16) return visitor(std::integral_constant<dtype, dtype::f16>{});
  return visitor(std::integral_constant<dtype, dtype::f32>{});
}

}  // namespace

handle quantize_groups_kernel(dtype x, dtype values) {
  return visit_x(x, [&](auto type) -> handle {
    constexpr char const* name = "quantize_groups";
    if (values == dtype::e5m2) return {name, quantize_groups<type(), dtype::e5m2>};
    if (values == dtype::int8) return {name, quantize_groups<type(), dtype::int8>};
    if (values == dtype::int4) return {name, quantize_groups<type(), dtype::int4>};
    if (values == dtype::fp4) return {name, quantize_groups<type(), dtype::fp4>};
    return {name, quantize_groups<type(), dtype::e4m3>};
  });
}

handle quantize_blocks_kernel(dtype x, dtype values) {
  return visit_x(x, [&](auto type) -> handle {
    constexpr char const* name = "quantize_blocks";
    if (values == dtype::e5m2) return {name, quantize_blocks<type(), dtype::e5m2>};
    if (values == dtype::int8) return {name, quantize_blocks<type(), dtype::int8>};
    return {name, quantize_blocks<type(), dtype::e4m3>};
  });
}

}  // namespace moe64::cuda
