#include "cases/expert_sample.hpp"
#include "cases/neurons.hpp"
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
    auto const cost = [&](index_t expert) {
      return products() * static_cast<double>(routed_.rows_of(expert));
    };
    expert_sample const chosen = experts_within(used, result.budget(), cost);
    auto const inter = static_cast<double>(s_.p.inter);
    neuron_sample const neurons(s_.p.inter, inter * chosen.share);
    index_t longest = 0;
    for (index_t const expert : chosen.experts) {
      longest = std::max(longest, routed_.rows_of(expert));
    }

    rounding_path path;
    path.stored = 1.0;
    path.added = roundings_of_sum(longest) + 1.0;
    double const bound = s_.data == data_mode::exact ? 0.0 : allowed_error(s_.p.io, path);
    std::vector<compared_output> compared;
    index_t const cut = chosen.share < 1.0 ? neurons.count() : -1;
    for (named_tensor const& d : outputs()) {
      bool const is_bias = d.tensor.rank == 2;
      auto const part = [neurons, is_bias, got = d.tensor](index_t expert) {
        tensor_view const whole = entry_of(got, expert);
        return is_bias ? neurons.cols_of(whole) : neurons.rows_of(whole);
      };
      compared.push_back({d.name, d.tensor, bound, part, true, cut});
    }
    result.entries(
        compared, chosen.experts, std::ssize(used),
        [&](index_t expert) { return expected(expert, neurons); },
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

  [[nodiscard]] std::vector<expectation> expected(index_t expert,
                                                  neuron_sample const& neurons) const {
    std::vector<index_t> const chosen = neurons.indices();
    auto const hidden = static_cast<std::size_t>(s_.p.hidden);
    std::vector<std::vector<double>> weights(parts(), std::vector<double>(chosen.size() * hidden));
    std::vector<std::vector<double>> bias(parts(), std::vector<double>(chosen.size()));
    auto const e = static_cast<std::size_t>(expert);
    for (index_t row = routed_.rows.expert_begin[e]; row < routed_.rows.expert_begin[e + 1];
         ++row) {
      std::vector<double> x;
      for (index_t c = 0; c < s_.p.hidden; ++c) x.push_back(oracle::at(args_.x, row, c));
      for (std::size_t part = 0; part < parts(); ++part) {
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          index_t const col = static_cast<index_t>(part) * s_.p.inter + chosen[i];
          double const dy = oracle::at(args_.dy, row, col);
          bias[part][i] += dy;
          double* const sums = &weights[part][i * hidden];
          for (std::size_t c = 0; c < hidden; ++c) sums[c] += double{scaling} * dy * x[c];
        }
      }
    }
    double const rows = std::sqrt(static_cast<double>(routed_.rows_of(expert)));
    double const count = std::sqrt(static_cast<double>(chosen.size()));
    std::vector<expectation> all;
    for (std::size_t i = 0; i < parts(); ++i) {
      all.push_back({std::move(weights[i]), double{scaling} * rows * std::sqrt(hidden)});
      if (s_.p.bias) all.push_back({std::move(bias[i]), rows * count});
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
