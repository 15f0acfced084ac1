#include "cases/routing.hpp"
#include "cases/scenario.hpp"
#include "cases/tolerance.hpp"

#include <cmath>

namespace moe64::cases {
namespace {

/// The seed chooses among the ways of real models: softmax, renormalised softmax (Qwen3), softmax
/// of the chosen (gpt-oss), sigmoid with a selection bias and expert groups (DeepSeek-V3).
route_options options_of(problem const& p) {
  route_options options;
  switch (p.seed % 4) {
    case 0:
      break;
    case 1:
      options.renormalize = true;
      break;
    case 2:
      options.score = scoring::softmax_of_selected;
      break;
    default:
      options.score = scoring::sigmoid;
      options.renormalize = true;
      options.scaling = 2.5F;
      if (p.experts % 8 == 0 && p.top_k <= p.experts / 2) {
        options.expert_groups = 8;
        options.groups_kept = 4;
        if (p.experts == 8) options.group_by = group_score::max;
      }
  }
  return options;
}

tensor_view row_of(tensor_view const& matrix, index_t row) { return matrix.slice(0, row, row + 1); }

/// op=route: logits [tokens, experts] io to ids and weights; backward=1: d_weights to d_logits.
class route_scenario final : public scenario {
 public:
  explicit route_scenario(setting const& s) : s_(s) {
    problem const& p = s.p;
    refuse_exact(s, "softmax and sigmoid round");
    args_.options = options_of(p);
    args_.implementation = p.impl;
    args_.logits = plain_rows(s, "logits", tensor_id::logits, p.tokens, p.tokens, p.experts);
    dtype const ids = p.seed % 2 == 0 ? dtype::int32 : dtype::int64;
    if (args_.options.score == scoring::sigmoid) {
      args_.selection_bias =
          s.memory.tensor("selection_bias", purpose::input, dtype::f32, {p.experts});
      number_source::normal(dtype::f32, 0.1)
          .fill(args_.selection_bias, p.seed, tensor_id::selection_bias, nullptr);
    }
    auto const use = p.backward ? purpose::input : purpose::output;
    args_.expert_ids = s.memory.tensor("expert_ids", use, ids, {p.tokens, p.top_k});
    args_.weights = s.memory.tensor("weights", use, dtype::f32, {p.tokens, p.top_k});
    if (!p.backward) return;

    auto const routed = oracle::route(args_.logits, args_.selection_bias, args_.options, p.top_k);
    for (std::size_t i = 0; i < routed.ids.size(); ++i) {
      static_cast<float*>(args_.weights.data)[i] = static_cast<float>(routed.weights[i]);
      if (ids == dtype::int32) {
        static_cast<std::int32_t*>(args_.expert_ids.data)[i] = narrow<std::int32_t>(routed.ids[i]);
      } else {
        static_cast<std::int64_t*>(args_.expert_ids.data)[i] = routed.ids[i];
      }
    }
    backward_.logits = args_.logits;
    backward_.options = args_.options;
    backward_.expert_ids = args_.expert_ids;
    backward_.implementation = p.impl;
    backward_.d_weights =
        s.memory.tensor("d_weights", purpose::input, dtype::f32, {p.tokens, p.top_k});
    number_source::normal(dtype::f32, 1.0)
        .fill(backward_.d_weights, p.seed, tensor_id::dy, nullptr);
    backward_.d_logits = s.memory.tensor("d_logits", purpose::output, p.io, {p.tokens, p.experts});
  }

  void execute(stream where) const override {
    s_.p.backward ? route_backward(s_.memory.there(backward_), where)
                  : route(s_.memory.there(args_), where);
  }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    if (s_.p.backward) return {{"route_backward", moe64::explain(backward_, where)}};
    return {{"route", moe64::explain(args_, where)}};
  }

  [[nodiscard]] work cost() const override {
    double const small =
        bytes_of(args_.expert_ids, s_.p.tokens) + bytes_of(args_.weights, s_.p.tokens);
    return {0.0, small + bytes_of(args_.logits, s_.p.tokens) * (s_.p.backward ? 2.0 : 1.0)};
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    if (s_.p.backward) return {{"d_logits", backward_.d_logits}};
    return {{"ids", args_.expert_ids}, {"weights", args_.weights}};
  }

  void compare(comparison& result) const override {
    problem const& p = s_.p;
    rounding_path path;
    path.added = roundings_of_sum(p.experts) + 2.0 * roundings_of_function;
    double const token_cost = 20.0 * static_cast<double>(p.experts);
    auto const sample = sample_of(p.tokens, result.budget() / token_cost, {});
    auto const no_expert = [](index_t) { return std::vector<index_t>{}; };
    if (!p.backward) {
      result.entries(
          {{"ids", args_.expert_ids, 0.0},
           {"weights", args_.weights, allowed_error(dtype::f32, path)}},
          sample, p.tokens,
          [&](index_t token) {
            auto const wanted = oracle::route(row_of(args_.logits, token), args_.selection_bias,
                                              args_.options, p.top_k);
            return std::vector<expectation>{{{wanted.ids.begin(), wanted.ids.end()}, 0.0},
                                            {wanted.weights, 0.0}};
          },
          no_expert);
      result.scan("weights", args_.weights, [](index_t) { return true; });
      return;
    }
    path.stored = 1.0;
    result.entries(
        {{"d_logits", backward_.d_logits, allowed_error(p.io, path)}}, sample, p.tokens,
        [&](index_t token) {
          // With one expert, or where all weights pull alike, the terms cancel: measure against the
          // terms.
          double terms = 0.0;
          for (index_t k = 0; k < p.top_k; ++k) {
            double const term =
                oracle::at(args_.weights, token, k) * oracle::at(backward_.d_weights, token, k);
            terms += term * term;
          }
          auto wanted = oracle::route_backward(row_of(backward_.logits, token), backward_.options,
                                               row_of(backward_.expert_ids, token),
                                               row_of(backward_.d_weights, token));
          return std::vector<expectation>{{std::move(wanted), std::sqrt(terms)}};
        },
        no_expert);
    result.scan("d_logits", backward_.d_logits, [](index_t) { return true; });
  }

 private:
  setting s_;
  route_args args_;
  route_backward_args backward_;
};

/// op=plan: ids to a routing plan, every entry of which has one right value.
class plan_scenario final : public scenario {
 public:
  explicit plan_scenario(setting const& s) : s_(s), routed_(make_routing(s.memory, s.p, s.data)) {
    problem const& p = s.p;
    refuse_backward(p, "a plan has no gradient");
    args_.expert_ids = routed_.expert_ids;
    args_.weights = routed_.weights;
    args_.experts_total = p.experts;
    args_.implementation = p.impl;
    index_t const bytes = plan_bytes(p.tokens, p.top_k, p.experts);
    void* const memory = s.memory.allocate("plan", purpose::output, bytes);
    args_.plan = bind_plan({memory, bytes, p.device}, p.tokens, p.top_k, p.experts);
    args_.scratch = s.memory.scratch("plan scratch",
                                     plan_scratch_bytes(p.tokens, p.top_k, p.experts, p.device));
    wanted_ = make_plan(s.memory, p, routed_);
  }

  void execute(stream where) const override { plan(s_.memory.there(args_), where); }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    return {{"plan", moe64::explain(s_.memory.there(args_), where)}};
  }

  [[nodiscard]] work cost() const override {
    index_t const written = plan_bytes(s_.p.tokens, s_.p.top_k, s_.p.experts);
    return {0.0, bytes_of(args_.expert_ids, s_.p.tokens) + bytes_of(args_.weights, s_.p.tokens) +
                     static_cast<double>(written)};
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    return {{"expert_begin", args_.plan.expert_begin},
            {"row_to_slot", args_.plan.row_to_slot},
            {"slot_to_row", args_.plan.slot_to_row},
            {"slot_weight", args_.plan.slot_weight},
            {"status", args_.plan.status}};
  }

  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }

  void compare(comparison& result) const override {
    compare_array(result, "expert_begin", args_.plan.expert_begin, wanted_.expert_begin);
    compare_array(result, "row_to_slot", args_.plan.row_to_slot.slice(0, 0, routed_.live()),
                  wanted_.row_to_slot);
    compare_array(result, "slot_to_row", args_.plan.slot_to_row, wanted_.slot_to_row);
    compare_array(result, "slot_weight", args_.plan.slot_weight, wanted_.slot_weight);
    compare_array(result, "status", args_.plan.status, wanted_.status);
  }

 private:
  /// A one-dimensional array as one row.
  static void compare_array(comparison& result, std::string const& name, tensor_view const& got,
                            tensor_view const& wanted) {
    tensor_view row = got;
    row.rank = 2;
    row.extent[1] = got.extent[0];
    row.stride[1] = 1;
    row.extent[0] = 1;
    row.stride[0] = got.extent[0];
    result.entries(
        {{name, row, 0.0}}, {0}, 1,
        [&](index_t) {
          expectation all;
          for (index_t i = 0; i < got.extent[0]; ++i) all.values.push_back(oracle::at(wanted, i));
          return std::vector<expectation>{all};
        },
        [](index_t) { return std::vector<index_t>{}; });
  }

  setting s_;
  routed_tokens routed_;
  plan_args args_;
  routing_plan wanted_;
};

}  // namespace

std::unique_ptr<scenario> make_route(setting const& s) {
  return std::make_unique<route_scenario>(s);
}

std::unique_ptr<scenario> make_plan_scenario(setting const& s) {
  return std::make_unique<plan_scenario>(s);
}

}  // namespace moe64::cases
