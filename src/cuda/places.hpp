#pragma once

#include "cuda/kernels/device/expert_place.hpp"
#include "moe64/quant.hpp"

namespace moe64::cuda {

/// Tables of places as kernels see them.
[[nodiscard]] inline matrix_places places_of(tensor_view const& table, tensor_view const& stack) {
  return {static_cast<index_t const*>(table.data), table.stride[0], stack.extent[0]};
}
[[nodiscard]] inline part_places places_of(quantized_view const& q) {
  return {places_of(q.places().values, q.values()), places_of(q.places().scales, q.scales())};
}

/// Whether a part of a stack has a table.
[[nodiscard]] inline bool has_places(weight_stack const& stack) {
  return stack.part(0).places().present() ||
         (stack.parts() == 2 && stack.part(1).places().present());
}

}  // namespace moe64::cuda
