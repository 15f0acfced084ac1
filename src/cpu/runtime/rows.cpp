#include "cpu/runtime/rows.hpp"

#include "core/number.hpp"

#include <algorithm>

namespace moe64 {

void load_row(row_view const& row, index_t begin, index_t count, float* out) {
  visit_number(row.type, [&](auto number) {
    using number_type = decltype(number);
    index_t const first = row.offset + begin * row.stride;
    if (row.stride == 1) {
      for (index_t i = 0; i < count; ++i) out[i] = number_type::get(row.data, first + i);
    } else {
      for (index_t i = 0; i < count; ++i) {
        out[i] = number_type::get(row.data, first + i * row.stride);
      }
    }
  });
}

void store_row(row_view const& row, index_t begin, index_t count, float const* in) {
  visit_number(row.type, [&](auto number) {
    using number_type = decltype(number);
    index_t const first = row.offset + begin * row.stride;
    if (row.stride == 1) {
      for (index_t i = 0; i < count; ++i) number_type::set(row.data, first + i, in[i]);
    } else {
      for (index_t i = 0; i < count; ++i) {
        number_type::set(row.data, first + i * row.stride, in[i]);
      }
    }
  });
}

void round_row(dtype type, index_t count, float* values) {
  if (type == dtype::bf16) {
    for (index_t i = 0; i < count; ++i) values[i] = decode_bf16(encode_bf16(values[i]));
  } else if (type == dtype::f16) {
    for (index_t i = 0; i < count; ++i) {
      values[i] = decode_float<f16_format>(encode_float<f16_format>(values[i]));
    }
  }
}

float load_number(tensor_view const& tensor, index_t i, index_t j, index_t k) {
  return visit_number(tensor.type, [&](auto number) {
    return decltype(number)::get(tensor.data, offset_of(tensor, i, j, k));
  });
}

void store_number(tensor_view const& tensor, float value, index_t i, index_t j, index_t k) {
  visit_number(tensor.type, [&](auto number) {
    decltype(number)::set(tensor.data, offset_of(tensor, i, j, k), value);
  });
}

float scale_at(quantized_view const& q, index_t expert, index_t grid_row, index_t grid_col) {
  float const scale = load_number(q.scales(), q.scales_at(expert), grid_row, grid_col);
  if (!q.global().values.present()) return scale;
  float const global = load_number(q.global().values, expert);
  return q.global().applied == global_scale::direction::multiply ? scale * global : scale / global;
}

void load_scaled_row(quantized_view const& q, index_t expert, index_t row, index_t begin,
                     index_t count, float* out) {
  load_row(row_of(q.values(), q.values_at(expert), row), begin, count, out);
  if (q.is_plain()) return;
  index_t const grid_row = row / q.layout().rows_per_scale(q.rows());
  index_t const block = q.layout().cols_per_scale(q.cols());
  for (index_t at = begin; at < begin + count;) {
    index_t const grid_col = at / block;
    index_t const end = std::min(begin + count, (grid_col + 1) * block);
    float const scale = scale_at(q, expert, grid_row, grid_col);
    for (; at < end; ++at) out[at - begin] *= scale;
  }
}

index_t load_index(tensor_view const& ids, index_t i, index_t j) {
  index_t const offset = offset_of(ids, i, j);
  return ids.type == dtype::int32 ? index_t{static_cast<std::int32_t const*>(ids.data)[offset]}
                                  : static_cast<std::int64_t const*>(ids.data)[offset];
}

index_t count_rows(char const* operation, tensor_view const& live_rows, index_t rows) {
  if (!live_rows.present()) return rows;
  index_t const live = as<std::int64_t, 1>(live_rows)(0);
  if (live < 0 || live > rows) {
    fail(errc::invalid_argument, "[{}] live_rows is {}, the operand has {} rows", operation, live,
         rows);
  }
  return live;
}

}  // namespace moe64
