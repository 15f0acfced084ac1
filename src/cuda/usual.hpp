#pragma once

#include "cuda/kernels/usual.hpp"
#include "cuda/launch.hpp"

/// Which calls can have the kernels for what is usually asked for.
namespace moe64::cuda {

/// Nothing where the codes or scales are of another kind, or so large or far apart that counts
/// within the matrix do not fit 31 bits.
[[nodiscard]] std::optional<usual_target> usual_target_of(quantize_target const& target);
/// Rows of a matrix, or of the first one of a stack; nothing where they are 4 GiB apart.
[[nodiscard]] std::optional<usual_rows> usual_rows_of(tensor_view const& matrix);

/// Blocks for groups, and threads that hold a row with one scale or a token.
[[nodiscard]] grid usual_groups_grid(launcher const& on, usual_target const& to);
[[nodiscard]] index_t usual_threads_of_row(usual_target const& to);

}  // namespace moe64::cuda
