#include "cases/scenario.hpp"
#include "cases/weights.hpp"
#include "oracle/oracle.hpp"

namespace moe64::cases {
namespace {

/// Rows of matrix `expert` of a stack, as a matrix.
tensor_view band(tensor_view const& stack, index_t expert, index_t begin, index_t end) {
  tensor_view matrix = stack.slice(0, expert, expert + 1).slice(1, begin, end);
  for (int i = 0; i < 2; ++i) {
    matrix.extent[i] = matrix.extent[i + 1];
    matrix.stride[i] = matrix.stride[i + 1];
  }
  matrix.rank = 2;
  return matrix;
}

/// op=quantize: x [experts, inter, hidden] io to codes and scales. Compared in bands of the rows
/// that share scales (the whole matrix where all do), which the oracle can quantise alone.
class quantize_scenario final : public scenario {
 public:
  explicit quantize_scenario(setting const& s) : s_(s) {
    problem const& p = s.p;
    refuse_backward(p, "the gradient is straight through, there is nothing to run");
    args_.layout = p.scale;
    args_.implementation = p.impl;
    args_.x = s.memory.tensor("x", purpose::input, p.io, {p.experts, p.inter, p.hidden});
    auto const source = s.data == data_mode::exact
                            ? number_source::one_of(p.io, {-2.0, -1.0, 0.0, 1.0, 2.0})
                            : number_source::normal(p.io, 1.0);
    source.fill(args_.x, p.seed, tensor_id::x, s.executor);
    args_.values = s.memory.tensor("values", purpose::output, value_type(p.weight),
                                   {p.experts, p.inter, p.hidden});
    args_.scales =
        s.memory.tensor("scales", purpose::output, p.scale_dtype,
                        {p.experts, p.scale.grid_rows(p.inter), p.scale.grid_cols(p.hidden)});
    if (p.weight == weight_format::nvfp4) {
      args_.global.values = s.memory.tensor("global", purpose::output, dtype::f32, {p.experts});
      if (p.seed % 2 == 0) args_.global.applied = global_scale::direction::divide;
    }
    bool const whole = p.scale.kind == scale_kind::tensor || p.weight == weight_format::nvfp4;
    band_rows_ = whole ? p.inter : p.scale.rows_per_scale(p.inter);
  }

  void execute(stream where) const override { quantize(s_.memory.there(args_), where); }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    return {{"quantize", moe64::explain(s_.memory.there(args_), where)}};
  }

  [[nodiscard]] work cost() const override {
    return {0.0, bytes_of(args_.x, s_.p.experts) + bytes_of(args_.values, s_.p.experts) +
                     bytes_of(args_.scales, s_.p.experts)};
  }

  [[nodiscard]] std::vector<named_tensor> outputs() const override {
    return {{"codes", args_.values}, {"scales", args_.scales}};
  }

  void compare(comparison& result) const override {
    problem const& p = s_.p;
    index_t const bands = ceil_div(p.inter, band_rows_);
    auto const rows = [&](index_t b) { return std::min(band_rows_, p.inter - b * band_rows_); };
    auto const x_of = [=, this](index_t i) {
      index_t const begin = i % bands * band_rows_;
      return band(args_.x, i / bands, begin, begin + rows(i % bands));
    };
    index_t const grid_band = p.scale.grid_rows(band_rows_);
    std::vector<compared_output> outputs{
        {"codes",
         {},
         0.0,
         [=, this](index_t i) {
           index_t const begin = i % bands * band_rows_;
           return band(args_.values, i / bands, begin, begin + rows(i % bands));
         }},
        {"scales", {}, 0.0, [=, this](index_t i) {
           index_t const begin = i % bands * grid_band;
           return band(args_.scales, i / bands, begin, begin + p.scale.grid_rows(rows(i % bands)));
         }}};
    if (args_.global.values.present()) outputs.push_back({"global", args_.global.values});
    double const cost = 4.0 * static_cast<double>(band_rows_) * static_cast<double>(p.hidden);
    index_t const total = checked_mul(p.experts, bands);
    result.entries(
        outputs, sample_of(total, result.budget() / cost, {}), total,
        [&](index_t i) {
          auto const wanted =
              oracle::quantize(x_of(i), value_type(p.weight), p.scale_dtype, p.scale, args_.global);
          std::vector<expectation> all{{wanted.codes, 0.0}, {wanted.scales, 0.0}};
          if (args_.global.values.present()) all.push_back({{wanted.global}, 0.0});
          return all;
        },
        [bands](index_t i) { return std::vector<index_t>{i / bands}; });
  }

 private:
  setting s_;
  quantize_args args_;
  index_t band_rows_ = 1;
};

/// op=dequantize: codes [experts, inter, hidden] to io. One product and one rounding: always
/// compared exactly.
class dequantize_scenario final : public scenario {
 public:
  explicit dequantize_scenario(setting const& s) : s_(s) {
    problem const& p = s.p;
    refuse_backward(p, "quantised weights have no gradient");
    std::vector<index_t> all;
    for (index_t e = 0; e < p.experts; ++e) all.push_back(e);
    weight_builder build(s.memory, p, s.data, s.executor, std::move(all));
    args_.q = build.matrix("q", tensor_id::gate_up, p.inter, p.hidden);
    args_.out = s.memory.tensor("out", purpose::output, p.io, {p.experts, p.inter, p.hidden});
    args_.implementation = p.impl;
    bytes_ = build.bytes_in_use() + bytes_of(args_.out, p.experts);
  }

  void execute(stream where) const override { dequantize(s_.memory.there(args_), where); }

  [[nodiscard]] std::vector<operation_report> explain(stream where) const override {
    return {{"dequantize", moe64::explain(s_.memory.there(args_), where)}};
  }

  [[nodiscard]] work cost() const override { return {0.0, bytes_}; }

  [[nodiscard]] std::vector<named_tensor> outputs() const override { return {{"out", args_.out}}; }

  void compare(comparison& result) const override {
    problem const& p = s_.p;
    index_t const total = checked_mul(p.experts, p.inter);
    compared_output const out{"out", {}, 0.0, [&](index_t i) {
                                return band(args_.out, i / p.inter, i % p.inter, i % p.inter + 1);
                              }};
    result.entries(
        {out}, sample_of(total, result.budget() / (3.0 * static_cast<double>(p.hidden)), {}), total,
        [&](index_t i) {
          expectation wanted;
          for (index_t c = 0; c < p.hidden; ++c) {
            wanted.values.push_back(
                oracle::round_to(oracle::at(args_.q, i / p.inter, i % p.inter, c), p.io));
          }
          return std::vector<expectation>{wanted};
        },
        [&](index_t i) { return std::vector<index_t>{i / p.inter}; });
    result.scan("out", args_.out, [](index_t) { return true; });
  }

 private:
  setting s_;
  dequantize_args args_;
  double bytes_ = 0.0;
};

}  // namespace

std::unique_ptr<scenario> make_quantize(setting const& s) {
  return std::make_unique<quantize_scenario>(s);
}

std::unique_ptr<scenario> make_dequantize(setting const& s) {
  return std::make_unique<dequantize_scenario>(s);
}

}  // namespace moe64::cases
