#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/permute/gather_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/stream.hpp"
#include "cpu/operations.hpp"
#include "cpu/permute/gather.hpp"
#include "cpu/quantize/rows_simd.hpp"
#include "cpu/runtime/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {
namespace {

void copy_row_past_caches(tensor_view const& from, index_t i, tensor_view const& to, index_t j) {
  byte_row const target = bytes_of_row(to, j);
  copy_streamed(target.data, bytes_of_row(from, i).data, target.bytes);
}

/// out[i] = weight * in[i] for whole pairs of vectors; how many numbers that were.
template <class Number>
index_t multiply_numbers(void const* in, index_t count, float weight, void* out) {
  auto const weights = hn::Set(f32_tag{}, weight);
  index_t i = 0;
  for (; i + 2 * vector_length <= count; i += 2 * vector_length) {
    lane_pair const x = load_pair<Number>(in, i);
    store_pair<Number>({hn::Mul(x.first, weights), hn::Mul(x.second, weights)}, out, i);
  }
  return i;
}

/// Rows whose elements lie side by side.
template <class Number>
void multiply_row(byte_row const& from, float weight, byte_row const& to, bool streamed) {
  constexpr index_t size = std::is_same_v<Number, f32_number> ? 4 : 2;
  alignas(64) std::uint8_t staged[static_cast<std::size_t>(run_length * size)];
  for (index_t at = 0; at < to.bytes; at += run_length * size) {
    index_t const count = std::min(run_length, (to.bytes - at) / size);
    std::uint8_t* const target = streamed ? staged : to.data + at;
    index_t i = multiply_numbers<Number>(from.data + at, count, weight, target);
    for (; i < count; ++i) Number::set(target, i, Number::get(from.data + at, i) * weight);
    if (streamed) copy_streamed(to.data + at, staged, count * size);
  }
}

void copy_weighted(tensor_view const& from, index_t i, float weight, tensor_view const& to,
                   index_t j, bool streamed) {
  if (has_byte_rows(from) && has_byte_rows(to)) {
    return visit_float(from.type, [&](auto number) HWY_ATTR {
      multiply_row<decltype(number)>(bytes_of_row(from, i), weight, bytes_of_row(to, j), streamed);
    });
  }
  float run[run_length];
  for (index_t col = 0; col < to.extent[1]; col += run_length) {
    index_t const count = std::min(run_length, to.extent[1] - col);
    load_run(row_of(from, i), col, count, run);
    multiply_run(run, count, weight);
    store_run(row_of(to, j), col, count, run, streamed);
  }
}

/// What copy_row or copy_weighted would write, as codes.
void quantize_gathered(gather_args const& args, index_t token, float weight, index_t row) {
  row_view const x = row_of(args.x, token);
  quantize_row_simd({args.rows, args.row_scales, args.quantized}, row, args.x.type,
                    [&](row_view const& out, index_t col, index_t count) HWY_ATTR {
                      float run[run_length];
                      load_run(x, col, count, run);
                      if (args.weighted) multiply_run(run, count, weight);
                      store_run(out, col, count, run);
                    });
}

}  // namespace

void gather_simd(gather_args const& args, stream where);
void gather_simd(gather_args const& args, stream where) {
  routing_plan const& plan = args.plan;
  auto const slot_to_row = as<std::int64_t, 1>(plan.slot_to_row);
  auto const slot_weight = as<float, 1>(plan.slot_weight);
  index_t const rows = count_rows("gather", plan.live_rows(), plan.slots());
  index_t const hidden = args.x.extent[1];
  bool const streamed = is_streamed(args.x.type, rows * hidden);
  bool const byte_rows = has_byte_rows(args.x) && has_byte_rows(args.rows);
  // By tokens, not by rows: a token is read once for all of its rows.
  index_t const token_bytes = hidden * bits(args.x.type) / 8 * (1 + plan.top_k);
  parallel_ranges(where, plan.tokens, token_bytes, [&](index_t begin, index_t end) {
    for (index_t token = begin; token < end; ++token) {
      for (index_t k = 0; k < plan.top_k; ++k) {
        index_t const slot = token * plan.top_k + k;
        index_t const row = slot_to_row(slot);
        if (row < 0) continue;
        if (args.quantized.kind != scale_kind::none) {
          quantize_gathered(args, token, slot_weight(slot), row);
        } else if (args.weighted) {
          copy_weighted(args.x, token, slot_weight(slot), args.rows, row, streamed);
        } else if (streamed && byte_rows) {
          copy_row_past_caches(args.x, token, args.rows, row);
        } else {
          copy_row(args.x, token, args.rows, row);
        }
        if (args.scales.present()) copy_row(args.scales, token, args.row_scales, row);
      }
    }
    end_streaming(streamed);
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
