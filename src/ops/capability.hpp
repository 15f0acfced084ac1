#pragma once

#include "moe64/device.hpp"
#include "moe64/error.hpp"

namespace moe64 {

/// Whether `where` multiplies 8-bit floats in hardware, and if not why not.
[[nodiscard]] support multiplies_float8(moe64::device where);

}  // namespace moe64
