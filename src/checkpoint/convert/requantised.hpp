#pragma once

#include "checkpoint/convert/outputs.hpp"

namespace moe64::checkpoint {

/// A quantised module with a delta in the format that it has: codes and scales under their names.
/// errc::unsupported for formats whose scales a tile of rows cannot decide: of global scales, and
/// of powers of two stored as f32.
[[nodiscard]] planned_output requantised(weight_module const& weight,
                                         stored_matrices const& matrices,
                                         module_delta const& delta);

}  // namespace moe64::checkpoint
