#include "ops/fused_layer.hpp"

#include "ops/dispatch.hpp"

namespace moe64 {

bool run_fused_layer(layer_calls const& calls, stream where) {
  std::string refusals;
  auto const* const found = first_taking(calls, where, refusals);
  if (found == nullptr) return false;
  run_and_print(*found, calls, where);
  return true;
}

index_t layer_counter_bytes(index_t slots, index_t hidden, index_t inter, moe64::device where) {
  return backend_of(where).layer_counter_bytes(slots, hidden, inter);
}

}  // namespace moe64
