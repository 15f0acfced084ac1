#pragma once

#include "checkpoint/dialect/module_format.hpp"
#include "checkpoint/safetensors/file_dtype.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace moe64::checkpoint {

/// How the elements of a tensor are looked at.
enum class value_kind : std::uint8_t {
  opaque,    ///< integers: read, not judged
  e4m3,      ///< NaN 0x7f, 0xff; largest 0x7e
  e5m2,      ///< infinity and NaN from 0x7c on; largest 0x7b
  e4m3fnuz,  ///< NaN 0x80, no -0; largest 0x7f
  e5m2fnuz,  ///< the same
  e8m0,      ///< NaN 0xff
  fp4,       ///< two e2m1 to the byte; no NaN
  int4,      ///< two to the byte, stored as value + 8; no NaN, no -0
  f16,
  bf16,
  f32,
  f64,
};

[[nodiscard]] value_kind kind_of(file_dtype type) noexcept;  ///< of a tensor by itself
[[nodiscard]] value_kind kind_of(value_codec codec, file_dtype type) noexcept;
[[nodiscard]] bool is_codes(value_kind kind) noexcept;  ///< they need a scale to be numbers
/// Bits of one element of this kind.
[[nodiscard]] index_t bits(value_kind kind, file_dtype type) noexcept;

/// What was counted in values. Pieces of one tensor are added up.
struct value_counts {
  index_t elements = 0;
  index_t non_finite = 0;     ///< NaN, infinity
  index_t saturated = 0;      ///< codes of the largest magnitude; both ends of int4. Codes alone.
  index_t negative_zero = 0;  ///< of codes alone
  double largest = 0.0;       ///< finite magnitude, of codes before scaling

  void add(value_counts const& other) noexcept;
  friend bool operator==(value_counts const&, value_counts const&) = default;
};

/// Looks at whole elements once, at the speed of memory.
[[nodiscard]] value_counts count_values(value_kind kind, file_dtype type,
                                        std::span<std::byte const> bytes) noexcept;

/// One element after the other: for edges that share a byte with what does not count.
[[nodiscard]] value_counts count_nibble(value_kind kind, unsigned nibble) noexcept;

}  // namespace moe64::checkpoint
