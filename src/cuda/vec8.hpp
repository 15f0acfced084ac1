#pragma once

#include "moe64/error.hpp"
#include "moe64/tensor.hpp"

namespace moe64::cuda {

/// Whether kernels can load or store this tensor as vec8s (kernels/device/vec8.cuh): its columns,
/// the last dimension, are contiguous and a multiple of 8, and each vec8 is aligned to its size, at
/// most 16 bytes. `argument` names it in the reason.
[[nodiscard]] support can_take_vec8(char const* argument, tensor_view const& tensor);
/// The same for vec16s.
[[nodiscard]] support can_take_vec16(char const* argument, tensor_view const& tensor);

}  // namespace moe64::cuda
