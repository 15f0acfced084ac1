#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {
namespace {

void check_options(checker const& check, route_options const& options, index_t experts,
                   index_t top_k) {
  check.require(options.score <= scoring::sigmoid,
                fmt::format("scoring {} is unknown", fmt::underlying(options.score)));
  check.require(options.group_by <= group_score::top2_sum,
                fmt::format("group score {} is unknown", fmt::underlying(options.group_by)));
  check.at_least("expert_groups", options.expert_groups, 1);
  check.require(
      experts % options.expert_groups == 0,
      fmt::format("experts ({}) do not split into {} groups", experts, options.expert_groups));
  check.require(
      options.groups_kept >= 1 && options.groups_kept <= options.expert_groups,
      fmt::format("groups_kept ({}) is not in 1..{}", options.groups_kept, options.expert_groups));
  index_t const eligible = experts / options.expert_groups * options.groups_kept;
  check.require(top_k <= eligible,
                fmt::format("top_k ({}) exceeds the {} experts to choose from", top_k, eligible));
}

}  // namespace

void route(route_args const& args, stream where) {
  checker const check("route", where.device);
  check.number("logits", args.logits, {any_extent, any_extent});
  index_t const tokens = args.logits.extent[0];
  index_t const experts = args.logits.extent[1];
  check.shape("expert_ids", args.expert_ids, {tokens, any_extent});
  check.type("expert_ids", args.expert_ids, {dtype::int32, dtype::int64});
  index_t const top_k = args.expert_ids.extent[1];
  check.at_least("top_k", top_k, 1);
  check.shape("weights", args.weights, {tokens, top_k});
  check.type("weights", args.weights, {dtype::f32});
  if (args.selection_bias.present()) {
    check.shape("selection_bias", args.selection_bias, {experts});
    check.type("selection_bias", args.selection_bias, {dtype::f32});
  }
  check_options(check, args.options, experts, top_k);
  check.no_self_overlap("expert_ids", args.expert_ids);
  check.no_self_overlap("weights", args.weights);
  check.no_overlap("expert_ids", args.expert_ids, "logits", args.logits);
  check.no_overlap("weights", args.weights, "logits", args.logits);
  check.no_overlap("weights", args.weights, "expert_ids", args.expert_ids);
  check.no_overlap("expert_ids", args.expert_ids, "selection_bias", args.selection_bias);
  check.no_overlap("weights", args.weights, "selection_bias", args.selection_bias);
  dispatch(args, where);
}

void route_backward(route_backward_args const& args, stream where) {
  checker const check("route_backward", where.device);
  check.number("logits", args.logits, {any_extent, any_extent});
  index_t const tokens = args.logits.extent[0];
  check.shape("expert_ids", args.expert_ids, {tokens, any_extent});
  check.type("expert_ids", args.expert_ids, {dtype::int32, dtype::int64});
  check.shape("d_weights", args.d_weights, {tokens, args.expert_ids.extent[1]});
  check.type("d_weights", args.d_weights, {dtype::f32});
  check.number("d_logits", args.d_logits, {tokens, args.logits.extent[1]});
  check_options(check, args.options, args.logits.extent[1], 0);
  check.no_self_overlap("d_logits", args.d_logits);
  check.no_overlap("d_logits", args.d_logits, "logits", args.logits);
  check.no_overlap("d_logits", args.d_logits, "d_weights", args.d_weights);
  check.no_overlap("d_logits", args.d_logits, "expert_ids", args.expert_ids);
  dispatch(args, where);
}

}  // namespace moe64
