#include "support/layer_implementations.hpp"

#include "moe64/explain.hpp"
#include "support/layer_fixture.hpp"
#include "support/random.hpp"

#include <algorithm>

namespace moe64::test {
namespace {

tensor_view row_of(dtype type, index_t cols) {
  return tensor_view::contiguous(nullptr, type, {1, cols});
}

/// x as a projection of these weights gets it in forward.
quantized_view input_of(weight_stack const& weights, compute_mode mode, dtype io) {
  index_t const cols = weights.cols();
  if (mode != compute_mode::w8a8) return quantized_view::plain(row_of(io, cols));
  granularity const layout = activation_granularity(weights.layout());
  dtype const codes = weights.type() == dtype::int8 ? dtype::int8 : dtype::e4m3;
  return quantized_view::scaled(row_of(codes, cols), row_of(dtype::f32, layout.grid_cols(cols)),
                                layout);
}

void add_products(projection const& p, compute_mode mode, dtype io,
                  std::vector<grouped_gemm_args>& all) {
  tensor_view const x = row_of(io, p.weights.cols()), y = row_of(io, p.weights.rows());
  grouped_gemm_args there, back;
  there.x = input_of(p.weights, mode, io);
  there.weights = p.weights;
  there.bias = p.bias;
  there.y = y;
  back.x = quantized_view::plain(y);
  back.weights = p.weights;
  back.transpose = true;
  back.y = x;
  if (p.lora.present()) {
    tensor_view const u = row_of(io, p.lora.a.rows());
    grouped_gemm_args enter, leave;
    enter.x = quantized_view::plain(x);
    enter.weights = p.lora.a;
    enter.y = u;
    leave.x = quantized_view::plain(y);
    leave.weights = p.lora.b;
    leave.transpose = true;
    leave.y = u;
    all.insert(all.end(), {enter, leave});
    there.low_rank = {u, p.lora.b, p.lora.scaling};
    back.low_rank = {u, p.lora.a, p.lora.scaling};
  }
  all.insert(all.end(), {there, back});
}

}  // namespace

std::vector<grouped_gemm_args> layer_products(layer_case const& c) {
  layer_case one = c;  // which implementation runs never depends on how many tokens there are
  one.implementation.clear();
  one.around = fence::canaries;
  one.outer = 0;
  one.first_expert = 0;
  one.stored = -1;
  one.route(1, 1);
  layer_memory const memory(one);
  compute_mode const mode = resolve_mode(memory.desc, c.io, target().device).mode;
  std::vector<grouped_gemm_args> all;
  add_products(memory.desc.gate_up, mode, c.io, all);
  add_products(memory.desc.down, mode, c.io, all);
  for (grouped_gemm_args& args : all) {
    args.expert_begin = tensor_view::contiguous(nullptr, dtype::int64, {2});
  }
  return all;
}

std::vector<std::string> implementations_of(layer_case const& c) {
  std::vector<std::string> names;
  bool first = true;
  for (grouped_gemm_args const& args : layer_products(c)) {
    std::vector<std::string> taken;
    for (implementation_report const& report : explain(args, target())) {
      if (report.answer) taken.push_back(report.name);
    }
    if (first) names = taken;
    first = false;
    std::erase_if(names, [&](std::string const& name) {
      return std::find(taken.begin(), taken.end(), name) == taken.end();
    });
  }
  return names;
}

std::string draw_implementation(layer_case const& c) {
  std::vector<std::string> const names = implementations_of(c);
  auto const takes_all = [](std::string const& name) {
    return name == "avx512" || name == "avx2" || name == "scalar" || name == "reference";
  };
  std::vector<std::string> rare, common;
  for (std::string const& name : names) (takes_all(name) ? common : rare).push_back(name);
  common.emplace_back();
  // Where the best of some call cannot take them all, only the free choice meets it.
  for (grouped_gemm_args const& args : layer_products(c)) {
    auto const reports = explain(args, target());
    auto const best = std::find_if(reports.begin(), reports.end(),
                                   [](auto const& report) { return bool{report.answer}; });
    bool const forced = std::find(names.begin(), names.end(), best->name) != names.end();
    if (!forced) {
      rare.emplace_back();
      break;
    }
  }
  random_source const random(c.seed + 900);
  auto const& drawn = !rare.empty() && random.chance(0, 0.75) ? rare : common;
  // Successive seeds take turns, so that a hundred problems meet them all.
  return drawn[static_cast<std::size_t>(c.seed % drawn.size())];
}

}  // namespace moe64::test
