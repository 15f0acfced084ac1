#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/epilogue_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/epilogue.hpp"
#include "cpu/gemm/portable/codes.hpp"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

/// left[i] += factor * right[i], the product rounded first.
static void add_run(float* left, float factor, float const* right, index_t count) {
  f32_tag const tag;
  f32_vector const factors = hn::Set(tag, factor);
  index_t i = 0;
  for (; i + vector_length <= count; i += vector_length) {
    f32_vector const product = hn::Mul(factors, hn::LoadU(tag, right + i));
    hn::StoreU(hn::Add(hn::LoadU(tag, left + i), product), tag, left + i);
  }
  for (; i < count; ++i) left[i] += factor * right[i];
}

/// The outputs [begin, end) of the tile that belong to one part get its bias.
static void add_bias(grouped_gemm_args const& args, tile_place const& at, float* acc,
                     index_t stride, std::size_t part) {
  if (!args.bias[part].present()) return;
  index_t const first = static_cast<index_t>(part) * args.weights.part_rows();
  index_t const begin = std::max(at.out_begin, first);
  index_t const end = std::min(at.out_begin + at.outs, first + args.weights.part_rows());
  float bias[run_length];
  for (index_t n = begin; n < end; n += run_length) {
    index_t const count = std::min(run_length, end - n);
    load_run(row_of(args.bias[part], at.expert), n - first, count, bias);
    for (index_t r = 0; r < at.rows; ++r) {
      add_run(acc + r * stride + (n - at.out_begin), 1.0F, bias, count);
    }
  }
}

void store_tile_simd(grouped_gemm_args const& args, tile_place const& at, float* acc,
                     float const* low_rank, index_t stride) {
  for (index_t r = 0; low_rank != nullptr && r < at.rows; ++r) {
    add_run(acc + r * stride, args.low_rank.scaling, low_rank + r * stride, at.outs);
  }
  for (int part = 0; !args.transpose && part < args.weights.parts(); ++part) {
    add_bias(args, at, acc, stride, static_cast<std::size_t>(part));
  }
  for (index_t r = 0; r < at.rows; ++r) {
    store_run(row_of(args.y, at.row_begin + r), at.out_begin, at.outs, acc + r * stride);
  }
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
