#include "checkpoint/load/repack.hpp"

#include "core/fail.hpp"

#include <cstring>

namespace moe64::checkpoint {

void int4_from_offset(std::span<std::byte> codes) noexcept {
  for (std::byte& byte : codes) byte ^= std::byte{0x88};
}

void expand_scale_rows(stack_format const& format, std::span<std::byte const> stored,
                       std::span<std::byte> expanded) {
  index_t const number = bits(format.scale_type) / 8;
  index_t const cols = format.layout.grid_cols(format.cols);
  auto const stored_bytes = static_cast<index_t>(stored.size());
  auto const expanded_bytes = static_cast<index_t>(expanded.size());
  if (!format.expand_scale_rows || stored_bytes != scale_slice_bytes(format) ||
      expanded_bytes != checked_mul(format.scales.slice, number)) {
    fail(errc::internal, "[expand_scale_rows] {} stored and {} expanded bytes, expected {} and {}",
         stored_bytes, expanded_bytes, scale_slice_bytes(format), format.scales.slice * number);
  }
  std::byte* out = expanded.data();
  for (index_t row = 0; row < format.rows; ++row) {
    index_t const from = (format.expand_offset + row) / format.expand_block;
    for (index_t col = 0; col < cols; ++col) {
      index_t const element =
          from * format.stored_scales.row_stride + col * format.stored_scales.col_stride;
      std::memcpy(out, stored.data() + element * number, static_cast<std::size_t>(number));
      out += number;
    }
  }
}

}  // namespace moe64::checkpoint
