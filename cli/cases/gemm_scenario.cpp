#include "cases/routing.hpp"
#include "cases/scenario.hpp"
#include "cases/tolerance.hpp"
#include "cases/weights.hpp"
#include "fmt/format.h"
#include "moe64/error.hpp"

#include <algorithm>
#include <cmath>

namespace moe64::cases {
namespace {

/// op=grouped_gemm: rows [tokens * top_k, hidden] by the gate_up stack, with bias and a low-rank
/// addend where asked for; backward=1: rows [tokens * top_k, gate and up] by the same stack
/// transposed.
class grouped_gemm_scenario final : public scenario {
 public:
  explicit grouped_gemm_scenario(setting const& s)
      : s_(s),
        routed_(make_routing(s.memory, s.p, s.data)),
        plan_(make_plan(s.memory, s.p, routed_)) {
    problem const& p = s.p;
    bool const quantized = is_quantized(value_type(p.weight));
    if (p.mode == compute_mode::native ? quantized
                                       : p.mode != compute_mode::automatic && !quantized) {
      throw error(errc::unsupported, fmt::format("[case] op=grouped_gemm mode={} with {} weights",
                                                 name(p.mode), name(value_type(p.weight))));
    }
    int const parts = is_gated(p.act.kind) ? 2 : 1;
    index_t const capacity = checked_mul(p.tokens, p.top_k);
    weight_builder build(s.memory, p, s.data, s.executor, routed_.used_experts());
    make_stacks(parts);
    args_.weights = stacks_.front();
    args_.expert_begin = plan_.expert_begin;
    args_.transpose = p.backward;
    args_.implementation = p.impl;
    if (p.bias && !p.backward) {
      args_.bias = build.bias("gate_up.bias", tensor_id::gate_up, parts, p.inter);
    }
    if (p.lora > 0) {
      auto const adapter = build.lora("gate_up", tensor_id::gate_up, parts, p.inter, p.hidden);
      args_.low_rank.weights = p.backward ? adapter.a : adapter.b;
      args_.low_rank.scaling = adapter.scaling;
      args_.low_rank.u = plain_rows(s, "u", tensor_id::low_rank, capacity, routed_.live(), p.lora);
    }
    index_t const in = p.backward ? args_.weights.rows() : p.hidden;
    index_t const out = p.backward ? p.hidden : args_.weights.rows();
    args_.x =
        p.mode == compute_mode::w8a8 && !p.backward
            ? quantized_rows(s, "x", capacity, routed_.live(), in)
            : quantized_view::plain(plain_rows(s, "x", tensor_id::x, capacity, routed_.live(), in));
    args_.y = s.memory.tensor("y", purpose::output, p.io, {capacity, out});
    args_.scratch = s.memory.scratch("scratch", grouped_gemm_scratch_bytes);
    weight_bytes_ += build.bytes_in_use();
  }

  void execute(stream where) const override { grouped_gemm(s_.memory.there(args_), where); }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    return {{"grouped_gemm", moe64::explain(s_.memory.there(args_), where)}};
  }

  [[nodiscard]] work cost() const override {
    auto const rows = static_cast<double>(routed_.live());
    double const row_bytes = static_cast<double>(args_.x.values().stride[1]) *
                             static_cast<double>(bits(args_.x.type())) / 8.0;
    double const low_rank = static_cast<double>(s_.p.lora) * static_cast<double>(args_.y.extent[1]);
    return {2.0 * rows * (products() + low_rank),
            weight_bytes_ + rows * row_bytes + bytes_of(args_.y, routed_.live()), weight_bytes_};
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override { return {{"y", args_.y}}; }

  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }

  [[nodiscard]] index_t routings() const override { return std::ssize(stacks_); }
  void use_routing(index_t routing) override {
    args_.weights = stacks_.at(static_cast<std::size_t>(routing));
  }

  void compare(comparison& result) const override {
    rounding_path path;
    path.stored = 1.0;
    path.added = roundings_of_sum(args_.x.cols()) + roundings_of_sum(s_.p.lora) + 1.0;
    path.tensor_cores = !args_.x.is_plain() && on_tensor_cores(s_.p, compute_mode::w8a8);
    double const bound = s_.data == data_mode::exact ? 0.0 : allowed_error(s_.p.io, path);
    if (routed_.live() > 0) {
      result.entries(
          {{"y", args_.y, bound}}, sample_of(routed_.live(), result.budget() / products(), {}),
          routed_.live(), [&](index_t row) { return std::vector<expectation>{expected(row)}; },
          [&](index_t row) { return std::vector<index_t>{routed_.expert_of(row)}; });
    }
    result.scan("y", args_.y, [&](index_t row) { return row < routed_.live(); });
    result.untouched("y", args_.y, routed_.live());
  }

 private:
  /// The same routing on other experts: `routings` stacks, one behind the other.
  void make_stacks(int parts) {
    problem const& p = s_.p;
    problem all = p;
    all.experts = checked_mul(p.experts, s_.routings);
    std::vector<index_t> used;
    for (index_t copy = 0; copy < s_.routings; ++copy) {
      for (index_t const e : routed_.used_experts()) used.push_back(copy * p.experts + e);
    }
    weight_builder build(s_.memory, all, s_.data, s_.executor, used);
    weight_stack const whole = build.stack("gate_up", tensor_id::gate_up, parts, p.inter, p.hidden);
    for (index_t copy = 0; copy < s_.routings; ++copy) {
      stacks_.push_back(experts_of(whole, copy * p.experts, (copy + 1) * p.experts));
    }
    weight_bytes_ = build.bytes_in_use() / static_cast<double>(s_.routings);
  }

  /// Multiply-adds of one row.
  [[nodiscard]] double products() const {
    return static_cast<double>(args_.weights.rows()) * static_cast<double>(args_.weights.cols());
  }

  /// A weight as it is multiplied: w8a16 rounds it to the type of x first.
  [[nodiscard]] double weight(index_t expert, index_t row, index_t col) const {
    double const number = oracle::at(args_.weights, expert, row, col);
    bool const rounds = !args_.weights.is_plain() && args_.x.is_plain();
    return rounds ? oracle::round_to(number, args_.x.type()) : number;
  }

  [[nodiscard]] expectation expected(index_t row) const {
    index_t const expert = routed_.expert_of(row);
    std::vector<double> sums(static_cast<std::size_t>(args_.y.extent[1]));
    std::vector<double> x;
    for (index_t c = 0; c < args_.x.cols(); ++c) x.push_back(oracle::at(args_.x, 0, row, c));
    for (index_t r = 0; r < args_.weights.rows(); ++r) {
      for (index_t c = 0; c < args_.weights.cols(); ++c) {
        auto const [in, out] = args_.transpose ? std::pair{r, c} : std::pair{c, r};
        sums[static_cast<std::size_t>(out)] +=
            x[static_cast<std::size_t>(in)] * weight(expert, r, c);
      }
    }
    for (index_t out = 0; out < args_.y.extent[1]; ++out) {
      double& sum = sums[static_cast<std::size_t>(out)];
      for (index_t i = 0; i < s_.p.lora; ++i) {
        double const factor = args_.transpose ? oracle::at(args_.low_rank.weights, expert, i, out)
                                              : oracle::at(args_.low_rank.weights, expert, out, i);
        sum += double{args_.low_rank.scaling} * oracle::at(args_.low_rank.u, row, i) * factor;
      }
      if (args_.bias[0].present()) {
        index_t const part = out / args_.weights.part_rows();
        sum += oracle::at(args_.bias[static_cast<std::size_t>(part)], expert,
                          out - part * args_.weights.part_rows());
      }
    }
    // Weights have a deviation of 1 / sqrt(hidden), whichever side they are used from.
    double const typical =
        std::sqrt(static_cast<double>(args_.y.extent[1]) * static_cast<double>(args_.x.cols()) /
                  static_cast<double>(s_.p.hidden));
    return {std::move(sums), typical};
  }

  setting s_;
  routed_tokens routed_;
  routing_plan plan_;
  std::vector<weight_stack> stacks_;  ///< one per routing
  grouped_gemm_args args_;
  double weight_bytes_ = 0.0;
};

}  // namespace

std::unique_ptr<scenario> make_grouped_gemm(setting const& s) {
  return std::make_unique<grouped_gemm_scenario>(s);
}

}  // namespace moe64::cases
