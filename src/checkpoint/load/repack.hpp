#pragma once

#include "checkpoint/dialect/stack_format.hpp"

#include <cstddef>
#include <span>

namespace moe64::checkpoint {

/// Nibbles that store value + 8 become two's complement, in place: the order of nibbles in the
/// little-endian words of int4x8 is that of dtype::int4 already, so only the top bit of each flips.
/// Its own inverse.
void int4_from_offset(std::span<std::byte> codes) noexcept;

/// One expert's stored grid of scales, written as one row of scales per row of the part. Both spans
/// have exactly the sizes of the format: scale_slice_bytes() and format.scales.slice numbers.
void expand_scale_rows(stack_format const& format, std::span<std::byte const> stored,
                       std::span<std::byte> expanded);

}  // namespace moe64::checkpoint
