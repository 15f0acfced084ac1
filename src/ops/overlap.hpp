#pragma once

#include "moe64/tensor.hpp"

namespace moe64 {

/// Whether two views share a byte. Exact for views of one tensor that were cut by columns, rows or
/// interleaving; where strides are too tangled to tell, the answer is yes.
[[nodiscard]] bool overlaps(tensor_view const& left, tensor_view const& right);

/// Whether two elements of one view share memory, as with a stride of 0.
[[nodiscard]] bool overlaps_itself(tensor_view const& tensor);

}  // namespace moe64
