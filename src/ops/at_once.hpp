#pragma once

#include "backend.hpp"

namespace moe64 {

/// Makes all calls of a layer at once where the backend can, and says whether it did. The operands
/// have been checked.
[[nodiscard]] bool run_at_once(layer_calls const& calls, stream where);

}  // namespace moe64
