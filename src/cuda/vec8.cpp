#include "cuda/vec8.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace moe64::cuda {
namespace {

support can_take(index_t count, char const* argument, tensor_view const& tensor) {
  std::string const label(argument);
  int const last = tensor.rank - 1;
  if (tensor.extent[last] % count != 0) {
    return support::no(label + " has " + std::to_string(tensor.extent[last]) +
                       " columns, not a multiple of " + std::to_string(count));
  }
  if (tensor.stride[last] != 1) {
    return support::no("columns of " + label + " are not contiguous");
  }
  index_t const alignment = std::min<index_t>(bits(tensor.type) * count / 8, 16);
  bool aligned =
      reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(alignment) == 0;
  for (int d = 0; d < last; ++d) {
    bool const whole_bytes = tensor.stride[d] * bits(tensor.type) % 8 == 0;
    bool const whole_vectors = tensor.stride[d] * bits(tensor.type) / 8 % alignment == 0;
    aligned = aligned && (tensor.extent[d] <= 1 || (whole_bytes && whole_vectors));
  }
  if (!aligned) {
    return support::no("rows of " + label + " do not start at multiples of " +
                       std::to_string(alignment) + " bytes");
  }
  return support::yes();
}

}  // namespace

support can_take_vec8(char const* argument, tensor_view const& tensor) {
  return can_take(8, argument, tensor);
}

support can_take_vec16(char const* argument, tensor_view const& tensor) {
  return can_take(16, argument, tensor);
}

}  // namespace moe64::cuda
