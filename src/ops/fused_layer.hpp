#pragma once

#include "backend.hpp"

namespace moe64 {

/// Runs all calls of a layer where an implementation takes them as one, and says whether one did.
/// The operands have been checked.
[[nodiscard]] bool run_fused_layer(layer_calls const& calls, stream where);

/// Counters that it needs; 0: no implementation on `where` takes a layer of so many slots.
[[nodiscard]] index_t layer_counter_bytes(index_t slots, index_t hidden, index_t inter,
                                          moe64::device where);

}  // namespace moe64
