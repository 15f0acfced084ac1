#pragma once

#include "cuda/kernels/device/fp8_row_major.hpp"
#include "cuda/runtime/launch.hpp"

/// Which calls can have the kernels for what is usually asked for.
namespace moe64::cuda {

/// Items that kernels count with 31 bits, also when they look one step of the grid ahead.
inline constexpr index_t row_major_most_items = (index_t{1} << 31) - (index_t{1} << 20);

/// Where items are `width` sixteens. Nothing where the codes or scales are of another kind, a row
/// is not whole items, or they are so large or far apart that counts do not fit 31 bits.
[[nodiscard]] std::optional<row_major_target> row_major_target_of(quantize_target const& target,
                                                                  int width);
/// Rows of a matrix, or of the first one of a stack; nothing where they are 4 GiB apart.
[[nodiscard]] std::optional<row_major_rows> row_major_rows_of(tensor_view const& matrix);

/// Blocks that take `tile` items each.
[[nodiscard]] index_t row_major_blocks(launcher const& on, row_major_target const& to,
                                       index_t tile);
/// Threads with an item each for whole rows, of which few are idle, and how many rows that are.
struct row_major_team {
  index_t threads, rows;
};
[[nodiscard]] row_major_team row_major_team_of(row_major_target const& to);

}  // namespace moe64::cuda
