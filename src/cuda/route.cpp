#include "cuda/kernels/route/route.hpp"

#include "cuda/operations.hpp"
#include "cuda/runtime/launch.hpp"

#include <fmt/format.h>

namespace moe64::cuda {
namespace {

constexpr int threads = route_warps * 32;

grid grid_of(launcher const& on, index_t tokens, index_t kept) {
  index_t const shared = route_warps * kept * index_t{sizeof(float)};
  return {on.ctas_for(ceil_div(tokens, route_warps), 16), threads, shared};
}

template <class Args>
support fits_scored(Args const& args) {
  index_t const experts = args.logits.extent[1];
  if (experts <= route_scored_experts) return support::yes();
  return support::no(
      fmt::format("{} experts: it keeps the scores of {}", experts, route_scored_experts));
}

route_parameters parameters_of(route_args const& args) {
  if (args.expert_ids.type == dtype::int32) {
    static_cast<void>(narrow<std::int32_t>(args.logits.extent[1]));  // every id fits
  }
  return {args.logits, args.selection_bias, args.expert_ids, args.weights, args.options};
}

void run_reference(route_args const& args, stream where) {
  launcher on("route", args, where);
  on.launch(route_reference_kernel(), grid_of(on, args.logits.extent[0], 0), parameters_of(args));
}

void run_scored(route_args const& args, stream where) {
  launcher on("route", args, where);
  index_t const kept =
      route_kept(args.logits.extent[1], args.options.expert_groups, args.expert_ids.extent[1]);
  on.launch(route_scored_kernel(), grid_of(on, args.logits.extent[0], kept), parameters_of(args));
}

route_backward_parameters parameters_of(route_backward_args const& args) {
  return {args.logits, args.expert_ids, args.d_weights, args.d_logits, args.options};
}

void run_backward_reference(route_backward_args const& args, stream where) {
  launcher on("route_backward", args, where);
  on.launch(route_backward_reference_kernel(), grid_of(on, args.logits.extent[0], 0),
            parameters_of(args));
}

void run_backward_scored(route_backward_args const& args, stream where) {
  launcher on("route_backward", args, where);
  index_t const kept = kept_scores(args.logits.extent[1]);
  on.launch(route_backward_scored_kernel(), grid_of(on, args.logits.extent[0], kept),
            parameters_of(args));
}

constexpr implementation<route_args> routers[] = {
    {"scored_once", fits_scored<route_args>, run_scored},
    {"reference", any_call<route_args>, run_reference},
};
constexpr implementation<route_backward_args> backward_routers[] = {
    {"scored_once", fits_scored<route_backward_args>, run_backward_scored},
    {"reference", any_call<route_backward_args>, run_backward_reference},
};

}  // namespace

implementation_list<route_args> route_list() { return routers; }
implementation_list<route_backward_args> route_backward_list() { return backward_routers; }

}  // namespace moe64::cuda
