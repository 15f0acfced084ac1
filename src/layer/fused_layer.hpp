#pragma once

#include "layer/workspace.hpp"

namespace moe64 {

/// The operands of a forward as matrices.
struct forward_operands {
  tensor_view x;           ///< [tokens, hidden] io
  tensor_view expert_ids;  ///< [tokens, top_k] int32, int64
  tensor_view weights;     ///< [tokens, top_k] f32, bf16, f16, or absent
  tensor_view y;           ///< [tokens, hidden] io
  index_t capacity;
};

/// Runs forward in w8a8 as one call where the backend can, and says whether it did: for few tokens,
/// where the beginning and the end of each call are most of its time. The bits are the same.
[[nodiscard]] bool forward_fused(layer_desc const& layer, forward_operands const& operands,
                                 saved_buffers const& saved, forward_buffers const& b,
                                 stream where);

}  // namespace moe64
