#pragma once

#include "checkpoint/convert/plan.hpp"

#include <vector>

namespace moe64::checkpoint {

/// One output tensor, or a pair of values and scales, with its job. Positions in the job count
/// within `tensors`.
struct planned_output {
  std::vector<new_tensor> tensors;
  conversion_job job;
};

/// What the target makes of a module. Names are those of the source, with two exceptions that
/// follow from what Transformers opens: gpt-oss stacks become [experts, in, out] in bf16 and f16,
/// and fused stacks become matrices of single experts in fp8.
[[nodiscard]] std::vector<planned_output> outputs_of(weight_module const& weight,
                                                     stored_matrices const& matrices,
                                                     conversion_plan const& plan,
                                                     module_delta const* delta);

/// What numbers without scales become: bf16 or f16.
[[nodiscard]] file_dtype float_type(convert_target target);

/// The codes of the module are those of the target already.
[[nodiscard]] bool has_target_format(weight_module const& weight, convert_target target);

}  // namespace moe64::checkpoint
