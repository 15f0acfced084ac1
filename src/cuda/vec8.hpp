#pragma once

#include "moe64/error.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// Blocks for each multiprocessor that are as good as no limit: where blocks that do one task and
/// are gone keep the memory busier than blocks that stay.
inline constexpr index_t one_task_each = index_t{1} << 20;

/// Whether the kernels that take eight numbers at a time can take this tensor, whose last dimension
/// is its columns: adjacent, whole eights, each aligned to its size (at most 16 bytes). `argument`
/// names it in the reason.
[[nodiscard]] support can_take_vec8(char const* argument, tensor_view const& tensor);
/// The same for sixteen numbers at a time.
[[nodiscard]] support can_take_vec16(char const* argument, tensor_view const& tensor);

}  // namespace moe64::cuda
