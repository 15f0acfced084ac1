#pragma once

#include "moe64/device.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

namespace moe64 {

/// Whether an implementation that layers prefer (backend.hpp) takes such a call on `where`, the one
/// that the call forces if it forces one, and if not why not. For a layer that has two ways to its
/// result; the call may lie in memory that is nowhere.
[[nodiscard]] support takes_preferred(grouped_gemm_args const& args, moe64::device where);
[[nodiscard]] support takes_preferred(gather_args const& args, moe64::device where);

}  // namespace moe64
