#include "core/fail.hpp"
#include "moe64/layer.hpp"
#include "ops/capability.hpp"

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

}  // namespace

granularity activation_granularity(granularity const& weights) {
  bool const along_rows = weights.kind == scale_kind::block || weights.kind == scale_kind::group;
  return along_rows ? granularity::group(128) : granularity::row();
}

mode_choice resolve_mode(layer_desc const& layer, moe64::device where) {
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
  support const hardware = multiplies_float8(where);
  if (!hardware) return {compute_mode::w8a16, hardware.reason()};
  return {compute_mode::w8a8, "the checkpoint states dynamic quantisation of activations"};
}

}  // namespace moe64
