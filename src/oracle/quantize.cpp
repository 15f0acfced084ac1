#include "oracle/quantize.hpp"

#include "moe64/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace moe64::oracle {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double largest_code(dtype type) {
  switch (type) {
    case dtype::e4m3:
      return 448.0;
    case dtype::e5m2:
      return 57344.0;
    case dtype::int8:
      return 127.0;
    case dtype::int4:
      return 7.0;
    case dtype::fp4:
      return 6.0;
    default:
      throw error(errc::dtype_mismatch,
                  "[oracle quantize] no codes of type " + std::string(name(type)));
  }
}

double smallest_positive(dtype type) {
  switch (type) {
    case dtype::f32:
      return 0x1p-149;
    case dtype::bf16:
      return 0x1p-133;
    case dtype::f16:
      return 0x1p-24;
    case dtype::e4m3:
      return 0x1p-9;
    case dtype::e8m0:
      return 0x1p-127;
    default:
      throw error(errc::dtype_mismatch,
                  "[oracle quantize] no scales of type " + std::string(name(type)));
  }
}

/// Both operands are f32 numbers; the quotient is rounded to f32.
double divide_f32(double left, double right) { return round_to(left / right, dtype::f32); }

struct block {
  index_t row_begin, row_end, col_begin, col_end;
};

double largest_finite(number_matrix const& x, block const& where, bool* all_finite) {
  double largest = 0.0;
  *all_finite = true;
  for (index_t r = where.row_begin; r < where.row_end; ++r) {
    for (index_t c = where.col_begin; c < where.col_end; ++c) {
      double const magnitude = std::fabs(x.values[static_cast<std::size_t>(r * x.cols + c)]);
      if (std::isfinite(magnitude)) {
        largest = std::max(largest, magnitude);
      } else {
        *all_finite = false;
      }
    }
  }
  return largest;
}

/// The quotient as a scale; never 0, for then no code could bring the block back.
double stored_scale(double quotient, dtype type) {
  double const rounded = round_to(quotient, type);
  return rounded == 0.0 ? smallest_positive(type) : rounded;
}

/// Saturates at the largest code on both sides, so that int8 never gives -128.
double code_of(double value, double scale, dtype type) {
  double const quotient = divide_f32(value, scale);
  double const largest = largest_code(type);
  if (quotient > largest) return largest;
  if (quotient < -largest) return -largest;
  return round_to(quotient, type);
}

}  // namespace

quantized_matrix quantize_numbers(number_matrix const& x, dtype code, dtype scale,
                                  granularity const& layout, global_scale::direction applied) {
  index_t block_rows = 1;
  index_t block_cols = std::max<index_t>(x.cols, 1);
  if (layout.kind == scale_kind::tensor) block_rows = std::max<index_t>(x.rows, 1);
  if (layout.kind == scale_kind::block) block_rows = layout.block_rows;
  if (layout.kind == scale_kind::block || layout.kind == scale_kind::group) {
    block_cols = layout.block_cols;
  }
  double const largest = largest_code(code);
  bool const two_levels = code == dtype::fp4 && scale == dtype::e4m3;
  bool const divides = applied == global_scale::direction::divide;

  quantized_matrix result;
  result.codes.resize(x.values.size(), 0.0);
  bool all_finite = true;
  if (two_levels) {
    double const peak = largest_finite(x, {0, x.rows, 0, x.cols}, &all_finite);
    double const reach = 6.0 * 448.0;
    double const global = divides ? divide_f32(reach, peak) : divide_f32(peak, reach);
    // A peak close to the end of f32 leaves none that f32 can hold; neither does a peak of 0.
    if (std::isfinite(global) && global > 0.0) result.global = global;
  }
  for (index_t r = 0; r < x.rows; r += block_rows) {
    for (index_t c = 0; c < x.cols; c += block_cols) {
      block const here{r, std::min(r + block_rows, x.rows), c, std::min(c + block_cols, x.cols)};
      double const peak = largest_finite(x, here, &all_finite);
      if (!all_finite) {
        result.scales.push_back(nan);
        continue;
      }
      double quotient = peak == 0.0 ? 1.0 : divide_f32(peak, largest);
      if (two_levels && peak != 0.0) {
        quotient = divides ? round_to(quotient * result.global, dtype::f32)
                           : divide_f32(quotient, result.global);
      }
      double const block_scale = stored_scale(quotient, scale);
      result.scales.push_back(block_scale);
      double effective = block_scale;
      if (two_levels) {
        effective = divides ? divide_f32(block_scale, result.global)
                            : round_to(block_scale * result.global, dtype::f32);
      }
      for (index_t i = here.row_begin; i < here.row_end; ++i) {
        for (index_t j = here.col_begin; j < here.col_end; ++j) {
          auto const element = static_cast<std::size_t>(i * x.cols + j);
          result.codes[element] = code_of(x.values[element], effective, code);
        }
      }
    }
  }
  return result;
}

quantized_matrix quantize(tensor_view const& x, dtype code, dtype scale, granularity const& layout,
                          global_scale const& global) {
  if (x.rank != 2) {
    throw error(errc::shape_mismatch,
                "[oracle quantize] x has rank " + std::to_string(x.rank) + ", not 2");
  }
  number_matrix numbers{{}, x.extent[0], x.extent[1]};
  for (index_t r = 0; r < numbers.rows; ++r) {
    for (index_t c = 0; c < numbers.cols; ++c) numbers.values.push_back(at(x, r, c));
  }
  return quantize_numbers(numbers, code, scale, layout, global.applied);
}

std::vector<double> quantized_activation(std::vector<double> const& row,
                                         weight_stack const& weights) {
  dtype const weight_type = weights.type();
  if (weight_type != dtype::e4m3 && weight_type != dtype::e5m2 && weight_type != dtype::int8) {
    throw error(errc::unsupported,
                "[oracle layer] w8a8 with weights of type " + std::string(name(weight_type)));
  }
  scale_kind const kind = weights.layout().kind;
  bool const grouped = kind == scale_kind::block || kind == scale_kind::group;
  index_t const cols = std::ssize(row);
  index_t const group = grouped ? 128 : std::max<index_t>(cols, 1);
  dtype const code = weight_type == dtype::int8 ? dtype::int8 : dtype::e4m3;

  number_matrix const numbers{row, 1, cols};
  quantized_matrix const quantized = quantize_numbers(
      numbers, code, dtype::f32, granularity::group(group), global_scale::direction::multiply);
  std::vector<double> result(row.size());
  for (index_t c = 0; c < cols; ++c) {
    auto const element = static_cast<std::size_t>(c);
    result[element] =
        quantized.codes[element] * quantized.scales[static_cast<std::size_t>(c / group)];
  }
  return result;
}

}  // namespace moe64::oracle
