#include "cases/scenario.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"
#include "oracle/quantize.hpp"

#include <cmath>
#include <utility>

namespace moe64::cases {

void refuse_backward(problem const& p, char const* why) {
  if (!p.backward) return;
  throw error(errc::unsupported, fmt::format("[case] op={} backward=1: {}", name(p.op), why));
}

void refuse_exact(setting const& s, char const* why) {
  if (s.data != data_mode::exact) return;
  throw error(errc::invalid_argument,
              fmt::format("[case] op={} with exact data: {}", name(s.p.op), why));
}

namespace {

/// `live` rows of a matrix that `source` fills; the others are NaN.
void fill_rows(setting const& s, number_source const& source, tensor_view const& matrix,
               tensor_id id, index_t live) {
  index_t const rows = matrix.extent[0];
  index_t const filled = live == rows ? s.memory.entries_to_fill(matrix) : live;
  source.fill(matrix, s.p.seed, id, 0, filled, s.executor);
  poison(matrix, live, rows);
}

}  // namespace

quantized_view quantized_rows(setting const& s, std::string const& name, index_t rows, index_t live,
                              index_t cols) {
  dtype const weights = value_type(s.p.weight);
  if (!is_quantized(weights)) {
    throw error(errc::unsupported,
                fmt::format("[case] op={} mode=w8a8 needs quantised weights", moe64::name(s.p.op)));
  }
  dtype const type = weights == dtype::int8 ? dtype::int8 : dtype::e4m3;
  granularity const layout = activation_granularity(s.p.scale);
  tensor_view const codes = s.memory.tensor(name, purpose::input, type, {rows, cols});
  tensor_view const scales =
      s.memory.tensor(name + ".scales", purpose::input, dtype::f32, {rows, layout.grid_cols(cols)});
  bool const exact = s.data == data_mode::exact;
  double const deviation = type == dtype::int8 ? 30.0 : 100.0;
  auto const code_source = exact ? number_source::one_of(type, {-1.0, 0.0, 1.0})
                                 : number_source::normal(type, deviation);
  auto const scale_source =
      exact ? number_source::one_of(dtype::f32, {0.5, 1.0})
            : number_source::spread(dtype::f32, 0.5 / deviation, 2.0 / deviation);
  fill_rows(s, code_source, codes, tensor_id::rows, live);
  fill_rows(s, scale_source, scales, tensor_id::row_scales, live);
  return quantized_view::scaled(codes, scales, layout);
}

tensor_view plain_rows(setting const& s, std::string const& name, tensor_id id, index_t rows,
                       index_t live, index_t cols) {
  tensor_view const matrix = s.memory.tensor(name, purpose::input, s.p.io, {rows, cols});
  auto const source = s.data == data_mode::exact ? number_source::one_of(s.p.io, {-1.0, 0.0, 1.0})
                                                 : number_source::normal(s.p.io, 1.0);
  fill_rows(s, source, matrix, id, live);
  return matrix;
}

std::vector<expectation> quantized_row(problem const& p, std::vector<double> row) {
  index_t const cols = std::ssize(row);
  auto wanted = oracle::quantize_numbers({std::move(row), 1, cols}, value_type(p.weight),
                                         p.scale_dtype, p.scale, global_scale::direction::multiply);
  auto const norm = [](std::vector<double> const& values) {
    double squares = 0.0;
    for (double const value : values) squares += value * value;
    return std::sqrt(squares);
  };
  double const codes = norm(wanted.codes), scales = norm(wanted.scales);
  return {{std::move(wanted.codes), codes}, {std::move(wanted.scales), scales}};
}

double bytes_of(tensor_view const& matrix, index_t rows) {
  return static_cast<double>(rows) * static_cast<double>(matrix.stride[0]) *
         static_cast<double>(bits(matrix.type)) / 8.0;
}

}  // namespace moe64::cases
