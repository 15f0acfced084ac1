#pragma once

#include "moe64/error.hpp"
#include "moe64/export.hpp"
#include "moe64/ops.hpp"

#include <string>
#include <vector>

namespace moe64 {

/// One implementation of an operation, and whether it can run a given call.
struct implementation_report {
  std::string name;
  support answer;
};

/// The implementations of the operation that `Args` belongs to, best first, each with its answer
/// for this call. The first that says yes is the one that runs. Defined for every *_args struct of
/// ops.hpp; the operands are only looked at, not read.
template <class Args>
[[nodiscard]] std::vector<implementation_report> explain(Args const& args, stream where);

extern template MOE64_API std::vector<implementation_report> explain(quantize_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(dequantize_args const&,
                                                                     stream);
extern template MOE64_API std::vector<implementation_report> explain(route_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(route_backward_args const&,
                                                                     stream);
extern template MOE64_API std::vector<implementation_report> explain(plan_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(gather_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(combine_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(
    slot_weight_gradient_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(grouped_gemm_args const&,
                                                                     stream);
extern template MOE64_API std::vector<implementation_report> explain(grouped_gemm_wgrad_args const&,
                                                                     stream);
extern template MOE64_API std::vector<implementation_report> explain(activate_args const&, stream);
extern template MOE64_API std::vector<implementation_report> explain(activate_backward_args const&,
                                                                     stream);

}  // namespace moe64
