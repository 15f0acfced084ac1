#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {

void combine(combine_args const& args, stream where) {
  checker const check("combine", where.device);
  check.plan(args.plan);
  check.quantized("rows", args.rows);
  check.in_order("rows", args.rows);
  check.equal("matrices in rows", args.rows.experts(), "one", 1);
  check.equal("rows", args.rows.rows(), "tokens * top_k of plan", args.plan.slots());
  scale_kind const kind = args.rows.layout().kind;
  check.require(kind == scale_kind::none || kind == scale_kind::row || kind == scale_kind::group,
                fmt::format("rows have scale {}: expected none, row or group",
                            to_string(args.rows.layout())));
  check.number("y", args.y, {args.plan.tokens, args.rows.cols()});
  check.no_self_overlap("y", args.y);
  check.no_overlap("y", args.y, "rows", args.rows.values());
  check.no_overlap("y", args.y, "row scales", args.rows.scales());
  check.no_overlap("y", args.y, args.plan);
  dispatch(args, where);
}

void slot_weight_gradient(slot_weight_gradient_args const& args, stream where) {
  checker const check("slot_weight_gradient", where.device);
  check.plan(args.plan);
  index_t const slots = args.plan.slots();
  check.number("left", args.left, {slots, any_extent});
  check.number("right", args.right, {slots, args.left.extent[1]});
  check.require(args.bias.present() == args.bias_rows.present(),
                fmt::format("bias {} and bias_rows {}: give both or none", to_string(args.bias),
                            to_string(args.bias_rows)));
  if (args.bias.present()) {
    check.number("bias", args.bias, {args.plan.experts, any_extent});
    check.number("bias_rows", args.bias_rows, {slots, args.bias.extent[1]});
  }
  check.shape("d_weights", args.d_weights, {args.plan.tokens, args.plan.top_k});
  check.type("d_weights", args.d_weights, {dtype::f32});
  check.no_self_overlap("d_weights", args.d_weights);
  check.no_overlap("d_weights", args.d_weights, "left", args.left);
  check.no_overlap("d_weights", args.d_weights, "right", args.right);
  check.no_overlap("d_weights", args.d_weights, "bias_rows", args.bias_rows);
  check.no_overlap("d_weights", args.d_weights, "bias", args.bias);
  check.no_overlap("d_weights", args.d_weights, args.plan);
  dispatch(args, where);
}

}  // namespace moe64
