#include "cases/layer_scenario.hpp"

#include "fmt/format.h"
#include "moe64/layer.hpp"

#include <cmath>
#include <set>

namespace moe64::cases {
namespace {

int parts_of(problem const& p) { return is_gated(p.act.kind) ? 2 : 1; }

}  // namespace

grouped_gemm_args gemm_of(problem const& line, projection const& p, compute_mode mode,
                          void const* anywhere) {
  index_t const capacity = line.tokens * line.top_k;
  auto const view = [&](dtype type, index_t rows, index_t cols) {
    return tensor_view::contiguous(anywhere, type, {rows, cols}, line.device);
  };
  grouped_gemm_args args;
  args.weights = p.weights;
  args.bias = p.bias;
  if (mode == compute_mode::w8a8) {
    granularity const layout = activation_granularity(p.weights.layout());
    dtype const codes = p.weights.type() == dtype::int8 ? dtype::int8 : dtype::e4m3;
    args.x = quantized_view::scaled(view(codes, capacity, p.weights.cols()),
                                    view(dtype::f32, capacity, layout.grid_cols(p.weights.cols())),
                                    layout);
  } else {
    args.x = quantized_view::plain(view(line.io, capacity, p.weights.cols()));
  }
  args.expert_begin =
      tensor_view::contiguous(anywhere, dtype::int64, {p.weights.experts() + 1}, line.device);
  if (p.lora.present()) {
    args.low_rank = {view(line.io, capacity, line.lora), p.lora.b, p.lora.scaling};
  }
  args.y = view(line.io, capacity, p.weights.rows());
  args.implementation = line.impl;
  return args;
}

std::unique_ptr<scenario> make_layer(setting const& s) {
  return std::make_unique<layer_scenario>(s);
}

layer_scenario::layer_scenario(setting const& s) : s_(s) {
  problem const& p = s.p;
  if (p.act.kind != activation::relu2 || p.io != dtype::f32 || p.mode == compute_mode::w8a8) {
    refuse_exact(s, "only act=relu2 with io=f32, and not mode=w8a8, keeps integers exact");
  }
  routed_ = make_routing(s.memory, p, s.data);
  for (index_t draw = 1; draw < s.routings; ++draw) {
    other_draws_.push_back(make_routing(s.memory, p, s.data, draw));
  }
  std::vector<index_t> const used = experts_of_all_draws();
  weight_builder build(s.memory, p, s.data, s.executor, used);
  int const parts = parts_of(p);
  layer_.gate_up.weights = build.stack("gate_up", tensor_id::gate_up, parts, p.inter, p.hidden);
  layer_.down.weights = build.stack("down", tensor_id::down, 1, p.hidden, p.inter);
  if (p.bias) {
    layer_.gate_up.bias = build.bias("gate_up.bias", tensor_id::gate_up, parts, p.inter);
    layer_.down.bias = build.bias("down.bias", tensor_id::down, 1, p.hidden);
  }
  if (p.lora > 0) {
    layer_.gate_up.lora = build.lora("gate_up", tensor_id::gate_up, parts, p.inter, p.hidden);
    layer_.down.lora = build.lora("down", tensor_id::down, 1, p.hidden, p.inter);
  }
  layer_.activation = p.act;
  layer_.mode = p.mode;
  layer_.scheme = p.scheme;
  layer_.weight_on = p.weight_on;
  layer_.implementation = p.impl;
  expert_bytes_ = used.empty() ? 0.0 : build.bytes_in_use() / static_cast<double>(used.size());
  mode_ = resolve_mode(layer_, p.io, p.device);
  double const x =
      p.weight_on == weight_placement::input ? 1.0 / static_cast<double>(p.top_k) : 1.0;
  double const adapter = p.lora > 0 ? 0.25 : 0.0;  // variance of what LoRA adds to that of the base
  double const offset = p.bias ? 0.0625 : 0.0;     // variance of the bias
  magnitude_ = magnitude_of(p.act, std::sqrt(x * x * (1.0 + adapter) + offset));

  layer_shape const shape{p.tokens, p.top_k, p.io};
  forward_.x = plain_rows(s, "x", tensor_id::x, p.tokens, p.tokens, p.hidden);
  use_routing(0);
  forward_.y = s.memory.tensor("y", purpose::output, p.io, {p.tokens, p.hidden});
  if (p.backward) {
    forward_.saved = s.memory.scratch("saved", saved_bytes(layer_, shape, p.device));
  }
  forward_.scratch =
      s.memory.scratch("forward scratch", forward_bytes(layer_, shape, p.backward, p.device));
  if (!p.backward) return;

  backward_.x = forward_.x;
  backward_.dy = plain_rows(s, "dy", tensor_id::dy, p.tokens, p.tokens, p.hidden);
  backward_.top_k = p.top_k;
  backward_.saved = forward_.saved;
  layer_gradients& d = backward_.gradients;
  d.x = s.memory.tensor("dx", purpose::output, p.io, {p.tokens, p.hidden});
  d.weights = s.memory.tensor("d_weights", purpose::output, dtype::f32, {p.tokens, p.top_k});
  d.gate_up = parameter_gradients("gate_up", layer_.gate_up);
  d.down = parameter_gradients("down", layer_.down);
  backward_.scratch =
      s.memory.scratch("backward scratch", backward_bytes(layer_, shape, d, p.device));
}

projection_gradients layer_scenario::parameter_gradients(std::string const& name,
                                                         projection const& from) {
  auto const make = [&](std::string const& what, dtype type, index_t rows, index_t cols) {
    return s_.memory.tensor(name + "." + what, purpose::output, type, {s_.p.experts, rows, cols});
  };
  index_t const rows = from.weights.part_rows();
  projection_gradients d;
  for (int i = 0; i < from.weights.parts(); ++i) {
    auto const part = static_cast<std::size_t>(i);
    if (from.weights.is_plain()) {
      d.weights[part] = make("weights", s_.p.io, rows, from.weights.cols());
    }
    if (from.bias[0].present()) {
      d.bias[part] =
          s_.memory.tensor(name + ".bias", purpose::output, dtype::f32, {s_.p.experts, rows});
    }
    if (from.lora.present()) d.lora_b[part] = make("lora_b", dtype::f32, rows, s_.p.lora);
  }
  if (from.lora.present()) d.lora_a = make("lora_a", dtype::f32, s_.p.lora, from.weights.cols());
  return d;
}

void layer_scenario::use_routing(index_t routing) {
  routed_tokens const& chosen =
      routing == 0 ? routed_ : other_draws_.at(static_cast<std::size_t>(routing - 1));
  forward_.expert_ids = chosen.expert_ids;
  forward_.weights = chosen.weights;
}

std::vector<index_t> layer_scenario::experts_of_all_draws() const {
  std::set<index_t> used;
  auto const add = [&](routed_tokens const& routed) {
    for (index_t const e : routed.used_experts()) used.insert(e);
  };
  add(routed_);
  for (routed_tokens const& draw : other_draws_) add(draw);
  return {used.begin(), used.end()};
}

void layer_scenario::execute(stream where) const {
  layer_desc const layer = s_.memory.there(layer_);
  forward(layer, s_.memory.there(forward_), where);
  if (s_.p.backward) backward(layer, s_.memory.there(backward_), where);
}

std::vector<operation_report> layer_scenario::explain(stream where) const {
  void const* const anywhere = forward_.x.data;
  return {
      {"grouped_gemm", moe64::explain(gemm_of(s_.p, layer_.gate_up, mode_.mode, anywhere), where)},
      {"grouped_gemm", moe64::explain(gemm_of(s_.p, layer_.down, mode_.mode, anywhere), where)}};
}

std::string layer_scenario::remark() const {
  return fmt::format("mode {}: {}", name(mode_.mode), mode_.reason);
}

work layer_scenario::cost() const {
  auto rows = static_cast<double>(routed_.live());
  auto experts = static_cast<double>(routed_.used_experts().size());
  for (routed_tokens const& draw : other_draws_) {
    rows += static_cast<double>(draw.live());
    experts += static_cast<double>(draw.used_experts().size());
  }
  rows /= static_cast<double>(routings());
  double const weights = expert_bytes_ * experts / static_cast<double>(routings());
  double const pass = 2.0 * rows * oracle::slot_cost(layer_);
  work total{pass, weights + bytes_of(forward_.x, s_.p.tokens) + bytes_of(forward_.y, s_.p.tokens),
             weights};
  if (!s_.p.backward) return total;
  total.flops += pass;
  total.bytes += total.bytes + bytes_of(backward_.dy, s_.p.tokens);
  total.weight_bytes += weights;
  for (named_tensor const& d : parameters()) {
    total.bytes += bytes_of(d.tensor, d.tensor.extent[0]);
    if (d.tensor.rank < 3) continue;
    total.flops += 2.0 * rows * static_cast<double>(d.tensor.extent[1]) *
                   static_cast<double>(d.tensor.extent[2]);
  }
  return total;
}

std::vector<named_tensor> layer_scenario::parameters() const {
  std::vector<named_tensor> found;
  auto const add = [&](std::string const& name, tensor_view const& tensor) {
    if (tensor.present()) found.push_back({name, tensor});
  };
  auto const add_all = [&](std::string const& base, std::array<std::string, 2> const& part,
                           projection_gradients const& d) {
    for (std::size_t i = 0; i < 2; ++i) {
      add("d_" + part[i], d.weights[i]);
      add("d_" + part[i] + "_bias", d.bias[i]);
      add("d_" + part[i] + "_lora_b", d.lora_b[i]);
    }
    add("d_" + base + "_lora_a", d.lora_a);
  };
  add_all("gate_up", {"gate", "up"}, backward_.gradients.gate_up);
  add_all("down", {"down", ""}, backward_.gradients.down);
  return found;
}

std::vector<named_tensor> layer_scenario::outputs() const {
  std::vector<named_tensor> all{{"y", forward_.y}};
  if (!s_.p.backward) return all;
  all.push_back({"dx", backward_.gradients.x});
  all.push_back({"d_weights", backward_.gradients.weights});
  for (named_tensor const& d : parameters()) all.push_back(d);
  return all;
}

}  // namespace moe64::cases
