#include "cuda/gemm/four_bit_operands.hpp"

#include "core/float8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace moe64::cuda::sm90_mixed {
namespace {

/// Elements along k of a run of scales (group_scales), and of an MMA.
constexpr index_t run = 128, mma_k = 16;

/// Elements of a run that share a scale.
index_t elements_per_scale(quantized_view const& q) {
  index_t const per = q.layout().cols_per_scale(q.cols());
  return per >= q.cols() ? run : std::min(per, run);
}

/// The largest power of two up to 4 that divides where all runs of scales begin.
int alignment_of(group_scales const& scales, index_t matrices) {
  index_t const bytes = bits(scales.type) / 8;
  auto const start = reinterpret_cast<std::uintptr_t>(scales.data);
  auto const line = static_cast<std::uintptr_t>(scales.n * bytes);
  auto const stack = static_cast<std::uintptr_t>(matrices > 1 ? scales.expert * bytes : 0);
  auto const next = static_cast<std::uintptr_t>(scales.scales_per_run * bytes);
  return 1 << std::countr_zero((start | line | stack | next | 4U));
}

constexpr float value_of(dtype type, std::uint32_t code) {
  return type == dtype::int4 ? static_cast<float>(decode_int4(code))
                             : decode_float<e2m1_format>(code);
}
/// Whether every code is an f16 whose lower byte is zero.
constexpr bool fit_bytes(dtype type) {
  for (std::uint32_t code = 0; code < 16; ++code) {
    std::uint32_t const half = encode_float<f16_format>(value_of(type, code));
    if (half % 256 != 0 || decode_float<f16_format>(half) != value_of(type, code)) return false;
  }
  return true;
}
static_assert(fit_bytes(dtype::int4) && fit_bytes(dtype::fp4));

}  // namespace

bool is_w4(dtype type) { return type == dtype::int4 || type == dtype::fp4; }

support takes_group_scales(quantized_view const& q) {
  index_t const per = q.layout().cols_per_scale(q.cols());
  index_t const shared = elements_per_scale(q);
  bool const even = shared % mma_k == 0 && run % shared == 0;
  if (!even || (per > run && per < q.cols() && per % run != 0)) {
    return support::no(
        fmt::format("weights have scale {}: neither rows nor groups of 16, 32, 64 "
                    "or whole {}s",
                    to_string(q.layout()), run));
  }
  tensor_view const& scales = q.scales();
  if (scales.extent[2] > 1 && scales.stride[2] != 1) {
    return support::no(fmt::format("scales {} are not contiguous along k", to_string(scales)));
  }
  if (index_t const bytes = run / shared * bits(scales.type) / 8; bytes > max_run_bytes) {
    return support::no(fmt::format("{} bytes of scales belong to {} elements along k, more than {}",
                                   bytes, run, max_run_bytes));
  }
  return support::yes();
}

group_scales group_scales_of(quantized_view const& q) {
  tensor_view const& scales = q.scales();
  index_t const per = q.layout().cols_per_scale(q.cols()), shared = elements_per_scale(q);
  index_t const runs_per_scale = std::max<index_t>(std::min(per, q.cols()) / run, 1);
  group_scales result = {
      .data = scales.data,
      .type = scales.type,
      .expert = scales.stride[0],
      .n = scales.stride[1],
      .outs_per_scale = q.layout().rows_per_scale(q.rows()),
      .scales_per_run = static_cast<int>(run / shared),  // narrow-ok: at most 8
      .log2_k16_per_scale =
          std::countr_zero(static_cast<unsigned>(shared / mma_k)),  // narrow-ok: at most 8
      .runs_per_scale = static_cast<int>(runs_per_scale),           // narrow-ok: k is an int
      .scales_along_k = scales.extent[2],
      .alignment = 1,
      .global = static_cast<float const*>(q.global().values.data),
      .global_expert = q.global().values.stride[0],
      .global_divides = q.global().applied == global_scale::direction::divide};
  // One scale for all of k.
  if (scales.extent[2] == 1) result.runs_per_scale = std::numeric_limits<int>::max();
  result.alignment = alignment_of(result, scales.extent[0]);
  return result;
}

void describe_codes(dtype type, std::uint32_t (&table)[4]) {
  for (std::uint32_t& four : table) four = 0;
  for (std::uint32_t code = 0; code < 16; ++code) {
    std::uint32_t const half = encode_float<f16_format>(value_of(type, code));
    table[code / 4] |= half >> 8 << code % 4 * 8;
  }
}

}  // namespace moe64::cuda::sm90_mixed
