#include "core/fail.hpp"
#include "ops/check.hpp"
#include "ops/dispatch.hpp"

namespace moe64 {
namespace {

void check_spec(checker const& check, activation_spec const& spec, tensor_view const& gate,
                tensor_view const& up) {
  check.require(spec.kind <= last_activation,
                fmt::format("activation {} is unknown", fmt::underlying(spec.kind)));
  check.require(is_gated(spec.kind) == up.present(),
                fmt::format("{} {}, but up is {}", name(spec.kind),
                            is_gated(spec.kind) ? "is gated" : "is not gated", to_string(up)));
  check.require(!has_limit(spec.kind) || spec.limit > 0.0F, fmt::format("limit is {}", spec.limit));
  check.number("gate", gate, {any_extent, any_extent});
  if (!up.present()) return;
  check.shape("up", up, {gate.extent[0], gate.extent[1]});
  check.type("up", up, {gate.type});
}

}  // namespace

void activate(activate_args const& args, stream where) {
  checker const check("activate", where.device);
  check_spec(check, args.activation, args.gate, args.up);
  check.live_rows(args.live_rows);
  check.shape("out", args.out, {args.gate.extent[0], args.gate.extent[1]});
  if (args.quantized.kind == scale_kind::none) {
    check.number("out", args.out);
    check.require(!args.scales.present(),
                  fmt::format("scales is {}, but `quantized` is none", to_string(args.scales)));
  } else {
    check.quantized_rows("out", args.out, args.scales, args.quantized);
    check.no_overlap("out", args.out, "scales", args.scales);
  }
  for (auto const& [label, output] :
       {std::pair{"out", &args.out}, std::pair{"scales", &args.scales}}) {
    if (!output->present()) continue;
    check.no_self_overlap(label, *output);
    check.no_overlap(label, *output, "gate", args.gate);
    check.no_overlap(label, *output, "up", args.up);
    check.no_overlap(label, *output, "live_rows", args.live_rows);
  }
  dispatch(args, where);
}

void activate_backward(activate_backward_args const& args, stream where) {
  checker const check("activate_backward", where.device);
  check_spec(check, args.activation, args.gate, args.up);
  index_t const rows = args.gate.extent[0];
  index_t const inter = args.gate.extent[1];
  check.live_rows(args.live_rows);
  check.number("d_out", args.d_out, {rows, inter});
  check.number("d_gate", args.d_gate, {rows, inter});
  check.require(args.d_up.present() == args.up.present(),
                fmt::format("up is {}, but d_up is {}", to_string(args.up), to_string(args.d_up)));
  if (args.d_up.present()) check.number("d_up", args.d_up, {rows, inter});
  if (args.weighted_by.present()) {
    check.plan(args.weighted_by);
    check.equal("rows of gate", rows, "tokens * top_k of weighted_by", args.weighted_by.slots());
  }
  for (auto const& [label, output] :
       {std::pair{"d_gate", &args.d_gate}, std::pair{"d_up", &args.d_up}}) {
    if (!output->present()) continue;
    check.no_self_overlap(label, *output);
    check.no_overlap(label, *output, "gate", args.gate);
    check.no_overlap(label, *output, "up", args.up);
    check.no_overlap(label, *output, "d_out", args.d_out);
    check.no_overlap(label, *output, "live_rows", args.live_rows);
    if (args.weighted_by.present()) check.no_overlap(label, *output, args.weighted_by);
  }
  check.no_overlap("d_gate", args.d_gate, "d_up", args.d_up);
  dispatch(args, where);
}

}  // namespace moe64
