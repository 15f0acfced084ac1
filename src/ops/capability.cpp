#include "ops/capability.hpp"

#include "backend.hpp"

namespace moe64 {

support multiplies_float8(moe64::device where) { return backend_of(where).multiplies_float8(); }

bool gathers_codes_once(moe64::device where, dtype x, index_t cols) {
  return backend_of(where).gathers_codes_once(x, cols);
}

index_t layer_counter_bytes(moe64::device where, index_t slots, index_t hidden, index_t inter) {
  return backend_of(where).layer_counter_bytes(slots, hidden, inter);
}

}  // namespace moe64
