#pragma once

#include "cuda/kernels/quantize/fp8_row_major.hpp"
#include "cuda/runtime/launch.hpp"
#include "moe64/error.hpp"

/// Which calls the fp8_row_major kernels take, as entries of that name in the lists of quantize,
/// gather and activate.
namespace moe64::cuda {

/// Items that kernels count with 31 bits, one grid stride further included.
inline constexpr index_t row_major_most_items = (index_t{1} << 31) - (index_t{1} << 20);

/// Where items are `width` times 16 columns: refused where codes or scales are of another kind, a
/// row is not whole items, or they are so large or far apart that counts do not fit 31 bits.
[[nodiscard]] support can_be_row_major(quantize_target const& target, int width);
/// Of one that can.
[[nodiscard]] row_major_target row_major_target_of(quantize_target const& target, int width);
/// Whether the rows of a matrix, or of the first one of a stack, have 16 bits and are less than
/// 4 GiB apart; `argument` names it in the reason.
[[nodiscard]] support has_row_major_rows(char const* argument, tensor_view const& matrix);
[[nodiscard]] row_major_rows row_major_rows_of(tensor_view const& matrix);

/// CTAs that take `tile` items each.
[[nodiscard]] index_t row_major_ctas(launcher const& on, row_major_target const& to, index_t tile);
/// A CTA that takes whole rows, an item per thread: as many rows as leave few threads idle.
struct row_major_cta {
  index_t threads, rows;
};
[[nodiscard]] row_major_cta row_major_cta_of(row_major_target const& to);

}  // namespace moe64::cuda
