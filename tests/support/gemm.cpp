#include "support/gemm.hpp"

#include "oracle/oracle.hpp"

#include <cmath>
#include <limits>

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// All numbers of one expert as [outs, depth].
std::vector<double> matrix_of(weight_stack const& weights, index_t expert, bool transpose,
                              dtype as) {
  index_t const outs = transpose ? weights.cols() : weights.rows();
  index_t const depth = transpose ? weights.rows() : weights.cols();
  std::vector<double> result;
  result.reserve(place(outs * depth));
  for (index_t n = 0; n < outs; ++n) {
    for (index_t k = 0; k < depth; ++k) {
      double const number =
          transpose ? oracle::at(weights, expert, k, n) : oracle::at(weights, expert, n, k);
      result.push_back(weights.is_plain() ? number : oracle::round_to(number, as));
    }
  }
  return result;
}

/// y[row] += factor * x[row] * matrix^T
void add_product(reference_product& sum, index_t row, index_t outs, double factor,
                 std::vector<double> const& x, std::vector<double> const& matrix) {
  for (index_t n = 0; n < outs; ++n) {
    double dot = 0.0;
    double size = 0.0;
    for (std::size_t k = 0; k < x.size(); ++k) {
      double const term = x[k] * matrix[place(n) * x.size() + k];
      dot += term;
      size += std::fabs(term);
    }
    sum.y[place(row * outs + n)] += factor * dot;
    sum.size[place(row * outs + n)] += std::fabs(factor) * size;
  }
}

std::vector<double> row_of(quantized_view const& x, index_t row) {
  std::vector<double> result;
  for (index_t k = 0; k < x.cols(); ++k) result.push_back(oracle::at(x, 0, row, k));
  return result;
}

}  // namespace

reference_product multiply(grouped_gemm_args const& args) {
  index_t const capacity = args.y.extent[0];
  index_t const outs = args.y.extent[1];
  reference_product result;
  result.y.assign(place(capacity * outs), std::numeric_limits<double>::quiet_NaN());
  result.size.assign(place(capacity * outs), 0.0);
  dtype const as = args.x.is_plain() ? args.x.type() : dtype::f32;
  for (index_t e = 0; e < args.weights.experts(); ++e) {
    auto const begin = static_cast<index_t>(oracle::at(args.expert_begin, e));
    auto const end = static_cast<index_t>(oracle::at(args.expert_begin, e + 1));
    if (begin == end) continue;
    std::vector<double> const matrix = matrix_of(args.weights, e, args.transpose, as);
    std::vector<double> low_rank;
    if (args.low_rank.u.present()) {
      low_rank = matrix_of(args.low_rank.weights, e, args.transpose, dtype::f32);
    }
    for (index_t row = begin; row < end; ++row) {
      for (index_t n = 0; n < outs; ++n) result.y[place(row * outs + n)] = 0.0;
      add_product(result, row, outs, 1.0, row_of(args.x, row), matrix);
      if (args.low_rank.u.present()) {
        add_product(result, row, outs, args.low_rank.scaling,
                    row_of(quantized_view::plain(args.low_rank.u), row), low_rank);
      }
      for (index_t n = 0; n < outs; ++n) {
        index_t const part = n < args.weights.part_rows() ? 0 : 1;
        tensor_view const& bias = args.bias[place(part)];
        if (args.transpose || !bias.present()) continue;
        double const term = oracle::at(bias, e, n - part * args.weights.part_rows());
        result.y[place(row * outs + n)] += term;
        result.size[place(row * outs + n)] += std::fabs(term);
      }
    }
  }
  return result;
}

std::vector<double> rounding_bound(reference_product const& product, index_t terms, dtype type) {
  double const unit = type == dtype::f32 ? 0.0 : type == dtype::bf16 ? 0x1p-8 : 0x1p-11;
  std::vector<double> result;
  for (std::size_t i = 0; i < product.y.size(); ++i) {
    double const error = product.size[i] * static_cast<double>(terms + 4) * 0x1p-24;
    double const subnormal = type == dtype::f16 ? 0x1p-25 : 0.0;
    result.push_back(error + (std::fabs(product.y[i]) + error) * unit + subnormal + 0x1p-149);
  }
  return result;
}

std::vector<double> rounded(std::vector<double> values, dtype type) {
  for (double& value : values) value = oracle::round_to(value, type);
  return values;
}

}  // namespace moe64::test
