// bf16 to 8-bit floats by table, 64 numbers at a time. Which step of a binade a quotient rounds to
// depends on the mantissa of the dividend alone, and bf16 has 128 of them.

#include "cpu/quantize/vbmi/quantize_vbmi.hpp"

#include "core/number.hpp"
#include "cpu/gemm/bf16/codes.hpp"
#include "cpu/quantize/panels.hpp"
#include "cpu/runtime/streaming.hpp"

#include <array>
#include <bit>
#include <cmath>

namespace moe64::cpu::bf16 {

namespace {

/// Numbers for which a table is worth making: it costs as much as dividing some 200.
constexpr index_t least_block = 512;

/// Whether quotients stay clear of the ends of f32, so that they scale with the dividend's exponent
/// exactly, and dividends that are subnormal give zero.
bool is_easy_factor(float factor) { return factor >= 0x1p-60F && factor <= 0x1p60F; }

/// Places 0, 2, 4, ... of 128 bytes.
alignas(64) constexpr auto even_bytes = [] {
  std::array<std::uint8_t, 64> places{};
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint8_t>(2 * i);
  return places;
}();

}  // namespace

MOE64_BEGIN_AVX512_VBMI

namespace {

/// Sixty-four bf16; zeros behind the first `count`.
struct numbers {
  __m512i lower, upper;

  static numbers load(std::uint16_t const* x, index_t count) {
    if (count >= 64) return {_mm512_loadu_si512(x), _mm512_loadu_si512(x + 32)};
    return {_mm512_maskz_loadu_epi16(first_words(count), x),
            _mm512_maskz_loadu_epi16(first_words(count - 32), x + 32)};
  }
};

/// The quotients by one factor as codes of one format. A dividend is 1.m * 2^e; its code is
/// steps[m] + (e - zero_exponent) * 2^mantissa, as long as the quotient is a normal number of the
/// format.
template <float_format Format>
struct code_table {
  __m512i steps[2];
  float factor;
  std::uint8_t zero_exponent;

  void make(float divisor) {
    factor = divisor;
    auto const bits = std::bit_cast<std::uint32_t>(divisor);
    zero_exponent = static_cast<std::uint8_t>((bits >> 23) - Format.bias() + 1);
    float const one_to_two = std::bit_cast<float>((bits & 0x7fffffU) | 0x3f800000U);
    __m512 const by = _mm512_set1_ps(one_to_two);
    __m512 const reciprocal = _mm512_set1_ps(1.0F / one_to_two);
    constexpr int drop = 23 - Format.mantissa;
    // Quotients lie in (1/2, 2): their codes, counted from the first of [1/2, 1).
    constexpr int first_code = 126 << Format.mantissa;
    alignas(64) std::uint8_t codes[128];
    __m512i mantissas = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (index_t i = 0; i < 128; i += 16) {
      __m512 const dividend = _mm512_castsi512_ps(
          _mm512_or_si512(_mm512_slli_epi32(mantissas, 16), _mm512_set1_epi32(0x3f800000)));
      // Rounded as a division would (Markstein): the remainder is exact.
      __m512 const guess = _mm512_mul_ps(dividend, reciprocal);
      __m512 const remainder = _mm512_fnmadd_ps(guess, by, dividend);
      __m512i const quotients = _mm512_castps_si512(_mm512_fmadd_ps(remainder, reciprocal, guess));
      __m512i const odd =
          _mm512_and_si512(_mm512_srli_epi32(quotients, drop), _mm512_set1_epi32(1));
      __m512i const rounded =
          _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(quotients, odd),
                                             _mm512_set1_epi32((1 << (drop - 1)) - 1)),
                            drop);
      __m512i const from_first = _mm512_sub_epi32(rounded, _mm512_set1_epi32(first_code));
      _mm_store_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(from_first));
      mantissas = _mm512_add_epi32(mantissas, _mm512_set1_epi32(16));
    }
    steps[0] = _mm512_load_si512(codes);
    steps[1] = _mm512_load_si512(codes + 64);
  }

  [[gnu::always_inline]] __m512i encode(numbers x) const {
    __m512i const even = _mm512_load_si512(even_bytes.data());
    __m512i const odd = _mm512_add_epi8(even, _mm512_set1_epi8(1));
    // The lower byte of a bf16 ends in its mantissa; the lookup ignores the bit above.
    __m512i const mantissa = _mm512_permutex2var_epi8(x.lower, even, x.upper);
    __m512i const sign = _mm512_permutex2var_epi8(x.lower, odd, x.upper);
    __m512i const exponent =
        _mm512_permutex2var_epi8(_mm512_slli_epi16(x.lower, 1), odd, _mm512_slli_epi16(x.upper, 1));
    __m512i const zero = _mm512_set1_epi8(std::bit_cast<char>(zero_exponent));
    constexpr int exponents = 128 >> Format.mantissa;
    __m512i const binade =
        _mm512_min_epu8(_mm512_subs_epu8(exponent, zero), _mm512_set1_epi8(exponents));
    __m512i const step = _mm512_permutex2var_epi8(steps[0], mantissa, steps[1]);
    __mmask64 const is_normal = _mm512_cmpgt_epu8_mask(exponent, zero);
    __m512i const sum =
        _mm512_maskz_adds_epu8(is_normal, _mm512_slli_epi16(binade, Format.mantissa), step);
    __m512i code = _mm512_min_epu8(sum, _mm512_set1_epi8(static_cast<char>(Format.top)));
    // Quotients that are subnormal in the format, or may be; what is smaller gives zero.
    constexpr int subnormal_binades = Format.mantissa + 2;
    __m512i const below = _mm512_sub_epi8(zero, exponent);
    __mmask64 const is_subnormal =
        _mm512_cmplt_epu8_mask(below, _mm512_set1_epi8(subnormal_binades));
    if (__builtin_expect(is_subnormal != 0, 0)) {
      code = _mm512_mask_mov_epi8(code, is_subnormal, subnormal_codes(x));
    }
    // code | (sign & 0x80)
    return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi8(char{-128}), 0xf8);
  }

 private:
  /// Codes of magnitudes below the second binade of normal numbers: up to there steps are equal.
  [[nodiscard, gnu::noinline]] __m512i subnormal_codes(numbers x) const {
    constexpr float steps_to_one =
        std::bit_cast<float>((126U + Format.bias() + Format.mantissa) << 23);
    __m512 const divisor = _mm512_set1_ps(factor);
    alignas(64) std::uint16_t words[64];
    alignas(64) std::uint8_t codes[64];
    _mm512_store_si512(words, x.lower);
    _mm512_store_si512(words + 32, x.upper);
    for (index_t i = 0; i < 64; i += 16) {
      __m256i const magnitude =
          _mm256_and_si256(_mm256_load_si256(reinterpret_cast<__m256i const*>(words + i)),
                           _mm256_set1_epi16(0x7fff));
      __m512 const dividend =
          _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(magnitude), 16));
      __m512 const quotient = _mm512_div_ps(dividend, divisor);
      __m512i const code =
          _mm512_cvtps_epi32(_mm512_mul_ps(quotient, _mm512_set1_ps(steps_to_one)));
      _mm_store_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return _mm512_load_si512(codes);
  }
};

/// The largest magnitude among bf16, as bits: infinity and NaN are larger than all others.
class largest_of {
 public:
  void clear() { bits_ = _mm512_setzero_si512(); }
  /// Of x[0] to x[count - 1]; asks for what lies `prefetch` elements behind them.
  void add(std::uint16_t const* x, index_t count, index_t prefetch) {
    for (index_t i = 0; i < count; i += 32) {
      _mm_prefetch(reinterpret_cast<char const*>(x + i + prefetch), _MM_HINT_T0);
      __m512i const words =
          count - i >= 32
              ? _mm512_loadu_si512(x + i)
              : _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_bytes(count - i)), x + i);
      bits_ = _mm512_max_epi16(bits_, _mm512_and_si512(words, _mm512_set1_epi16(0x7fff)));
    }
  }
  [[nodiscard]] magnitude size() const {
    __m512i const upper = _mm512_srli_epi32(bits_, 16);
    __m512i const lower = _mm512_and_si512(bits_, _mm512_set1_epi32(0xffff));
    auto const code = static_cast<std::uint16_t>(  // narrow-ok: 15 bits
        _mm512_reduce_max_epi32(_mm512_max_epi32(upper, lower)));
    float const value = decode_bf16(code);
    return std::isfinite(value) ? magnitude{value, true} : magnitude{0.0F, false};
  }

 private:
  __m512i bits_;
};

/// visit(block, col, count) for the part of each block in one row of a panel.
template <class Visit>
[[gnu::always_inline]] inline void for_each_block(panel const& at, Visit const& visit) {
  index_t col = at.first * at.block_cols;
  for (index_t block = 0; block < at.count; ++block) {
    index_t const count = std::min(at.block_cols, at.col_end - col);
    visit(block, col, count);
    col += count;
  }
}

template <float_format Format>
void quantize_panel(quantize_view const& p, panel const& at, float global, bool streamed) {
  auto const* const x = static_cast<std::uint16_t const*>(p.x.data);
  auto* const out = static_cast<std::uint8_t*>(p.values.data);
  largest_of largest[panel_blocks];
  code_table<Format> tables[panel_blocks];
  for (index_t block = 0; block < at.count; ++block) largest[block].clear();
  for (index_t row = at.row_begin; row < at.row_end; ++row) {
    std::uint16_t const* const from = x + offset_of(p.x, at.expert, row);
    for_each_block(at, [&](index_t block, index_t col, index_t count)
                           MOE64_INLINE { largest[block].add(from + col, count, p.x.stride[1]); });
  }
  for (index_t block = 0; block < at.count; ++block) {
    float const factor = write_scale(p.target(), largest[block].size(), global, at.expert,
                                     at.grid_row, at.first + block);
    tables[block].factor = factor;
    if (is_easy_factor(factor)) {
      tables[block].make(factor);
    } else {
      index_t const col = (at.first + block) * at.block_cols;
      write_codes(p, at.expert,
                  {at.row_begin, at.row_end, col, col + std::min(at.block_cols, at.col_end - col)},
                  factor);
    }
  }
  for (index_t row = at.row_begin; row < at.row_end; ++row) {
    std::uint16_t const* const from = x + offset_of(p.x, at.expert, row);
    std::uint8_t* const to = out + offset_of(p.values, at.expert, row);
    for_each_block(at, [&](index_t block, index_t col, index_t count) MOE64_INLINE {
      code_table<Format> const table = tables[block];
      if (!is_easy_factor(table.factor)) return;
      bool const past_caches = streamed && reinterpret_cast<std::uintptr_t>(to + col) % 64 == 0;
      for (index_t i = 0; i < count; i += 64) {
        std::uint16_t const* const next = from + col + i + at.to_next;
        _mm_prefetch(reinterpret_cast<char const*>(next), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<char const*>(next + 32), _MM_HINT_T0);
        index_t const left = count - i;
        __m512i const codes = table.encode(numbers::load(from + col + i, left));
        if (left < 64) {
          _mm512_mask_storeu_epi8(to + col + i, first_bytes(left), codes);
        } else if (past_caches) {
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + col + i), codes);
        } else {
          _mm512_storeu_si512(to + col + i, codes);
        }
      }
    });
  }
}

}  // namespace

void quantize_by_table(quantize_args const& args, stream where) {
  quantize_view const p(args);
  index_t const rows = count_rows("quantize", args.live_rows, p.x.extent[1]);
  bool const streamed = is_streamed(p.values.type, p.x.extent[0] * rows * p.x.extent[2]);
  for_each_panel(
      p, rows, where,
      [&](panel const& at, float global) {
        if (p.values.type == dtype::e4m3) {
          quantize_panel<e4m3_format>(p, at, global, streamed);
        } else {
          quantize_panel<e5m2_format>(p, at, global, streamed);
        }
      },
      [&] {
        if (streamed) _mm_sfence();
      });
}

MOE64_END_AVX512_VBMI

support takes_table(quantize_args const& args) {
  tensor_view const x = args.x.as_stack();
  tensor_view const values = args.values.as_stack();
  if (values.type != dtype::e4m3 && values.type != dtype::e5m2) {
    return support::no("values are " + std::string(name(values.type)) + ", not 8-bit floats");
  }
  if (x.type != dtype::bf16) {
    return support::no("x is " + std::string(name(x.type)) + ", not bf16");
  }
  if (x.stride[2] != 1 || values.stride[2] != 1) {
    return support::no("columns of x or values are not adjacent");
  }
  if (args.global.values.present()) return support::no("a global scale is asked for");
  index_t const rows = std::min(args.layout.rows_per_scale(x.extent[1]), x.extent[1]);
  index_t const cols = std::min(args.layout.cols_per_scale(x.extent[2]), x.extent[2]);
  if (rows * cols < least_block) {
    return support::no("a scale for every " + std::to_string(rows * cols) + " numbers, less than " +
                       std::to_string(least_block));
  }
  return support::yes();
}

}  // namespace moe64::cpu::bf16
