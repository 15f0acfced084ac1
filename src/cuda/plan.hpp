#pragma once

#include "cuda/kernels/plan/rounds.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// Which calls kernels take that make a plan in one launch, and their parameters.
namespace moe64::cuda {

[[nodiscard]] support fits_one_launch(plan_args const& args);
[[nodiscard]] plan_rounds_parameters rounds_parameters_of(plan_args const& args);

}  // namespace moe64::cuda
