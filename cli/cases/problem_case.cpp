#include "cases/problem_case.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace moe64::cases {
namespace {

std::unique_ptr<scenario> make_scenario(setting const& s) {
  if (s.p.quantized && s.p.op != operation::gather && s.p.op != operation::activate) {
    throw error(errc::invalid_argument,
                fmt::format("[case] quantized=1 is for op=gather and op=activate, not op={}",
                            name(s.p.op)));
  }
  switch (s.p.op) {
    case operation::layer:
      return make_layer(s);
    case operation::quantize:
      return make_quantize(s);
    case operation::dequantize:
      return make_dequantize(s);
    case operation::route:
      return make_route(s);
    case operation::plan:
      return make_plan_scenario(s);
    case operation::gather:
    case operation::combine:
      return make_movement(s);
    case operation::grouped_gemm:
      return make_grouped_gemm(s);
    case operation::grouped_gemm_wgrad:
      return make_grouped_gemm_wgrad(s);
    case operation::activate:
      return make_activate(s);
  }
  throw error(errc::internal, "[case] an operation without a scenario");
}

/// More than the caches of a device hold.
constexpr index_t repeated_bytes = index_t{128} << 20;

/// Refuse what cannot fit before the first page of it is touched: less than the problem will need,
/// but the part of it that grows with the tokens.
void check_size(problem const& p, index_t limit) {
  if (p.op == operation::quantize || p.op == operation::dequantize) return;
  index_t const slots = checked_mul(p.tokens, p.top_k);
  constexpr index_t per_slot = 48;    // ids, weights, and the plan that the oracle keeps
  constexpr index_t per_expert = 40;  // its lists
  index_t const rows = p.op == operation::layer || p.op == operation::route ? p.tokens : slots;
  index_t const cols = p.op == operation::route      ? p.experts
                       : p.op == operation::activate ? p.inter
                                                     : p.hidden;
  index_t const matrix = checked_mul(checked_mul(rows, cols), bits(p.io) / 8);
  index_t const routing =
      checked_add(checked_mul(slots, per_slot), checked_mul(p.experts, per_expert));
  index_t const least = p.op == operation::plan ? routing : checked_add(routing, matrix);
  if (least <= limit) return;
  throw error(errc::out_of_memory,
              fmt::format("[case] {} tokens with {} slots each need at least {} bytes, and {} are "
                          "available",
                          p.tokens, p.top_k, least, limit));
}

}  // namespace

struct problem_case::state {
  state(problem const& problem_line, case_options const& options)
      : p(problem_line),
        executor(options.executor),
        memory(p.device, options.memory_limit < 0 ? available_memory() : options.memory_limit) {
    // The library knows which devices this build can serve, and says why not.
    (void)plan_scratch_bytes(1, 1, 1, p.device);
    check_size(p, memory.limit());
    if (options.only_timed) memory.repeat_inputs_after(repeated_bytes);
    scene = make_scenario({p, options.data, memory, options.executor, options.routings});
    memory.upload();
  }

  problem p;
  cpu_executor* executor;
  arena memory;
  std::unique_ptr<scenario> scene;
};

problem_case::problem_case(problem const& p, case_options const& options)
    : state_(std::make_unique<state>(p, options)) {}

problem_case::~problem_case() = default;

problem const& problem_case::what() const noexcept { return state_->p; }

void problem_case::prepare() { state_->memory.poison(); }

void problem_case::execute(stream where) const { state_->scene->execute(where); }

void problem_case::collect(stream where) const {
  wait(where);
  state_->memory.download();
}

index_t problem_case::routings() const { return state_->scene->routings(); }

void problem_case::use_routing(index_t routing) { state_->scene->use_routing(routing); }

std::vector<operation_report> problem_case::explain(stream where) const {
  return state_->scene->explain(where);
}

std::string problem_case::implementation(stream where) const {
  if (!state_->p.impl.empty()) return state_->p.impl;
  auto const reports = explain(where);
  for (implementation_report const& candidate : reports.front().implementations) {
    if (candidate.answer) return candidate.name;
  }
  return "none";
}

std::string problem_case::remark() const { return state_->scene->remark(); }

work problem_case::cost() const { return state_->scene->cost(); }

index_t problem_case::workspace_bytes() const { return state_->memory.bytes(purpose::scratch); }

index_t problem_case::device_bytes() const { return state_->memory.device_bytes(); }

index_t problem_case::operand_bytes() const { return state_->memory.touched() - workspace_bytes(); }

std::vector<named_tensor> problem_case::outputs() const { return state_->scene->outputs(); }

tensor_view problem_case::output(std::string_view name) const {
  std::string names;
  for (named_tensor const& output : state_->scene->outputs()) {
    if (output.name == name) return output.tensor;
    names += " " + output.name;
  }
  throw error(errc::invalid_argument,
              fmt::format("[case] there is no output '{}', only{}", name, names));
}

verification problem_case::verify(stream where, double budget, progress_report progress) const {
  collect(where);
  verification result;
  result.implementation = implementation(where);
  result.skipped_slots = state_->scene->skipped_slots();
  comparison found(state_->p.experts, budget, state_->executor, std::move(progress));
  if (state_->p.tokens > 0 || state_->p.op == operation::quantize ||
      state_->p.op == operation::dequantize) {
    state_->scene->compare(found);
  }
  result.outputs = found.outputs();
  result.faults = found.faults();
  for (std::string const& name : state_->memory.damaged()) {
    result.faults.push_back(fmt::format("bytes behind {} were overwritten", name));
  }
  if (!result.outputs.empty()) {
    result.compared = result.outputs.front().compared;
    result.total = result.outputs.front().total;
  }
  return result;
}

bool verification::ok() const {
  return faults.empty() &&
         std::all_of(outputs.begin(), outputs.end(), [](auto const& o) { return o.ok(); });
}

double verification::worst_error() const {
  double worst = 0.0;
  for (output_error const& output : outputs) worst = std::max(worst, output.worst);
  return worst;
}

double verification::worst_share() const {
  double worst = 0.0;
  for (output_error const& output : outputs) {
    double const share = output.bound > 0.0   ? output.worst / output.bound
                         : output.worst > 0.0 ? std::numeric_limits<double>::infinity()
                                              : 0.0;
    worst = std::max(worst, share);
  }
  return worst;
}

std::string verification::message() const {
  std::string text;
  auto const add = [&](std::string const& sentence) {
    text += (text.empty() ? "" : "; ") + sentence;
  };
  for (output_error const& output : outputs) {
    if (output.ok()) continue;
    std::string const expert =
        output.worst_expert < 0 ? "" : fmt::format(", expert {}", output.worst_expert);
    add(fmt::format("{} is off by {:.2g} where {:.2g} is allowed (worst at {}{})", output.output,
                    output.worst, output.bound, output.worst_row, expert));
  }
  for (std::string const& fault : faults) add(fault);
  return text;
}

void run(problem_case& c, stream where) {
  c.prepare();
  c.execute(where);
}

}  // namespace moe64::cases
