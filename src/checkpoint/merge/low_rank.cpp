#include "checkpoint/merge/low_rank.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace moe64::checkpoint {
namespace {

// Vectors of a fixed length, which the compiler makes of the registers that a target has. The bits
// are the same on all of them: products are not fused with sums (-ffp-contract=off).
constexpr index_t lanes = 8;
using f64_lanes = double __attribute__((vector_size(64)));
using i64_lanes = std::int64_t __attribute__((vector_size(64)));
using f32_lanes = float __attribute__((vector_size(32)));
using i32_lanes = std::int32_t __attribute__((vector_size(32)));
using wide_lanes = float __attribute__((vector_size(64)));

#define MOE64_INLINED [[gnu::always_inline]] inline

MOE64_INLINED void load(float const* from, f32_lanes& into) {
  std::memcpy(&into, from, sizeof into);
}
MOE64_INLINED void store(float* into, f32_lanes const& from) {
  std::memcpy(into, &from, sizeof from);
}

/// The f32 next to `exact` whose last bit says that it is not exact; all that are exact stay.
MOE64_INLINED void round_to_odd(f64_lanes const& exact, f32_lanes& rounded) {
  f64_lanes const back = __builtin_convertvector(rounded, f64_lanes);
  i32_lanes const inexact = __builtin_convertvector(i64_lanes(back != exact), i32_lanes);
  i32_lanes const outward =
      __builtin_convertvector(i64_lanes((back - exact) * back > 0.0), i32_lanes);
  i32_lanes bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  i32_lanes const even = (bits & 1) - 1;
  bits += inexact & even & ((outward & -2) + 1);
  std::memcpy(&rounded, &bits, sizeof bits);
}

/// Rows x 16 elements. The numbers and deltas of a row are `pitch` and `delta_pitch` further.
template <index_t Rows>
MOE64_INLINED void update_block(low_rank_update const& u, index_t right_pitch, index_t row,
                                float const* right, float* numbers, index_t pitch, float* deltas,
                                index_t delta_pitch) {
  f64_lanes sums[static_cast<std::size_t>(Rows)][2] = {};
  double const* const left = u.left + row * u.rank;
  for (index_t k = 0; k < u.rank; ++k) {
    f32_lanes low;
    f32_lanes high;
    load(right + k * right_pitch, low);
    load(right + k * right_pitch + lanes, high);
    f64_lanes const low64 = __builtin_convertvector(low, f64_lanes);
    f64_lanes const high64 = __builtin_convertvector(high, f64_lanes);
    for (index_t i = 0; i < Rows; ++i) {
      double const factor = left[i * u.rank + k];
      sums[i][0] += factor * low64;
      sums[i][1] += factor * high64;
    }
  }
  for (index_t i = 0; i < Rows; ++i) {
    for (index_t half = 0; half < 2; ++half) {
      float* const place = numbers + i * pitch + half * lanes;
      f32_lanes number;
      load(place, number);
      f64_lanes const exact = __builtin_convertvector(number, f64_lanes) + sums[i][half];
      number = __builtin_convertvector(exact, f32_lanes);
      if (u.to_odd) round_to_odd(exact, number);
      store(place, number);
      store(deltas + i * delta_pitch + half * lanes,
            __builtin_convertvector(sums[i][half], f32_lanes));
    }
  }
}

/// The same in f32.
template <index_t Rows>
MOE64_INLINED void narrow_block(low_rank_update const& u, index_t right_pitch, index_t row,
                                float const* right, float* numbers, index_t pitch, float* deltas,
                                index_t delta_pitch) {
  wide_lanes sums[static_cast<std::size_t>(Rows)] = {};
  float const* const left = u.narrow_left + row * u.rank;
  for (index_t k = 0; k < u.rank; ++k) {
    wide_lanes factors;
    std::memcpy(&factors, right + k * right_pitch, sizeof factors);
    for (index_t i = 0; i < Rows; ++i) sums[i] += left[i * u.rank + k] * factors;
  }
  for (index_t i = 0; i < Rows; ++i) {
    wide_lanes number;
    std::memcpy(&number, numbers + i * pitch, sizeof number);
    number += sums[i];
    std::memcpy(numbers + i * pitch, &number, sizeof number);
    std::memcpy(deltas + i * delta_pitch, &sums[i], sizeof number);
  }
}

template <index_t Rows>
MOE64_INLINED void any_block(low_rank_update const& u, index_t right_pitch, index_t row,
                             float const* right, float* numbers, index_t pitch, float* deltas,
                             index_t delta_pitch) {
  if (u.narrow_left != nullptr) {
    narrow_block<Rows>(u, right_pitch, row, right, numbers, pitch, deltas, delta_pitch);
  } else {
    update_block<Rows>(u, right_pitch, row, right, numbers, pitch, deltas, delta_pitch);
  }
}

template <index_t Rows>
MOE64_INLINED void update_rows(low_rank_update const& u, index_t row) {
  index_t const right_pitch = low_rank_pitch(u.cols);
  float* const numbers = u.numbers + row * u.pitch;
  float* const deltas = u.deltas + row * u.cols;
  index_t const whole = u.cols - u.cols % 16;
  for (index_t col = 0; col < whole; col += 16) {
    any_block<Rows>(u, right_pitch, row, u.right + col, numbers + col, u.pitch, deltas + col,
                    u.cols);
  }
  index_t const rest = u.cols - whole;
  if (rest == 0) return;
  float tail[static_cast<std::size_t>(Rows) * 16] = {};
  float tail_deltas[static_cast<std::size_t>(Rows) * 16];
  auto const bytes = static_cast<std::size_t>(rest) * sizeof(float);
  for (index_t i = 0; i < Rows; ++i)
    std::memcpy(tail + i * 16, numbers + i * u.pitch + whole, bytes);
  any_block<Rows>(u, right_pitch, row, u.right + whole, tail, 16, tail_deltas, 16);
  for (index_t i = 0; i < Rows; ++i) {
    std::memcpy(numbers + i * u.pitch + whole, tail + i * 16, bytes);
    std::memcpy(deltas + i * u.cols + whole, tail_deltas + i * 16, bytes);
  }
}

template <index_t Rows>
MOE64_INLINED void update_all(low_rank_update const& u) {
  index_t row = 0;
  for (; row + Rows <= u.rows; row += Rows) update_rows<Rows>(u, row);
  for (; row < u.rows; ++row) update_rows<1>(u, row);
}

MOE64_INLINED void measure_all(float const* written, float const* meant, float const* deltas,
                               index_t count, delta_sums& sums) {
  f64_lanes parts[3] = {};
  for (index_t i = 0; i < count; i += lanes) {
    f32_lanes m = {};
    f32_lanes v = {};
    f32_lanes d = {};
    if (count - i >= lanes) {
      load(written + i, m);
      load(meant + i, v);
      load(deltas + i, d);
    } else {
      auto const bytes = static_cast<std::size_t>(count - i) * sizeof(float);
      std::memcpy(&m, written + i, bytes);
      std::memcpy(&v, meant + i, bytes);
      std::memcpy(&d, deltas + i, bytes);
    }
    f64_lanes const delta = __builtin_convertvector(d, f64_lanes);
    f64_lanes const error =
        __builtin_convertvector(m, f64_lanes) - __builtin_convertvector(v, f64_lanes);
    parts[0] += delta * delta;
    parts[1] += error * delta;
    parts[2] += error * error;
  }
  for (index_t lane = 0; lane < lanes; ++lane) {
    sums.add({parts[0][lane], parts[1][lane], parts[2][lane]});
  }
}

#undef MOE64_INLINED

#if defined(__x86_64__)
#define MOE64_AVX512 [[gnu::target("avx512f,avx512dq,avx512vl,avx512bw")]]
#define MOE64_AVX2 [[gnu::target("avx2")]]
MOE64_AVX512 void update_avx512(low_rank_update const& u) {
  u.narrow_left != nullptr ? update_all<8>(u) : update_all<4>(u);
}
MOE64_AVX512 void measure_avx512(float const* written, float const* meant, float const* deltas,
                                 index_t count, delta_sums& sums) {
  measure_all(written, meant, deltas, count, sums);
}
MOE64_AVX2 void update_avx2(low_rank_update const& u) {
  u.narrow_left != nullptr ? update_all<4>(u) : update_all<2>(u);
}
MOE64_AVX2 void measure_avx2(float const* written, float const* meant, float const* deltas,
                             index_t count, delta_sums& sums) {
  measure_all(written, meant, deltas, count, sums);
}
bool has_avx512() {
  static bool const has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return has;
}
bool has_avx2() {
  static bool const has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#undef MOE64_AVX512
#undef MOE64_AVX2
#endif

}  // namespace

void add_low_rank(low_rank_update const& update) {
#if defined(__x86_64__)
  if (has_avx512()) return update_avx512(update);
  if (has_avx2()) return update_avx2(update);
#endif
  update_all<2>(update);
}

delta_sums measure_deltas(float const* written, float const* meant, float const* deltas,
                          index_t count) {
  delta_sums sums;
#if defined(__x86_64__)
  if (has_avx512()) {
    measure_avx512(written, meant, deltas, count, sums);
    return sums;
  }
  if (has_avx2()) {
    measure_avx2(written, meant, deltas, count, sums);
    return sums;
  }
#endif
  measure_all(written, meant, deltas, count, sums);
  return sums;
}

}  // namespace moe64::checkpoint
