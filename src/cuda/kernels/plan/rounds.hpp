#pragma once

#include "cuda/kernels/plan/plan.hpp"

namespace moe64::cuda {

/// A plan in one launch: a CTA for every plan_rounds_step slots, each of which counts all of them.
/// The largest problem for which this is faster than three launches:
inline constexpr index_t plan_rounds_step = plan_threads;
inline constexpr index_t plan_rounds_slots = 4096;
inline constexpr index_t plan_rounds_experts = 1024;

/// plan_args of contiguous arrays, in few bytes: parameters are a part of the launch latency.
struct plan_rounds_parameters {
  void const* ids;      ///< [slots] int32, int64, or uint8: a mask
  void const* weights;  ///< [slots] f32, bf16, f16, or null: 1
  int slots, experts, top_k;
  int most_rows;  ///< that an expert keeps
  dtype ids_type, weights_type;
  index_t first_expert;
  std::int64_t* slot_to_row;
  std::int64_t* row_to_slot;
  float* slot_weight;
  std::int64_t* expert_begin;
  index_t experts_total;
  std::int64_t* status;
};

[[nodiscard]] kernel<plan_rounds_parameters> plan_rounds_kernel();
[[nodiscard]] index_t plan_rounds_shared(index_t experts);

}  // namespace moe64::cuda
