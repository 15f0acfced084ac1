#pragma once

#include "moe64/tensor.hpp"

#include <cstddef>

/// The only code that forms an address. Everything is 64-bit: a view may span more than 2^32
/// elements.
namespace moe64 {

/// Offset in elements of (i, j, k); indices past the rank must be 0.
[[nodiscard]] constexpr index_t offset_of(tensor_view const& tensor, index_t i, index_t j = 0,
                                          index_t k = 0) noexcept {
  return i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2];
}

/// A run of elements along one dimension of a tensor: what row kernels work on.
struct row_view {
  void* data;      ///< of the whole tensor: packed types cannot point into a byte
  index_t offset;  ///< of element 0
  index_t stride;
  dtype type;
};

/// The run of a matrix [rows, cols] that is row i.
[[nodiscard]] constexpr row_view row_of(tensor_view const& matrix, index_t i) noexcept {
  return {matrix.data, offset_of(matrix, i), matrix.stride[1], matrix.type};
}
/// The run of a stack [experts, rows, cols] that is row j of matrix i.
[[nodiscard]] constexpr row_view row_of(tensor_view const& stack, index_t i, index_t j) noexcept {
  return {stack.data, offset_of(stack, i, j), stack.stride[2], stack.type};
}

/// A typed view of a tensor whose dtype and rank are already known. Builds with MOE64_CHECKS test
/// every index.
template <class T, std::size_t Rank>
struct view {
  T* data = nullptr;
  index_t stride[Rank] = {};
#ifdef MOE64_CHECKS
  index_t extent[Rank] = {};
#endif

  template <class... Index>
  [[nodiscard]] constexpr T& operator()(Index... index) const noexcept {
    static_assert(sizeof...(Index) == Rank);
    index_t const at[] = {static_cast<index_t>(index)...};
    index_t offset = 0;
    for (std::size_t d = 0; d < Rank; ++d) {
#ifdef MOE64_CHECKS
      if (at[d] < 0 || at[d] >= extent[d]) __builtin_trap();
#endif
      offset += at[d] * stride[d];
    }
    return data[offset];
  }
};

}  // namespace moe64
