#pragma once

#include "moe64/index.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace moe64::checkpoint {

/// The element types of a safetensors file, in the order in which the format's reference writer
/// sorts them: by alignment, so that a file sorted from the last to the first has no gaps.
enum class file_dtype : std::uint8_t {
  boolean,
  f4,  ///< e2m1; a shape counts elements, two to the byte
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,  ///< the FN flavour: largest 448, NaN 0x7f and 0xff
  f8_e8m0,
  f8_e4m3fnuz,  ///< largest 240, NaN 0x80: the codes of FN read half as large here
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

inline constexpr int file_dtype_count = 22;

/// Bits of one element: 4 and 6 for the packed types.
[[nodiscard]] index_t bits(file_dtype type) noexcept;

/// The spelling inside a file: "F8_E4M3", "BOOL".
[[nodiscard]] std::string_view name(file_dtype type) noexcept;

/// The inverse of name(); empty for an unknown spelling.
[[nodiscard]] std::optional<file_dtype> file_dtype_named(std::string_view text) noexcept;

}  // namespace moe64::checkpoint
