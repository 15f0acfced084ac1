#pragma once

#include "moe64/error.hpp"
#include "moe64/ops.hpp"

namespace moe64::cpu {

/// Refuse a call whose ids include `count` illegal ones, the first of them in `first_slot`.
[[noreturn]] void refuse_ids(plan_args const& args, index_t count, index_t first_slot);

/// src/cpu/plan/plan_parallel.cpp: a counting sort of chunks of tokens. Takes every call.
void plan_parallel(plan_args const& args, stream where);
[[nodiscard]] index_t plan_parallel_scratch_bytes(index_t tokens, index_t top_k, index_t experts);

}  // namespace moe64::cpu
