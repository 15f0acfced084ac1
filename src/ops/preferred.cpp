#include "ops/preferred.hpp"

#include "ops/dispatch.hpp"

namespace moe64 {
namespace {

template <class Args>
support answer_of(Args const& args, moe64::device where, char const* what) {
  std::string refusals;
  for (auto const& candidate : backend_of(where).*operation_traits<Args>::list) {
    if (!candidate.preferred) continue;
    bool const asked = args.implementation.empty() || args.implementation == candidate.name;
    support const answer = asked ? candidate.supports(args)
                                 : support::no(fmt::format("implementation {} is asked for, not {}",
                                                           args.implementation, candidate.name));
    if (answer) return answer;
    refusals += (refusals.empty() ? "" : "; ") + answer.reason();
  }
  if (refusals.empty()) return support::no(fmt::format("{} has no {}", to_string(where), what));
  return support::no(std::move(refusals));
}

}  // namespace

support takes_preferred(grouped_gemm_args const& args, moe64::device where) {
  return answer_of(args, where, "FP8 GEMM in hardware");
}

support takes_preferred(gather_args const& args, moe64::device where) {
  return answer_of(args, where, "gather that makes the codes of a token once");
}

}  // namespace moe64
