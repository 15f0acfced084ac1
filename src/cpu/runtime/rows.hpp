#pragma once

#include "core/view.hpp"
#include "moe64/quant.hpp"

/// Runs of elements of any number type as f32, and back. The switch on the type is taken once per
/// run.
namespace moe64 {

/// Columns that row kernels hold at a time; bounds their stack buffers.
inline constexpr index_t run_length = 512;

/// out[i] = element begin + i of the row, for i in [0, count).
void load_row(row_view const& row, index_t begin, index_t count, float* out);
/// Element begin + i of the row = in[i], rounded to the row's type.
void store_row(row_view const& row, index_t begin, index_t count, float const* in);
/// Round each number to `type` and back.
void round_row(dtype type, index_t count, float* values);

/// One number of an array.
[[nodiscard]] float load_number(tensor_view const& tensor, index_t i, index_t j = 0, index_t k = 0);
void store_number(tensor_view const& tensor, float value, index_t i, index_t j = 0, index_t k = 0);

/// The factor of the codes of block (grid_row, grid_col) of matrix `expert`, the global scale
/// included. Not plain.
[[nodiscard]] float scale_at(quantized_view const& q, index_t expert, index_t grid_row,
                             index_t grid_col);

/// out[i] = number (expert, row, begin + i): codes times their scales, in f32.
void load_scaled_row(quantized_view const& q, index_t expert, index_t row, index_t begin,
                     index_t count, float* out);

/// Integer element (i, j) of an int32 or int64 matrix.
[[nodiscard]] index_t load_index(tensor_view const& ids, index_t i, index_t j);

/// How many of `rows` exist: live_rows[0] where given, otherwise all; errc::invalid_argument when
/// it exceeds them.
[[nodiscard]] index_t count_rows(char const* operation, tensor_view const& live_rows, index_t rows);

}  // namespace moe64
