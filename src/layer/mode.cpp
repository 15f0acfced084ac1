#include "core/fail.hpp"
#include "layer/check.hpp"
#include "layer/projection.hpp"
#include "layer/workspace.hpp"
#include "ops/preferred.hpp"

namespace moe64 {
namespace {

bool has_byte_codes(weight_stack const& weights) {
  return !weights.is_plain() && bits(weights.type()) == 8;
}

/// Why `mode` cannot run with these weights; empty when it can.
std::string conflict(compute_mode mode, weight_stack const& gate_up, weight_stack const& down) {
  bool const plain = gate_up.is_plain() && down.is_plain();
  std::string const types =
      fmt::format("gate_up is {}, down is {}", name(gate_up.type()), name(down.type()));
  switch (mode) {
    case compute_mode::native:
      if (!gate_up.is_plain() || !down.is_plain()) return types + ": native needs plain weights";
      return {};
    case compute_mode::w8a16:
      if (plain) return types + ": there is nothing to dequantise";
      return {};
    case compute_mode::w8a8:
      if (!has_byte_codes(gate_up) || !has_byte_codes(down)) {
        return types + ": w8a8 needs e4m3, e5m2 or int8 weights";
      }
      return {};
    case compute_mode::automatic:
      return {};
  }
  return fmt::format("mode {} is unknown", fmt::underlying(mode));
}

/// Whether `where` multiplies the codes of both projections in hardware, and if not, of which one
/// it does not and why. The backend is asked about the very calls that forward would make, for one
/// row in memory that is nowhere, however many there will be.
support multiplies_codes(layer_desc const& layer, dtype io, moe64::device where) {
  layer_shape const one_row = {.tokens = 1, .top_k = 1, .io = io};
  arena nowhere{where};
  saved_buffers const saved = cut_saved(nowhere, layer, one_row);
  forward_buffers const b = cut_forward(nowhere, layer, one_row, compute_mode::w8a8, where);
  auto const answer = [&](projection const& of, code_buffers const& x, tensor_view const& y) {
    return takes_preferred(product_of(of, {.x = x.view(),
                                           .plain_x = {},
                                           .low_rank = b.low_rank,
                                           .expert_begin = saved.plan.expert_begin,
                                           .y = y,
                                           .implementation = layer.implementation}),
                           where);
  };
  support const gate_up = answer(layer.gate_up, b.row_codes, saved.gate_up);
  if (!gate_up) return support::no("gate_up: " + gate_up.reason());
  support const down = answer(layer.down, b.inner_codes, b.rows);
  return down ? down : support::no("down: " + down.reason());
}

}  // namespace

granularity activation_granularity(granularity const& weights) {
  bool const along_rows = weights.kind == scale_kind::block || weights.kind == scale_kind::group;
  return along_rows ? granularity::group(128) : granularity::row();
}

mode_choice resolve_mode(layer_desc const& layer, dtype io, moe64::device where) {
  check_shape(checker("layer", where), {.tokens = 0, .top_k = 1, .io = io});
  weight_stack const& gate_up = layer.gate_up.weights;
  weight_stack const& down = layer.down.weights;
  if (layer.mode != compute_mode::automatic) {
    std::string const problem = conflict(layer.mode, gate_up, down);
    if (!problem.empty()) {
      fail(errc::unsupported, "[layer] mode {}: {}", name(layer.mode), problem);
    }
    return {layer.mode, "asked for"};
  }
  if (gate_up.is_plain() && down.is_plain()) {
    return {compute_mode::native,
            fmt::format("weights are {} and need no scale", name(gate_up.type()))};
  }
  if (layer.scheme != activation_scheme::dynamic) {
    return {compute_mode::w8a16, "the checkpoint states no quantisation of activations"};
  }
  std::string const problem = conflict(compute_mode::w8a8, gate_up, down);
  if (!problem.empty()) return {compute_mode::w8a16, problem};
  support const hardware = multiplies_codes(layer, io, where);
  if (!hardware) return {compute_mode::w8a16, hardware.reason()};
  return {compute_mode::w8a8, "the checkpoint states dynamic quantisation of activations"};
}

}  // namespace moe64
