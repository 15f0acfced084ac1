#include "moe64/explain.hpp"

#include "ops/dispatch.hpp"

namespace moe64 {

template <class Args>
std::vector<implementation_report> explain(Args const& args, stream where) {
  std::vector<implementation_report> reports;
  for (auto const& candidate : backend_of(where.device).*operation_traits<Args>::list) {
    reports.push_back({candidate.name, candidate.supports(args)});
  }
  return reports;
}

template std::vector<implementation_report> explain(quantize_args const&, stream);
template std::vector<implementation_report> explain(dequantize_args const&, stream);
template std::vector<implementation_report> explain(route_args const&, stream);
template std::vector<implementation_report> explain(route_backward_args const&, stream);
template std::vector<implementation_report> explain(plan_args const&, stream);
template std::vector<implementation_report> explain(gather_args const&, stream);
template std::vector<implementation_report> explain(combine_args const&, stream);
template std::vector<implementation_report> explain(slot_weight_gradient_args const&, stream);
template std::vector<implementation_report> explain(grouped_gemm_args const&, stream);
template std::vector<implementation_report> explain(grouped_gemm_wgrad_args const&, stream);
template std::vector<implementation_report> explain(activate_args const&, stream);
template std::vector<implementation_report> explain(activate_backward_args const&, stream);

}  // namespace moe64
