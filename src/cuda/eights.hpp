#pragma once

#include "moe64/error.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// Whether the kernels that take eight numbers at a time can take this tensor, whose last dimension
/// is its columns: adjacent, whole eights, each aligned to its size (at most 16 bytes). `argument`
/// names it in the reason.
[[nodiscard]] support can_take_eights(char const* argument, tensor_view const& tensor);

}  // namespace moe64::cuda
