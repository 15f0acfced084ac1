#include "ops/capability.hpp"

#include "backend.hpp"

#include <fmt/format.h>

namespace moe64 {

support multiplies_float8(grouped_gemm_args const& product, moe64::device where) {
  implementation<grouped_gemm_args> const* const multiplier = backend_of(where).float8_product;
  if (multiplier == nullptr) {
    return support::no(fmt::format("{} has no products of 8-bit floats", to_string(where)));
  }
  if (!product.implementation.empty() && product.implementation != multiplier->name) {
    return support::no(
        fmt::format("implementation {} is asked for, 8-bit floats are multiplied by {}",
                    product.implementation, multiplier->name));
  }
  return multiplier->supports(product);
}

bool gathers_codes_once(moe64::device where, dtype x, index_t cols) {
  return backend_of(where).gathers_codes_once(x, cols);
}

index_t layer_counter_bytes(moe64::device where, index_t slots, index_t hidden, index_t inter) {
  return backend_of(where).layer_counter_bytes(slots, hidden, inter);
}

}  // namespace moe64
