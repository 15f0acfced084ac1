#pragma once

#include "core/fail.hpp"
#include "core/offset.hpp"

#include <cstdint>
#include <type_traits>

namespace moe64 {

template <class T>
inline constexpr bool dtype_holds = false;
template <>
inline constexpr bool dtype_holds<float> = true;
template <>
inline constexpr bool dtype_holds<std::int32_t> = true;
template <>
inline constexpr bool dtype_holds<std::int64_t> = true;
template <>
inline constexpr bool dtype_holds<std::uint8_t> = true;

/// The typed twin of a tensor_view. The door has checked type and rank; a mismatch here is a bug of
/// moe64.
template <class T, std::size_t Rank>
[[nodiscard]] view<T, Rank> as(tensor_view const& tensor) {
  static_assert(dtype_holds<T>);
  constexpr dtype expected = std::is_same_v<T, float>          ? dtype::f32
                             : std::is_same_v<T, std::int32_t> ? dtype::int32
                             : std::is_same_v<T, std::int64_t> ? dtype::int64
                                                               : dtype::uint8;
  if (tensor.type != expected || tensor.rank != Rank) {
    fail(errc::internal, "[view] {} seen as {} of rank {}", to_string(tensor), name(expected),
         Rank);
  }
  view<T, Rank> result;
  result.data = static_cast<T*>(tensor.data);
  for (std::size_t d = 0; d < Rank; ++d) {
    result.stride[d] = tensor.stride[d];
#ifdef MOE64_CHECKS
    result.extent[d] = tensor.extent[d];
#endif
  }
  return result;
}

}  // namespace moe64
