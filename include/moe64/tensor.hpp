#pragma once

#include "moe64/device.hpp"
#include "moe64/dtype.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace moe64 {

inline constexpr int max_rank = 3;

/// A borrowed, strided, typed array on a device: what crosses every API of moe64. It owns nothing.
/// Rank 0 means "absent" (an optional operand that was not given); an array with zero elements is
/// present and may have null data. Strides count elements, are never negative, and may be 0 for
/// operands that are only read.
struct tensor_view {
  void* data = nullptr;
  dtype type = dtype::f32;
  std::uint8_t rank = 0;
  moe64::device device;
  index_t extent[max_rank] = {};
  index_t stride[max_rank] = {};

  /// A row-major array without gaps. Packed types round the innermost extent up to whole bytes.
  /// Throws errc::size_overflow when its byte size does not fit, errc::invalid_argument for a
  /// negative extent.
  [[nodiscard]] MOE64_API static tensor_view contiguous(void const* data, dtype type,
                                                        std::initializer_list<index_t> extents,
                                                        moe64::device where = {});

  [[nodiscard]] constexpr bool present() const noexcept { return rank != 0; }

  /// Number of elements; checked.
  [[nodiscard]] MOE64_API index_t size() const;
  /// One past the last element offset that the view can reach (0 when it is empty); checked. It is
  /// the span, not the size, that decides how much memory a view needs.
  [[nodiscard]] MOE64_API index_t span() const;
  /// span() in bytes, packed types rounded up.
  [[nodiscard]] MOE64_API index_t span_bytes() const;
  [[nodiscard]] MOE64_API bool is_contiguous() const;

  /// Elements [begin, end) of one dimension. A packed type must be cut at a whole byte.
  [[nodiscard]] MOE64_API tensor_view slice(int dimension, index_t begin, index_t end) const;
  /// Every `step`-th element of one dimension, starting with `begin`.
  [[nodiscard]] MOE64_API tensor_view every(int dimension, index_t begin, index_t step) const;
  /// The same elements with the last two dimensions exchanged: how a stack stored [experts, in,
  /// out] is stated.
  [[nodiscard]] MOE64_API tensor_view transposed() const;
  /// [..., last] seen as [rows, last]; errc::shape_mismatch when the leading dimensions do not fold
  /// into one stride.
  [[nodiscard]] MOE64_API tensor_view as_matrix() const;
  /// A matrix [rows, cols] seen as [1, rows, cols].
  [[nodiscard]] MOE64_API tensor_view as_stack() const;
};
static_assert(sizeof(tensor_view) == 64 && std::is_trivially_copyable_v<tensor_view>);

/// "[64, 3072, 2048] e4m3 cpu", with strides when they are not the usual ones: for messages.
[[nodiscard]] MOE64_API std::string to_string(tensor_view const& tensor);

/// Memory that the caller lends to a call. Its size comes from the matching query, which is exact.
struct workspace {
  void* data = nullptr;
  index_t bytes = 0;
  moe64::device device;
};

/// Every workspace starts at a multiple of this many bytes.
inline constexpr index_t workspace_alignment = 64;

}  // namespace moe64
