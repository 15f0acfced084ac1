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

/// op=gather and op=combine. Each is the gradient of the other, so that backward=1 exchanges them;
/// where the slot weight is applied, slot_weight_gradient runs too. mode=w8a8 moves codes and
/// scales; quantized=1 makes them of what op=gather moves.
class movement_scenario final : public scenario {
 public:
  explicit movement_scenario(setting const& s)
      : s_(s),
        routed_(make_routing(s.memory, s.p, s.data)),
        plan_(make_plan(s.memory, s.p, routed_)),
        gathers_((s.p.op == operation::gather) != s.p.backward),
        weighted_(s.p.weight_on == (s.p.op == operation::gather ? weight_placement::input
                                                                : weight_placement::output)) {
    bool const quantized = s.p.mode == compute_mode::w8a8;
    if (quantized && (s.p.backward || (gathers_ && weighted_))) {
      throw error(errc::unsupported,
                  fmt::format("[case] op={} mode=w8a8: codes have no gradient and no weights",
                              name(s.p.op)));
    }
    if (s.p.quantized && quantized) {
      throw error(errc::unsupported, "[case] op=gather quantized=1: mode=w8a8 moves codes already");
    }
    if (s.p.quantized) refuse_backward(s.p, "codes have no gradient");
    index_t const capacity = checked_mul(s.p.tokens, s.p.top_k);
    gathers_ ? prepare_gather(quantized, capacity) : prepare_combine(quantized, capacity);
    if (s.p.backward && weighted_) prepare_slot_gradient(capacity);
  }

  void execute(stream where) const override {
    gathers_ ? gather(s_.memory.there(gather_), where) : combine(s_.memory.there(combine_), where);
    if (slots_.d_weights.present()) slot_weight_gradient(s_.memory.there(slots_), where);
  }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    std::vector<operation_report> reports;
    if (gathers_) {
      reports.push_back({"gather", moe64::explain(gather_, where)});
    } else {
      reports.push_back({"combine", moe64::explain(combine_, where)});
    }
    if (slots_.d_weights.present()) {
      reports.push_back({"slot_weight_gradient", moe64::explain(slots_, where)});
    }
    return reports;
  }

  [[nodiscard]] work cost() const override {
    auto const elements = static_cast<double>(routed_.live()) * static_cast<double>(s_.p.hidden);
    tensor_view const& rows = gathers_ ? gather_.rows : combine_.rows.values();
    index_t const row_dimension = gathers_ ? 0 : 1;
    double const row_bytes = static_cast<double>(rows.stride[row_dimension]) *
                             static_cast<double>(bits(rows.type)) / 8.0;
    work total{weighted_ || !gathers_ ? 2.0 * elements : 0.0,
               row_bytes * static_cast<double>(routed_.live()) +
                   bytes_of(gathers_ ? gather_.x : combine_.y, s_.p.tokens)};
    if (gather_.row_scales.present()) total.bytes += bytes_of(gather_.row_scales, routed_.live());
    if (slots_.d_weights.present()) {
      total.flops += 2.0 * elements;
      total.bytes += bytes_of(slots_.left, routed_.live()) + bytes_of(slots_.right, routed_.live());
    }
    return total;
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    std::vector<named_tensor> all;
    all.push_back(gathers_ ? named_tensor{"rows", gather_.rows} : named_tensor{"y", combine_.y});
    if (slots_.d_weights.present()) all.push_back({"d_weights", slots_.d_weights});
    return all;
  }

  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }

  void compare(comparison& result) const override {
    gathers_ ? compare_gather(result) : compare_combine(result);
    if (slots_.d_weights.present()) compare_slots(result);
  }

 private:
  void prepare_gather(bool quantized, index_t capacity) {
    problem const& p = s_.p;
    gather_.plan = plan_;
    gather_.weighted = weighted_;
    gather_.implementation = p.impl;
    if (quantized) {
      auto const x = quantized_rows(s_, "x", p.tokens, p.tokens, p.hidden);
      index_t const groups = x.scales().extent[2];
      gather_.x =
          tensor_view::contiguous(x.values().data, x.type(), {p.tokens, p.hidden}, p.device);
      gather_.scales =
          tensor_view::contiguous(x.scales().data, dtype::f32, {p.tokens, groups}, p.device);
      gather_.row_scales =
          s_.memory.tensor("row_scales", purpose::output, dtype::f32, {capacity, groups});
    } else {
      gather_.x = plain_rows(s_, "x", tensor_id::x, p.tokens, p.tokens, p.hidden);
    }
    dtype const moved = p.quantized ? value_type(p.weight) : gather_.x.type;
    gather_.rows = s_.memory.tensor("rows", purpose::output, moved, {capacity, p.hidden});
    if (!p.quantized) return;
    gather_.quantized = p.scale;
    gather_.row_scales = s_.memory.tensor("row_scales", purpose::output, p.scale_dtype,
                                          {capacity, p.scale.grid_cols(p.hidden)});
  }

  void prepare_combine(bool quantized, index_t capacity) {
    problem const& p = s_.p;
    combine_.plan = plan_;
    combine_.weighted = weighted_;
    combine_.implementation = p.impl;
    combine_.rows = quantized
                        ? quantized_rows(s_, "rows", capacity, routed_.live(), p.hidden)
                        : quantized_view::plain(plain_rows(s_, "rows", tensor_id::rows, capacity,
                                                           routed_.live(), p.hidden));
    combine_.y = s_.memory.tensor("y", purpose::output, p.io, {p.tokens, p.hidden});
  }

  void prepare_slot_gradient(index_t capacity) {
    problem const& p = s_.p;
    slots_.plan = plan_;
    slots_.left = plain_rows(s_, "left", tensor_id::dy, capacity, routed_.live(), p.hidden);
    slots_.right = plain_rows(s_, "right", tensor_id::low_rank, capacity, routed_.live(), p.hidden);
    slots_.d_weights =
        s_.memory.tensor("d_weights", purpose::output, dtype::f32, {p.tokens, p.top_k});
    if (!p.bias) return;
    weight_builder build(s_.memory, p, s_.data, s_.executor, routed_.used_experts());
    slots_.bias_rows = slots_.left;
    slots_.bias = build.bias("bias", tensor_id::down, 1, p.hidden)[0];
  }

  void compare_gather(comparison& result) const {
    auto const row_cost = static_cast<double>(s_.p.hidden);
    auto const sample = sample_of(routed_.live(), result.budget() / row_cost, {});
    std::vector<compared_output> outputs{{"rows", gather_.rows, 0.0}};
    if (gather_.row_scales.present()) outputs.push_back({"row_scales", gather_.row_scales, 0.0});
    auto const copy = [](tensor_view const& from, index_t token, auto&& change) {
      expectation wanted;
      for (index_t c = 0; c < from.extent[1]; ++c) {
        wanted.values.push_back(change(oracle::at(from, token, c)));
      }
      return wanted;
    };
    if (routed_.live() > 0) {
      result.entries(
          outputs, sample, routed_.live(),
          [&](index_t row) {
            index_t const token =
                routed_.rows.row_to_slot[static_cast<std::size_t>(row)] / s_.p.top_k;
            double const weight = routed_.weight_of(row);
            std::vector<expectation> all{copy(gather_.x, token, [&](double x) {
              if (!weighted_) return x;
              return oracle::round_to(oracle::round_to(x * weight, dtype::f32), s_.p.io);
            })};
            if (s_.p.quantized) return quantized_row(s_.p, all[0].values);
            if (gather_.scales.present()) {
              all.push_back(copy(gather_.scales, token, [](double scale) { return scale; }));
            }
            return all;
          },
          [&](index_t row) { return std::vector<index_t>{routed_.expert_of(row)}; });
    }
    result.scan("rows", gather_.rows, [&](index_t row) { return row < routed_.live(); });
    result.untouched("rows", gather_.rows, routed_.live());
  }

  void compare_combine(comparison& result) const {
    problem const& p = s_.p;
    double const token_cost = static_cast<double>(p.hidden) * static_cast<double>(p.top_k);
    rounding_path path;
    path.stored = 1.0;
    path.added = static_cast<double>(p.top_k) + roundings_of_sum(p.top_k);
    double const bound = s_.data == data_mode::exact ? 0.0 : allowed_error(p.io, path);
    result.entries(
        {{"y", combine_.y, bound}}, sample_of(p.tokens, result.budget() / token_cost, {}), p.tokens,
        [&](index_t token) {
          expectation wanted{std::vector<double>(static_cast<std::size_t>(p.hidden)), 0.0};
          double squares = 0.0;
          for (index_t k = 0; k < p.top_k; ++k) {
            index_t const row =
                routed_.rows.slot_to_row[static_cast<std::size_t>(token * p.top_k + k)];
            if (row < 0) continue;
            double const weight = weighted_ ? routed_.weight_of(row) : 1.0;
            squares += weight * weight;
            for (index_t c = 0; c < p.hidden; ++c) {
              wanted.values[static_cast<std::size_t>(c)] +=
                  weight * oracle::at(combine_.rows, 0, row, c);
            }
          }
          wanted.typical = std::sqrt(squares * static_cast<double>(p.hidden));
          return std::vector<expectation>{wanted};
        },
        [&](index_t token) { return routed_.experts_of_token(token); });
    auto const lives = [&](index_t token) { return !routed_.experts_of_token(token).empty(); };
    result.scan("y", combine_.y, lives);
    result.zero("y of token", combine_.y, [&](index_t token) { return !lives(token); });
  }

  void compare_slots(comparison& result) const {
    problem const& p = s_.p;
    double const token_cost = 2.0 * static_cast<double>(p.hidden) * static_cast<double>(p.top_k);
    rounding_path path;
    path.added = 2.0 * roundings_of_sum(p.hidden);
    double const bound = s_.data == data_mode::exact ? 0.0 : allowed_error(dtype::f32, path);
    result.entries(
        {{"d_weights", slots_.d_weights, bound}},
        sample_of(p.tokens, result.budget() / token_cost, {}), p.tokens,
        [&](index_t token) {
          expectation wanted;
          double live = 0.0;
          for (index_t k = 0; k < p.top_k; ++k) {
            index_t const row =
                routed_.rows.slot_to_row[static_cast<std::size_t>(token * p.top_k + k)];
            wanted.values.push_back(row < 0 ? 0.0 : slot_dot(row));
            live += row < 0 ? 0.0 : 1.0;
          }
          wanted.typical = std::sqrt(live * static_cast<double>(p.hidden));
          return std::vector<expectation>{wanted};
        },
        [&](index_t token) { return routed_.experts_of_token(token); });
  }

  [[nodiscard]] double slot_dot(index_t row) const {
    index_t const expert = routed_.expert_of(row);
    double sum = 0.0;
    for (index_t c = 0; c < s_.p.hidden; ++c) {
      sum += oracle::at(slots_.left, row, c) * oracle::at(slots_.right, row, c);
      if (slots_.bias.present()) {
        sum += oracle::at(slots_.bias_rows, row, c) * oracle::at(slots_.bias, expert, c);
      }
    }
    return sum;
  }

  setting s_;
  routed_tokens routed_;
  routing_plan plan_;
  bool gathers_;
  bool weighted_;
  gather_args gather_;
  combine_args combine_;
  slot_weight_gradient_args slots_;
};

}  // namespace

std::unique_ptr<scenario> make_movement(setting const& s) {
  return std::make_unique<movement_scenario>(s);
}

}  // namespace moe64::cases
