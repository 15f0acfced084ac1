#include "cases/routing.hpp"
#include "cases/scenario.hpp"
#include "cases/tolerance.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cases {
namespace {

constexpr float scaling = 0.5F;

/// op=grouped_gemm_wgrad: the gradient of the gate_up stack from rows dy [tokens * top_k, gate and
/// up] and x [tokens * top_k, hidden], and with bias=1 that of its bias.
class wgrad_scenario final : public scenario {
 public:
  explicit wgrad_scenario(setting const& s)
      : s_(s),
        routed_(make_routing(s.memory, s.p, s.data)),
        plan_(make_plan(s.memory, s.p, routed_)) {
    problem const& p = s.p;
    refuse_backward(p, "a gradient of the gradient is not offered");
    args_.parts = is_gated(p.act.kind) ? 2 : 1;
    index_t const capacity = checked_mul(p.tokens, p.top_k);
    args_.dy = plain_rows(s, "dy", tensor_id::dy, capacity, routed_.live(),
                          checked_mul(args_.parts, p.inter));
    args_.x = plain_rows(s, "x", tensor_id::x, capacity, routed_.live(), p.hidden);
    args_.expert_begin = plan_.expert_begin;
    args_.scaling = scaling;
    args_.implementation = p.impl;
    for (std::size_t i = 0; i < parts(); ++i) {
      args_.d_weights[i] =
          s.memory.tensor("d_weights", purpose::output, p.io, {p.experts, p.inter, p.hidden});
      if (!p.bias) continue;
      args_.d_bias[i] =
          s.memory.tensor("d_bias", purpose::output, dtype::f32, {p.experts, p.inter});
    }
  }

  void execute(stream where) const override { grouped_gemm_wgrad(s_.memory.there(args_), where); }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    return {{"grouped_gemm_wgrad", moe64::explain(s_.memory.there(args_), where)}};
  }

  [[nodiscard]] work cost() const override {
    auto const rows = static_cast<double>(routed_.live());
    work total{2.0 * rows * products(),
               bytes_of(args_.dy, routed_.live()) + bytes_of(args_.x, routed_.live())};
    for (named_tensor const& d : outputs()) total.bytes += bytes_of(d.tensor, s_.p.experts);
    return total;
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    std::vector<named_tensor> all;
    for (std::size_t i = 0; i < parts(); ++i) {
      std::string const part = i == 0 ? "d_gate" : "d_up";
      all.push_back({part, args_.d_weights[i]});
      if (s_.p.bias) all.push_back({part + "_bias", args_.d_bias[i]});
    }
    return all;
  }

  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }

  void compare(comparison& result) const override {
    auto const used = routed_.used_experts();
    std::vector<index_t> sample;
    double spent = 0.0;
    index_t longest = 0;
    for (std::size_t i = 0; i < used.size(); ++i) {  // the last first: it is always compared
      index_t const expert = i == 0 ? used.back() : used[i - 1];
      double const cost = products() * static_cast<double>(routed_.rows_of(expert));
      if (i > 0 && spent + cost > result.budget()) continue;
      spent += cost;
      sample.push_back(expert);
      longest = std::max(longest, routed_.rows_of(expert));
    }
    std::sort(sample.begin(), sample.end());

    rounding_path path;
    path.stored = 1.0;
    path.added = roundings_of_sum(longest) + 1.0;
    double const bound = s_.data == data_mode::exact ? 0.0 : allowed_error(s_.p.io, path);
    std::vector<compared_output> compared;
    for (named_tensor const& d : outputs()) compared.push_back({d.name, d.tensor, bound});
    result.entries(
        compared, sample, std::ssize(used), [&](index_t expert) { return expected(expert); },
        [](index_t expert) { return std::vector<index_t>{expert}; });
    for (named_tensor const& d : outputs()) {
      result.scan(d.name, d.tensor, [&](index_t e) { return routed_.rows_of(e) > 0; });
      result.zero(d.name + " of expert", d.tensor,
                  [&](index_t e) { return routed_.rows_of(e) == 0; });
    }
  }

 private:
  [[nodiscard]] std::size_t parts() const { return static_cast<std::size_t>(args_.parts); }

  [[nodiscard]] double products() const {
    return static_cast<double>(args_.dy.extent[1]) * static_cast<double>(s_.p.hidden);
  }

  [[nodiscard]] std::vector<expectation> expected(index_t expert) const {
    auto const inter = static_cast<std::size_t>(s_.p.inter);
    auto const hidden = static_cast<std::size_t>(s_.p.hidden);
    std::vector<std::vector<double>> weights(parts(), std::vector<double>(inter * hidden));
    std::vector<std::vector<double>> bias(parts(), std::vector<double>(inter));
    auto const e = static_cast<std::size_t>(expert);
    for (index_t row = routed_.rows.expert_begin[e]; row < routed_.rows.expert_begin[e + 1];
         ++row) {
      std::vector<double> x;
      for (index_t c = 0; c < s_.p.hidden; ++c) x.push_back(oracle::at(args_.x, row, c));
      for (std::size_t i = 0; i < parts() * inter; ++i) {
        double const dy = oracle::at(args_.dy, row, static_cast<index_t>(i));
        bias[i / inter][i % inter] += dy;
        double* const sums = &weights[i / inter][i % inter * hidden];
        for (std::size_t c = 0; c < hidden; ++c) sums[c] += double{scaling} * dy * x[c];
      }
    }
    double const rows = std::sqrt(static_cast<double>(routed_.rows_of(expert)));
    std::vector<expectation> all;
    for (std::size_t i = 0; i < parts(); ++i) {
      all.push_back({std::move(weights[i]), double{scaling} * rows * std::sqrt(hidden)});
      if (s_.p.bias) all.push_back({std::move(bias[i]), rows * std::sqrt(inter)});
    }
    return all;
  }

  setting s_;
  routed_tokens routed_;
  routing_plan plan_;
  grouped_gemm_wgrad_args args_;
};

}  // namespace

std::unique_ptr<scenario> make_grouped_gemm_wgrad(setting const& s) {
  return std::make_unique<wgrad_scenario>(s);
}

}  // namespace moe64::cases
