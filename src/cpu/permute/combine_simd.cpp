#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/permute/combine_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/stream.hpp"
#include "cpu/gemm/reference/dot.hpp"
#include "cpu/operations.hpp"
#include "cpu/permute/combine.hpp"
#include "cpu/runtime/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {
namespace {

/// sum[i] += weight * values[i] (or without the weight), product and sum rounded separately.
void add_run(float* sum, float const* values, index_t count, bool weighted, float weight) {
  f32_tag const tag;
  auto const weights = hn::Set(tag, weight);
  index_t i = 0;
  for (; i + vector_length <= count; i += vector_length) {
    auto const addend = hn::LoadU(tag, values + i);
    auto const product = weighted ? hn::Mul(weights, addend) : addend;
    hn::StoreU(hn::Add(hn::LoadU(tag, sum + i), product), tag, sum + i);
  }
  for (; i < count; ++i) sum[i] += weighted ? weight * values[i] : values[i];
}

/// Rows of one tensor that are added at once, in registers; further ones are added in turns.
struct addends {
  static constexpr index_t most = 8;
  index_t count = 0;
  index_t offset[most];  ///< of a row, in elements
  index_t next[most];    ///< of the row that will follow it
  float weight[most];
};

/// sum[i] += the elements i of all rows, in their order, for whole vectors. Asks for the rows that
/// follow: they lie anywhere, and no processor guesses where.
template <class Number, bool Weighted>
void add_rows(float* sum, void const* data, index_t element_bytes, addends const& rows,
              index_t count) {
  f32_tag const tag;
  index_t const row_count = rows.count;
  auto const* const bytes = static_cast<std::uint8_t const*>(data);
  for (index_t i = 0; i < count; i += vector_length) {
    f32_vector total = hn::LoadU(tag, sum + i);
    for (index_t r = 0; r < row_count; ++r) {
      auto const addend = lanes_of<Number>::load(data, rows.offset[r] + i);
      total = hn::Add(total, Weighted ? hn::Mul(hn::Set(tag, rows.weight[r]), addend) : addend);
      hwy::Prefetch(bytes + (rows.next[r] + i) * element_bytes);
    }
    hn::StoreU(total, tag, sum + i);
  }
}

/// One call of combine.
struct combine_view {
  combine_args const& args;
  view<std::int64_t, 1> slot_to_row;
  view<float, 1> slot_weight;

  explicit combine_view(combine_args const& call)
      : args(call),
        slot_to_row(as<std::int64_t, 1>(call.plan.slot_to_row)),
        slot_weight(as<float, 1>(call.plan.slot_weight)) {}

  /// sum[i] += column col + i of the rows of a token, for i in [0, count).
  void add_by_f32(index_t token, index_t col, index_t count, float* sum) const {
    float run[run_length];
    for (index_t k = 0; k < args.plan.top_k; ++k) {
      index_t const slot = token * args.plan.top_k + k;
      index_t const row = slot_to_row(slot);
      if (row < 0) continue;
      load_scaled_run(args.rows, 0, row, col, count, run);
      add_run(sum, run, count, args.weighted, slot_weight(slot));
    }
  }

  /// The same for whole vectors of rows that are not quantised and whose elements lie side by side.
  /// The rows of token `next` will be wanted soon.
  template <class Number>
  void add_direct(index_t token, index_t next, index_t col, index_t count, float* sum) const {
    tensor_view const& values = args.rows.values();
    index_t const top_k = args.plan.top_k;
    for (index_t k = 0; k < top_k;) {
      addends rows;
      for (; k < top_k && rows.count < addends::most; ++k) {
        index_t const row = slot_to_row(token * top_k + k);
        if (row < 0) continue;
        index_t const next_row = std::max<index_t>(0, slot_to_row(next * top_k + k));
        rows.offset[rows.count] = row_of(values, 0, row).offset + col;
        rows.next[rows.count] = row_of(values, 0, next_row).offset + col;
        rows.weight[rows.count] = slot_weight(token * top_k + k);
        ++rows.count;
      }
      index_t const bytes = bits(values.type) / 8;
      args.weighted ? add_rows<Number, true>(sum, values.data, bytes, rows, count)
                    : add_rows<Number, false>(sum, values.data, bytes, rows, count);
    }
  }
};

/// Dot product in the order of dot.hpp, each product fused into its sum.
float fused_dot(row_view const& left, row_view const& right, index_t length) {
  static_assert(run_length % lane_count == 0 && lane_count % vector_length == 0);
  constexpr index_t parts = lane_count / vector_length;
  f32_tag const tag;
  f32_vector sums[parts];
  for (index_t part = 0; part < parts; ++part) sums[part] = hn::Zero(tag);
  float a[run_length];
  float b[run_length];
  for (index_t at = 0; at < length; at += run_length) {
    index_t const count = std::min(run_length, length - at);
    load_run(left, at, count, a);
    load_run(right, at, count, b);
    index_t const whole = ceil_div(count, lane_count) * lane_count;
    std::fill(a + count, a + whole, 0.0F);
    std::fill(b + count, b + whole, 0.0F);
    for (index_t i = 0; i < whole; i += lane_count) {
      for (index_t part = 0; part < parts; ++part) {
        index_t const lane = i + part * vector_length;
        sums[part] =
            fused_multiply_add(hn::LoadU(tag, a + lane), hn::LoadU(tag, b + lane), sums[part]);
      }
    }
  }
  f32_lanes lanes;
  for (index_t part = 0; part < parts; ++part) {
    hn::StoreU(sums[part], tag, reinterpret_cast<float*>(&lanes) + part * vector_length);
  }
  return fold(lanes);
}

}  // namespace

void combine_simd(combine_args const& args, stream where);
void combine_simd(combine_args const& args, stream where) {
  combine_view const call(args);
  index_t const hidden = args.y.extent[1];
  index_t const token_bytes = hidden * (args.plan.top_k + 1) * bits(args.y.type) / 8;
  bool const streamed = is_streamed(args.y.type, args.plan.tokens * hidden);
  bool const direct = args.rows.is_plain() && args.rows.values().stride[2] == 1;
  parallel_ranges(where, args.plan.tokens, token_bytes, [&](index_t begin, index_t end) {
    float sum[run_length];
    for (index_t token = begin; token < end; ++token) {
      index_t const next = std::min(token + 1, end - 1);
      for (index_t col = 0; col < hidden; col += run_length) {
        index_t const count = std::min(run_length, hidden - col);
        index_t const whole = direct ? count / vector_length * vector_length : 0;
        std::fill_n(sum, count, 0.0F);
        if (whole > 0) {
          visit_float(args.rows.type(), [&](auto number) {
            call.add_direct<decltype(number)>(token, next, col, whole, sum);
          });
        }
        if (whole < count) call.add_by_f32(token, col + whole, count - whole, sum + whole);
        store_run(row_of(args.y, token), col, count, sum, streamed);
      }
    }
    end_streaming(streamed);
  });
}

void slot_weight_gradient_simd(slot_weight_gradient_args const& args, stream where);
void slot_weight_gradient_simd(slot_weight_gradient_args const& args, stream where) {
  for_each_slot_gradient(args, where,
                         [](row_view const& left, row_view const& right, index_t length) {
                           return fused_dot(left, right, length);
                         });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
