#pragma once

#include "cpu/gemm/bf16/dot.hpp"
#include "cpu/gemm/bf16/scaling.hpp"
#include "cpu/runtime/expert_ranges.hpp"

#include <algorithm>

/// Rows of one expert's weights as bf16, whatever their format and layout.
namespace moe64::cpu::bf16 {

/// Columns that are read in one call, at most; bounds the memory that a reader keeps.
inline constexpr index_t depth_tile = 4096;

/// How a matrix is read.
enum class reading : std::uint8_t {
  copy,     ///< bf16 already
  table,    ///< 8-bit floats, at least 64 columns to a scale: float8_table
  scaled,   ///< a scale every 32 columns or multiples of it
  general,  ///< any stride and any block, number by number
};

[[nodiscard]] inline reading reading_of(quantized_view const& matrix) {
  tensor_view const& values = matrix.values();
  if (values.stride[2] != 1) return reading::general;
  if (matrix.is_plain()) return values.type == dtype::bf16 ? reading::copy : reading::general;
  if (bits(values.type) == 4 && (values.stride[0] % 2 != 0 || values.stride[1] % 2 != 0)) {
    return reading::general;
  }
  index_t const block = matrix.layout().cols_per_scale(matrix.cols());
  bool const whole_row = block >= matrix.cols();
  bool const float8 = values.type == dtype::e4m3 || values.type == dtype::e5m2;
  if (float8 && (whole_row || block % 64 == 0)) return reading::table;
  return whole_row || block % 32 == 0 ? reading::scaled : reading::general;
}

/// The lines of columns [begin, begin + count) of an expert's weights, from a row on; none past the
/// last row, nor where rows are not runs of bytes.
[[nodiscard]] inline line_cursor lines_from(weight_stack const& weights, index_t expert,
                                            index_t row, index_t begin, index_t count) {
  if (row >= weights.rows()) return {};
  part_row const place = part_row_of(weights, row);
  quantized_view const& matrix = weights.part(place.part);
  tensor_view const& values = matrix.values();
  if (values.stride[2] != 1) return {};
  index_t const width = bits(values.type);
  return {static_cast<char const*>(values.data) +
              offset_of(values, matrix.values_at(expert), place.row, begin) * width / 8,
          values.stride[1] * width / 8, ceil_div(count * width, index_t{512})};
}

MOE64_BEGIN_AVX512_BF16

/// Reads the rows of one expert. It remembers the scales, and the tables made from them, of the
/// last block of rows: neighbouring rows should be read one after the other.
class weight_reader {
 public:
  weight_reader(weight_stack const& weights, index_t expert)
      : weights_(weights), expert_(expert), how_(how(weights)) {}

  [[nodiscard]] static reading how(weight_stack const& weights) {
    reading const first = reading_of(weights.part(0));
    bool const alike = weights.parts() == 1 || reading_of(weights.part(1)) == first;
    return alike ? first : reading::general;
  }

  /// out [count rounded up to 64] bf16 = numbers (row, begin ...) and zeros. begin is a multiple of
  /// 64, count at most depth_tile.
  void read(index_t row, index_t begin, index_t count, std::uint16_t* out) {
    part_row const place = part_row_of(weights_, row);
    quantized_view const& matrix = weights_.part(place.part);
    index_t const padded = ceil_div(count, index_t{64}) * 64;
    switch (how_) {
      case reading::copy: {
        std::uint16_t const* const from = numbers_at(matrix, place.row, begin);
        for (index_t k = 0; k < padded; k += 32) {
          _mm512_storeu_si512(out + k, _mm512_maskz_loadu_epi16(first_words(count - k), from + k));
        }
        return;
      }
      case reading::table: {
        float8_table const* const tables = prepare_tables(place, begin, count);
        std::uint8_t const* const codes = codes_at(matrix, place.row, begin);
        index_t const block = matrix.layout().cols_per_scale(matrix.cols());
        for (index_t k = 0, at = 0; k < count; ++at) {
          float8_table const table = tables[at];
          index_t const end = std::min(count, (begin / block + at + 1) * block - begin);
          for (; k + 64 <= end; k += 64) {
            pair const numbers = table.dequantize(_mm512_loadu_si512(codes + k));
            _mm512_storeu_si512(out + k, numbers.first);
            _mm512_storeu_si512(out + k + 32, numbers.second);
          }
          if (k == end) continue;
          pair const numbers =
              table.dequantize(_mm512_maskz_loadu_epi8(first_bytes(end - k), codes + k));
          _mm512_storeu_si512(out + k, _mm512_maskz_mov_epi16(first_words(end - k), numbers.first));
          _mm512_storeu_si512(out + k + 32,
                              _mm512_maskz_mov_epi16(first_words(end - k - 32), numbers.second));
          k = end;
        }
        return;
      }
      case reading::scaled:
        load_scales(place, begin, count);
        return read_scaled(place, begin, count, scales_,
                           matrix.layout().cols_per_scale(matrix.cols()), out);
      case reading::general:
        break;
    }
    float run[run_length];
    for (index_t k = 0; k < count; k += run_length) {
      index_t const length = std::min(run_length, count - k);
      load_scaled_row(matrix, expert_, place.row, begin + k, length, run);
      for (index_t i = 0; i < length; ++i) out[k + i] = encode_bf16(run[i]);
    }
    std::fill(out + count, out + padded, std::uint16_t{0});
  }

  /// The tables of one row's columns [begin, begin + count), one for each block of columns.
  float8_table const* prepare_tables(part_row const& place, index_t begin, index_t count) {
    quantized_view const& matrix = weights_.part(place.part);
    index_t const grid_row = load_scales(place, begin, count);
    if (grid_row == table_row_ && place.part == table_part_ && begin == table_begin_) {
      return tables_;
    }
    table_row_ = grid_row;
    table_part_ = place.part;
    table_begin_ = begin;
    index_t const block = matrix.layout().cols_per_scale(matrix.cols());
    index_t const many = ceil_div(begin + count, block) - begin / block;
    for (index_t at = 0; at < many; ++at) {
      tables_[at] = native_table(magnitudes_of(matrix.type()), scales_[at]);
    }
    return tables_;
  }

  /// read() of `scaled` for a run of rows whose columns [begin, begin + count) have one scale per
  /// row: false if they do not. The scales are loaded for all rows at once.
  bool read_narrow(index_t row, index_t rows, index_t begin, index_t count,
                   auto const& out_of_row) const {
    constexpr index_t most = 64;
    constexpr index_t whole_row = index_t{1} << 62;
    index_t const block = weights_.layout().cols_per_scale(weights_.cols());
    bool const one_scale = begin / block == (begin + count - 1) / block;
    if (how_ != reading::scaled || !one_scale) return false;
    for (index_t at = row; at < row + rows;) {
      part_row const place = part_row_of(weights_, at);
      index_t const run = std::min({row + rows - at, weights_.part_rows() - place.row, most});
      float scales[most];
      load_row_scales(place, run, begin / block, scales);
      for (index_t i = 0; i < run; ++i, ++at) {
        read_scaled({place.part, place.row + i}, begin, count, scales + i, whole_row,
                    out_of_row(at - row));
      }
    }
    return true;
  }

  /// Whether locate() serves columns [begin, begin + count): 8-bit floats, one scale per row there.
  [[nodiscard]] bool has_located_rows(index_t begin, index_t count) const {
    index_t const block = weights_.layout().cols_per_scale(weights_.cols());
    return how_ == reading::table && begin / block == (begin + count - 1) / block;
  }
  static constexpr index_t most_located = 64;
  /// Where the codes of rows [row, row + rows) begin in column `begin`, and their scales; at most
  /// most_located rows.
  void locate(index_t row, index_t rows, index_t begin, std::uint8_t const** codes,
              float* scales) const {
    index_t const grid_col = begin / weights_.layout().cols_per_scale(weights_.cols());
    for (index_t at = 0; at < rows;) {
      part_row const place = part_row_of(weights_, row + at);
      quantized_view const& matrix = weights_.part(place.part);
      index_t const run = std::min(rows - at, weights_.part_rows() - place.row);
      load_row_scales(place, run, grid_col, scales + at);
      for (index_t i = 0; i < run; ++i, ++at) codes[at] = codes_at(matrix, place.row + i, begin);
    }
  }
  /// Whether enough rows have the same scale for a table to pay.
  [[nodiscard]] bool rows_share_scales() const {
    return weights_.layout().rows_per_scale(weights_.part_rows()) >= 16;
  }
  [[nodiscard]] float8_table table_of(float scale) const {
    return native_table(magnitudes_of(weights_.type()), scale);
  }
  [[nodiscard]] float8_table exact_table() const { return float8_table::exact(weights_.type()); }

  /// scales [rows] = those of rows [place.row, place.row + rows) in column `grid_col` of the grid.
  void load_row_scales(part_row const& place, index_t rows, index_t grid_col, float* scales) const {
    quantized_view const& matrix = weights_.part(place.part);
    tensor_view const& grid = matrix.scales();
    index_t const block = matrix.layout().rows_per_scale(matrix.rows());
    index_t const first = place.row / block;
    index_t const many = (place.row + rows - 1) / block - first + 1;
    row_view const column = {grid.data, offset_of(grid, matrix.scales_at(expert_), 0, grid_col),
                             grid.stride[1], grid.type};
    load_row(column, first, many, scales);
    apply_global(matrix, scales, many);
    if (block == 1) return;
    // From the last row on, so that no entry is overwritten before it is used.
    for (index_t i = rows - 1; i >= 0; --i) scales[i] = scales[(place.row + i) / block - first];
  }

  /// The scales of a row's first `count` columns.
  float const* scales_of(part_row const& place, index_t count) {
    load_scales(place, 0, count);
    return scales_;
  }

  /// Codes of a row from column `begin` on.
  [[nodiscard]] std::uint8_t const* codes_at(quantized_view const& matrix, index_t row,
                                             index_t begin) const {
    index_t const offset = offset_of(matrix.values(), matrix.values_at(expert_), row, begin);
    return static_cast<std::uint8_t const*>(matrix.values().data) +
           (bits(matrix.type()) == 4 ? offset / 2 : offset);
  }

 private:
  [[nodiscard]] std::uint16_t const* numbers_at(quantized_view const& matrix, index_t row,
                                                index_t begin) const {
    return static_cast<std::uint16_t const*>(matrix.values().data) +
           offset_of(matrix.values(), matrix.values_at(expert_), row, begin);
  }

  /// The factor of the global scale, applied to `count` scales.
  void apply_global(quantized_view const& matrix, float* scales, index_t count) const {
    if (!matrix.global().values.present()) return;
    float const global = load_number(matrix.global().values, expert_);
    bool const multiplies = matrix.global().applied == global_scale::direction::multiply;
    for (index_t i = 0; i < count; ++i) {
      scales[i] = multiplies ? scales[i] * global : scales[i] / global;
    }
  }

  /// The scales of one row's columns [begin, begin + count), the global scale included, to scales_;
  /// the row of the grid.
  index_t load_scales(part_row const& place, index_t begin, index_t count) {
    quantized_view const& matrix = weights_.part(place.part);
    index_t const grid_row = place.row / matrix.layout().rows_per_scale(matrix.rows());
    if (grid_row == scale_row_ && place.part == scale_part_ && begin == scale_begin_) {
      return grid_row;
    }
    scale_row_ = grid_row;
    scale_part_ = place.part;
    scale_begin_ = begin;
    index_t const block = matrix.layout().cols_per_scale(matrix.cols());
    index_t const first = begin / block;
    index_t const many = ceil_div(begin + count, block) - first;
    row_view const scales = row_of(matrix.scales(), matrix.scales_at(expert_), grid_row);
    if (scales.type == dtype::e8m0 && scales.stride == 1) {
      load_powers(static_cast<std::uint8_t const*>(scales.data) + scales.offset + first, many,
                  scales_);
    } else {
      load_row(scales, first, many, scales_);
    }
    apply_global(matrix, scales_, many);
    return grid_row;
  }

  /// Columns [begin, begin + count) of a row whose scales, from the one of `begin` on, are given; a
  /// scale holds for `block` columns.
  void read_scaled(part_row const& place, index_t begin, index_t count, float const* scale,
                   index_t block, std::uint16_t* out) const {
    quantized_view const& matrix = weights_.part(place.part);
    std::uint8_t const* const codes = codes_at(matrix, place.row, begin);
    auto const each = [&](auto const& numbers) {
      index_t in_block = begin % block;
      for (index_t k = 0; k < count; k += 32) {
        _mm512_storeu_si512(out + k, numbers(k, count - k, _mm512_set1_ps(*scale)));
        in_block += 32;
        if (in_block != block) continue;
        in_block = 0;
        ++scale;
      }
    };
    switch (matrix.type()) {
      case dtype::int8:
        each([&](index_t k, index_t left, __m512 factor) {
          return scale_int8(codes + k, left, factor);
        });
        break;
      case dtype::int4:
      case dtype::fp4: {
        float const* const values = matrix.type() == dtype::int4 ? nibble_values<dtype::int4>.data()
                                                                 : nibble_values<dtype::fp4>.data();
        each([&](index_t k, index_t left, __m512 factor) {
          return scale_nibbles(codes + k / 2, left, values, factor);
        });
        break;
      }
      default: {
        float8_table const exact = exact_table();
        if (block % 64 != 0) {
          each([&](index_t k, index_t left, __m512 factor) {
            return scale_float8(codes + k, std::min<index_t>(left, 32), exact, factor).first;
          });
          break;
        }
        for (index_t k = 0; k < count; k += 64) {
          if (k > 0 && (begin + k) % block == 0) ++scale;
          pair const numbers = scale_float8(codes + k, count - k, exact, _mm512_set1_ps(*scale));
          _mm512_storeu_si512(out + k, numbers.first);
          _mm512_storeu_si512(out + k + 32, numbers.second);
        }
        return;
      }
    }
    index_t const padded = ceil_div(count, index_t{64}) * 64;
    if (padded - count >= 32) _mm512_storeu_si512(out + padded - 32, _mm512_setzero_si512());
  }

  weight_stack const& weights_;
  index_t expert_;
  reading how_;
  int scale_part_ = -1;
  int table_part_ = -1;
  index_t scale_row_ = -1;
  index_t scale_begin_ = -1;
  index_t table_row_ = -1;
  index_t table_begin_ = -1;
  alignas(64) float scales_[depth_tile / 32 + 16];
  alignas(64) float8_table tables_[depth_tile / 64 + 1];
};

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
