// 8-bit floats to bf16 by table: one lookup for code, scale and rounding.

#include "cpu/quantize/vbmi/dequantize_vbmi.hpp"

#include "cpu/gemm/bf16/codes.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/streaming.hpp"

namespace moe64::cpu::bf16 {

MOE64_BEGIN_AVX512_VBMI

namespace {

/// Columns whose tables are kept; a multiple of 64.
constexpr index_t column_block = 4096;

/// The table of one scale. `magnitudes` [128] f32.
float8_table exact_table(float const* magnitudes, float scale) {
  __m512 const factor = _mm512_set1_ps(scale);
  auto const words = [&](index_t i) {
    return pack_bf16(_mm512_mul_ps(_mm512_loadu_ps(magnitudes + 32 * i), factor),
                     _mm512_mul_ps(_mm512_loadu_ps(magnitudes + 32 * i + 16), factor));
  };
  return float8_table::of({words(0), words(1), words(2), words(3)});
}

/// The tables of one row's blocks of columns. Neighbouring rows mostly share them.
class block_tables {
 public:
  block_tables(quantized_view const& q, index_t begin, index_t count)
      : q_(q),
        block_(q.layout().cols_per_scale(q.cols())),
        first_(begin / block_),
        many_(ceil_div(begin + count, block_) - first_) {}

  float8_table const* of_row(index_t expert, index_t row) {
    index_t const grid_row = row / q_.layout().rows_per_scale(q_.rows());
    if (expert == expert_ && grid_row == grid_row_) return tables_;
    expert_ = expert;
    grid_row_ = grid_row;
    for (index_t i = 0; i < many_; ++i) {
      float const scale = scale_at(q_, expert, grid_row, first_ + i);
      tables_[i] = exact_table(magnitudes_of(q_.type()), scale);
    }
    return tables_;
  }

  /// Where the block ends that holds column `at`.
  [[nodiscard]] index_t end_of_block(index_t at) const { return (at / block_ + 1) * block_; }
  [[nodiscard]] index_t index_of(index_t at) const { return at / block_ - first_; }

 private:
  quantized_view const& q_;
  index_t block_, first_, many_;
  index_t expert_ = -1;
  index_t grid_row_ = -1;
  float8_table tables_[column_block / 64 + 1];
};

/// Columns [begin, end) of one row. `streamed` asks for stores past the caches, which need whole
/// lines.
void dequantize_row(std::uint8_t const* codes, block_tables const& blocks,
                    float8_table const* tables, index_t begin, index_t end, std::uint16_t* out,
                    bool streamed) {
  bool const past_caches = streamed && reinterpret_cast<std::uintptr_t>(out + begin) % 64 == 0;
  for (index_t at = begin; at < end;) {
    float8_table const table = tables[blocks.index_of(at)];
    index_t const stop = std::min(end, blocks.end_of_block(at));
    if (past_caches) {
      for (; at + 64 <= stop; at += 64) {
        pair const numbers = table.dequantize(_mm512_loadu_si512(codes + at));
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), numbers.first);
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at + 32), numbers.second);
      }
    }
    for (; at < stop; at += 64) {
      index_t const left = stop - at;
      pair const numbers = table.dequantize(_mm512_maskz_loadu_epi8(first_bytes(left), codes + at));
      _mm512_mask_storeu_epi16(out + at, first_words(left), numbers.first);
      _mm512_mask_storeu_epi16(out + at + 32, first_words(left - 32), numbers.second);
    }
    at = stop;
  }
}

}  // namespace

void dequantize_by_table(dequantize_args const& args, stream where) {
  quantized_view const& q = args.q;
  tensor_view const out = args.out.as_stack();
  index_t const rows = q.experts() * q.rows();
  bool const streamed = is_streamed(out.type, checked_mul(rows, q.cols()));
  for (index_t begin = 0; begin < q.cols(); begin += column_block) {
    index_t const count = std::min(column_block, q.cols() - begin);
    parallel_ranges(where, rows, count * 3, [&](index_t first, index_t last) {
      block_tables blocks(q, begin, count);
      for (index_t i = first; i < last; ++i) {
        index_t const expert = i / q.rows();
        index_t const row = i % q.rows();
        dequantize_row(static_cast<std::uint8_t const*>(q.values().data) +
                           offset_of(q.values(), q.values_at(expert), row),
                       blocks, blocks.of_row(expert, row), begin, begin + count,
                       static_cast<std::uint16_t*>(out.data) + offset_of(out, expert, row),
                       streamed);
      }
      if (streamed) _mm_sfence();
    });
  }
}

MOE64_END_AVX512_VBMI

support takes_table(dequantize_args const& args) {
  quantized_view const& q = args.q;
  if (q.type() != dtype::e4m3 && q.type() != dtype::e5m2) {
    return support::no(std::string(name(q.type())) + " is not an 8-bit float");
  }
  if (args.out.type != dtype::bf16) {
    return support::no("out is " + std::string(name(args.out.type)) + ", not bf16");
  }
  if (q.values().stride[2] != 1 || args.out.stride[args.out.rank - 1] != 1) {
    return support::no("columns of q or out are not adjacent");
  }
  index_t const block = q.layout().cols_per_scale(q.cols());
  if (block < q.cols() && block % 64 != 0) {
    return support::no("a scale every " + std::to_string(block) + " columns, not multiples of 64");
  }
  return support::yes();
}

}  // namespace moe64::cpu::bf16
