#include "cases/magnitude.hpp"
#include "cases/routing.hpp"
#include "cases/scenario.hpp"
#include "cases/tolerance.hpp"

#include <cmath>

namespace moe64::cases {
namespace {

/// op=activate on [tokens * top_k, gate and up], as two halves (layout=concatenated) or alternating
/// columns (layout=interleaved); quantized=1: to codes and scales; backward=1: activate_backward,
/// with slot weights when they are on the output.
class activate_scenario final : public scenario {
 public:
  explicit activate_scenario(setting const& s)
      : s_(s),
        routed_(make_routing(s.memory, s.p, s.data)),
        plan_(make_plan(s.memory, s.p, routed_)),
        size_(magnitude_of(s.p.act, 1.0)) {
    problem const& p = s.p;
    if (p.act.kind != activation::relu2) refuse_exact(s, "only act=relu2 keeps integers exact");
    index_t const capacity = checked_mul(p.tokens, p.top_k);
    index_t const parts = is_gated(p.act.kind) ? 2 : 1;
    auto const fused = plain_rows(s, "gate_up", tensor_id::x, capacity, routed_.live(),
                                  checked_mul(parts, p.inter));
    forward_.activation = p.act;
    forward_.implementation = p.impl;
    forward_.gate = part_of(fused, 0);
    if (parts == 2) forward_.up = part_of(fused, 1);
    forward_.live_rows = plan_.live_rows();
    if (!p.backward) {
      prepare_output(capacity);
      return;
    }
    if (p.quantized) refuse_backward(p, "codes have no gradient");
    backward_.activation = p.act;
    backward_.implementation = p.impl;
    backward_.gate = forward_.gate;
    backward_.up = forward_.up;
    backward_.live_rows = forward_.live_rows;
    backward_.d_out = plain_rows(s, "d_out", tensor_id::dy, capacity, routed_.live(), p.inter);
    if (p.weight_on == weight_placement::output) backward_.weighted_by = plan_;
    fused_gradient_ =
        s.memory.tensor("d_gate_up", purpose::output, p.io, {capacity, parts * p.inter});
    backward_.d_gate = part_of(fused_gradient_, 0);
    if (parts == 2) backward_.d_up = part_of(fused_gradient_, 1);
  }

  void execute(stream where) const override {
    s_.p.backward ? activate_backward(s_.memory.there(backward_), where)
                  : activate(s_.memory.there(forward_), where);
  }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    if (s_.p.backward) return {{"activate_backward", moe64::explain(backward_, where)}};
    return {{"activate", moe64::explain(forward_, where)}};
  }

  [[nodiscard]] work cost() const override {
    double const parts = forward_.up.present() ? 2.0 : 1.0;
    double const element = static_cast<double>(bits(s_.p.io)) / 8.0;
    double const elements = static_cast<double>(routed_.live()) * static_cast<double>(s_.p.inter);
    if (s_.p.backward) return {0.0, elements * element * (2.0 * parts + 1.0)};
    double const scales =
        forward_.scales.present() ? bytes_of(forward_.scales, routed_.live()) : 0.0;
    return {0.0, elements * element * parts + bytes_of(forward_.out, routed_.live()) + scales};
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    if (s_.p.quantized) return {{"out", forward_.out}, {"scales", forward_.scales}};
    if (!s_.p.backward) return {{"out", forward_.out}};
    std::vector<named_tensor> all{{"d_gate", backward_.d_gate}};
    if (backward_.d_up.present()) all.push_back({"d_up", backward_.d_up});
    return all;
  }

  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }

  void compare(comparison& result) const override {
    rounding_path path;
    path.stored = 1.0;
    path.added = roundings_of_function;
    auto const bound_of = [&](std::string const& output) {
      if (s_.data == data_mode::exact) return 0.0;
      rounding_path taken = path;
      if (s_.p.quantized && output == "out") taken.recoded = 1.0;
      return allowed_error(s_.p.io, taken, value_type(s_.p.weight));
    };
    std::vector<compared_output> compared;
    for (named_tensor const& output : outputs()) {
      compared.push_back({output.name, output.tensor, bound_of(output.name)});
    }
    double const row_cost = 20.0 * static_cast<double>(s_.p.inter);
    if (routed_.live() > 0) {
      result.entries(
          compared, sample_of(routed_.live(), result.budget() / row_cost, {}), routed_.live(),
          [&](index_t row) { return expected(row); },
          [&](index_t row) { return std::vector<index_t>{routed_.expert_of(row)}; });
    }
    for (named_tensor const& output : outputs()) {
      result.scan(output.name, output.tensor, [&](index_t row) { return row < routed_.live(); });
    }
    result.untouched(s_.p.backward ? "d_gate_up" : "out",
                     s_.p.backward ? fused_gradient_ : forward_.out, routed_.live());
  }

 private:
  void prepare_output(index_t capacity) {
    problem const& p = s_.p;
    dtype const type = p.quantized ? value_type(p.weight) : p.io;
    forward_.out = s_.memory.tensor("out", purpose::output, type, {capacity, p.inter});
    if (!p.quantized) return;
    forward_.quantized = p.scale;
    forward_.scales = s_.memory.tensor("scales", purpose::output, p.scale_dtype,
                                       {capacity, p.scale.grid_cols(p.inter)});
  }

  [[nodiscard]] tensor_view part_of(tensor_view const& fused, index_t part) const {
    if (!is_gated(s_.p.act.kind)) return fused;
    return s_.p.layout == gate_up_layout::interleaved
               ? fused.every(1, part, 2)
               : fused.slice(1, part * s_.p.inter, (part + 1) * s_.p.inter);
  }

  [[nodiscard]] std::vector<expectation> expected(index_t row) const {
    double const weight = backward_.weighted_by.present() ? routed_.weight_of(row) : 1.0;
    double const width = std::sqrt(static_cast<double>(s_.p.inter));
    std::vector<expectation> all(s_.p.backward && forward_.up.present() ? 2 : 1);
    for (expectation& e : all)
      e.typical = width * (s_.p.backward ? weight * size_.gradient : size_.value);
    for (index_t c = 0; c < s_.p.inter; ++c) {
      double const gate = oracle::at(forward_.gate, row, c);
      double const up = forward_.up.present() ? oracle::at(forward_.up, row, c) : 0.0;
      if (!s_.p.backward) {
        double const value = oracle::activate(s_.p.act, gate, up);
        all[0].values.push_back(s_.p.quantized ? oracle::round_to(value, s_.p.io) : value);
        continue;
      }
      auto const d = oracle::activate_backward(s_.p.act, gate, up,
                                               weight * oracle::at(backward_.d_out, row, c));
      all[0].values.push_back(d.gate);
      if (all.size() == 2) all[1].values.push_back(d.up);
    }
    if (s_.p.quantized) return quantized_row(s_.p, std::move(all[0].values));
    return all;
  }

  setting s_;
  routed_tokens routed_;
  routing_plan plan_;
  activation_magnitude size_;
  activate_args forward_;
  activate_backward_args backward_;
  tensor_view fused_gradient_;
};

}  // namespace

std::unique_ptr<scenario> make_activate(setting const& s) {
  return std::make_unique<activate_scenario>(s);
}

}  // namespace moe64::cases
