#pragma once

#include "moe64/device.hpp"
#include "moe64/dtype.hpp"
#include "moe64/error.hpp"
#include "moe64/index.hpp"
#include "moe64/ops.hpp"

namespace moe64 {

/// Whether `where` multiplies the codes of such a call in hardware, with the implementation that
/// the call forces if it forces one, and if not why not.
[[nodiscard]] support multiplies_float8(grouped_gemm_args const& product, moe64::device where);
/// Whether its gather of tokens [., cols] of type x makes codes once for each token.
[[nodiscard]] bool gathers_codes_once(moe64::device where, dtype x, index_t cols);
/// Memory that calls at once need (ops/at_once.hpp), of a layer in w8a8; 0: there are none.
[[nodiscard]] index_t layer_counter_bytes(moe64::device where, index_t slots, index_t hidden,
                                          index_t inter);

}  // namespace moe64
