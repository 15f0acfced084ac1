#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/activate/activate_simd.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/activate/activation_simd.hpp"
#include "cpu/gemm/portable/stream.hpp"
#include "cpu/operations.hpp"
#include "cpu/quantize/rows_simd.hpp"
#include "cpu/runtime/parallel.hpp"
#include "cpu/simd/math.hpp"

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {
namespace {

/// Ask for what lies this far behind element i. Memory and arithmetic then overlap: measured to
/// take a third off the time of silu_glu.
constexpr index_t prefetch_bytes = 4096;
template <class Number>
HWY_INLINE void prefetch(void const* data, index_t i) {
  constexpr index_t size = std::is_same_v<Number, f32_number> ? 4 : 2;
  hwy::Prefetch(static_cast<std::uint8_t const*>(data) + i * size + prefetch_bytes);
}

/// Vectors are taken in pairs; one may be left over, and a part of another.
template <class Pair, class Single>
HWY_INLINE void for_each_vector(index_t count, Pair const& pair, Single const& single) {
  index_t i = 0;
  for (; i + 2 * vector_length <= count; i += 2 * vector_length) pair(i);
  for (; i < count; i += vector_length) single(i);
}

/// out[i] = activation(gate[i], up[i]) for whole vectors of one type.
template <activation Kind, class Number, bool Streamed = false>
HWY_NOINLINE void activate_vectors(activation_spec const& spec, index_t count, void const* gate,
                                   void const* up, void* out) {
  using lanes = lanes_of<Number>;
  activation_spec const local = spec;
  auto const value = [&](f32_vector g, f32_vector u) HWY_ATTR {
    factors const f = factors_of<Kind>(local, g, u);
    return hn::Mul(f.first.value, f.second.value);
  };
  auto const pair = [&](index_t i) HWY_ATTR {
    prefetch<Number>(gate, i);
    if (is_gated(Kind)) prefetch<Number>(up, i);
    lane_pair const g = load_pair<Number>(gate, i);
    lane_pair const u = is_gated(Kind) ? load_pair<Number>(up, i) : g;
    put_pair<Number, Streamed>({value(g.first, u.first), value(g.second, u.second)}, out, i);
  };
  for_each_vector(count, pair, [&](index_t i) HWY_ATTR {
    f32_vector const g = lanes::load(gate, i);
    lanes::store(value(g, is_gated(Kind) ? lanes::load(up, i) : g), out, i);
  });
}

/// d_gate[i], d_up[i] from d_out[i] * weight, for whole vectors of one type. d_up only if gated.
template <activation Kind, class Number, bool Streamed = false>
HWY_NOINLINE void activate_backward_vectors(activation_spec const& spec, index_t count,
                                            float weight, void const* gate, void const* up,
                                            void const* d_out, void* d_gate, void* d_up) {
  using lanes = lanes_of<Number>;
  activation_spec const local = spec;
  struct gradients {
    f32_vector gate, up;
  };
  auto const slopes = [&](f32_vector g, f32_vector u, f32_vector d) HWY_ATTR {
    factors const f = factors_of<Kind>(local, g, u);
    d = hn::Mul(constant(weight), d);
    return gradients{hn::Mul(hn::Mul(d, f.second.value), f.first.slope),
                     hn::Mul(hn::Mul(d, f.first.value), f.second.slope)};
  };
  auto const pair = [&](index_t i) HWY_ATTR {
    prefetch<Number>(gate, i);
    if (is_gated(Kind)) prefetch<Number>(up, i);
    prefetch<Number>(d_out, i);
    lane_pair const g = load_pair<Number>(gate, i);
    lane_pair const u = is_gated(Kind) ? load_pair<Number>(up, i) : g;
    lane_pair const d = load_pair<Number>(d_out, i);
    gradients const first = slopes(g.first, u.first, d.first);
    gradients const second = slopes(g.second, u.second, d.second);
    put_pair<Number, Streamed>({first.gate, second.gate}, d_gate, i);
    if (is_gated(Kind)) put_pair<Number, Streamed>({first.up, second.up}, d_up, i);
  };
  for_each_vector(count, pair, [&](index_t i) HWY_ATTR {
    f32_vector const g = lanes::load(gate, i);
    gradients const d = slopes(g, is_gated(Kind) ? lanes::load(up, i) : g, lanes::load(d_out, i));
    lanes::store(d.gate, d_gate, i);
    if (is_gated(Kind)) lanes::store(d.up, d_up, i);
  });
}

/// load_run, and zeros up to a whole vector.
HWY_INLINE void load_padded(row_view const& row, index_t begin, index_t count, float* out) {
  load_run(row, begin, count, out);
  std::fill(out + count, out + ceil_div(count, vector_length) * vector_length, 0.0F);
}

/// Element begin of a row whose elements lie side by side.
HWY_INLINE std::uint8_t* element(row_view const& row, index_t begin) {
  return static_cast<std::uint8_t*>(row.data) + (row.offset + begin) * (bits(row.type) / 8);
}

/// One row of activate, and how much of a run can be computed from and to memory of one type, the
/// rest goes through f32.
template <activation Kind>
struct activate_row {
  activation_spec const& spec;
  row_view gate, up, out;
  bool streamed;

  void run(index_t begin, index_t count) const {
    bool const direct = gate.stride == 1 && (!is_gated(Kind) || up.stride == 1) &&
                        out.stride == 1 && out.type == gate.type;
    index_t const whole = direct ? count / vector_length * vector_length : 0;
    if (whole > 0) run_direct(begin, whole);
    if (whole < count) run_by_f32(begin + whole, count - whole);
  }

 private:
  void run_direct(index_t begin, index_t count) const {
    visit_float(out.type, [&](auto number) HWY_ATTR {
      using number_type = decltype(number);
      std::uint8_t const* const gates = element(gate, begin);
      std::uint8_t const* const ups = is_gated(Kind) ? element(up, begin) : nullptr;
      std::uint8_t* const target = element(out, begin);
      if (!streamed) {
        activate_vectors<Kind, number_type>(spec, count, gates, ups, target);
      } else if (can_stream_pairs<number_type>(target)) {
        activate_vectors<Kind, number_type, true>(spec, count, gates, ups, target);
      } else {
        alignas(64) std::uint8_t staged[run_length * sizeof(float)];
        activate_vectors<Kind, number_type>(spec, count, gates, ups, staged);
        copy_streamed(target, staged, count * (bits(out.type) / 8));
      }
    });
  }
  void run_by_f32(index_t begin, index_t count) const {
    float gates[run_length];
    float ups[run_length];
    load_padded(gate, begin, count, gates);
    if (is_gated(Kind)) load_padded(up, begin, count, ups);
    activate_vectors<Kind, f32_number>(spec, count, gates, ups, gates);
    store_run(out, begin, count, gates, streamed);
  }
};

/// One row of activate_backward, likewise.
template <activation Kind>
struct activate_backward_row {
  activation_spec const& spec;
  float weight;
  row_view gate, up, d_out, d_gate, d_up;
  bool streamed;

  void run(index_t begin, index_t count) const {
    bool const direct = can_take(gate) && can_take(d_out) && can_take(d_gate) &&
                        (!is_gated(Kind) || (can_take(up) && can_take(d_up)));
    index_t const whole = direct ? count / vector_length * vector_length : 0;
    if (whole > 0) run_direct(begin, whole);
    if (whole < count) run_by_f32(begin + whole, count - whole);
  }

 private:
  [[nodiscard]] bool can_take(row_view const& row) const {
    return row.stride == 1 && row.type == gate.type;
  }
  void run_direct(index_t begin, index_t count) const {
    visit_float(gate.type, [&](auto number) HWY_ATTR {
      using number_type = decltype(number);
      std::uint8_t* const gate_target = element(d_gate, begin);
      std::uint8_t* const up_target = element(d_up, begin);
      auto const run_to = [&](auto is_streamed, void* gates, void* ups) {
        activate_backward_vectors<Kind, number_type, is_streamed()>(
            spec, count, weight, element(gate, begin), element(up, begin), element(d_out, begin),
            gates, ups);
      };
      if (!streamed) {
        run_to(std::false_type{}, gate_target, up_target);
      } else if (can_stream_pairs<number_type>(gate_target) &&
                 can_stream_pairs<number_type>(up_target)) {
        run_to(std::true_type{}, gate_target, up_target);
      } else {
        alignas(64) std::uint8_t staged[2][run_length * sizeof(float)];
        run_to(std::false_type{}, staged[0], staged[1]);
        index_t const bytes = count * (bits(gate.type) / 8);
        copy_streamed(gate_target, staged[0], bytes);
        if (is_gated(Kind)) copy_streamed(up_target, staged[1], bytes);
      }
    });
  }
  void run_by_f32(index_t begin, index_t count) const {
    float gates[run_length];
    float ups[run_length];
    float d_outs[run_length];
    load_padded(gate, begin, count, gates);
    if (is_gated(Kind)) load_padded(up, begin, count, ups);
    load_padded(d_out, begin, count, d_outs);
    activate_backward_vectors<Kind, f32_number>(spec, count, weight, gates, ups, d_outs, gates,
                                                ups);
    store_run(d_gate, begin, count, gates, streamed);
    if (is_gated(Kind)) store_run(d_up, begin, count, ups, streamed);
  }
};

/// row_of(tensor, row), or nothing of an absent tensor.
row_view row_or_none(tensor_view const& tensor, index_t row) {
  return tensor.present() ? row_of(tensor, row) : row_view{nullptr, 0, 1, dtype::f32};
}

/// make_row(row).run(begin, count) over [rows, inter] in parallel.
template <class MakeRow>
void for_each_run(stream where, index_t rows, index_t inter, index_t bytes, bool streamed,
                  MakeRow const& make_row) {
  parallel_ranges(where, rows, inter * bytes, [&](index_t first, index_t last) HWY_ATTR {
    for (index_t row = first; row < last; ++row) {
      auto const at = make_row(row);
      for (index_t col = 0; col < inter; col += run_length) {
        at.run(col, std::min(run_length, inter - col));
      }
    }
    end_streaming(streamed);
  });
}

template <activation Kind>
void activate_run(activation_spec const& spec, row_view gate, row_view up, row_view out,
                  index_t begin, index_t count) {
  activate_row<Kind>{spec, gate, up, out, false}.run(begin, count);
}

using run_of_kind = decltype(&activate_run<activation::silu>);

/// activate to gate's type and quantize, a block of a row at a time; one code for every kind.
void activate_and_quantize(activate_args const& args, run_of_kind run, index_t rows, stream where) {
  row_codes const to = {args.out, args.scales, args.quantized};
  index_t const row_bytes = 3 * args.gate.extent[1] * bits(args.gate.type) / 8;
  parallel_ranges(where, rows, row_bytes, [&](index_t first, index_t last) HWY_ATTR {
    for (index_t row = first; row < last; ++row) {
      row_view const gate = row_of(args.gate, row), up = row_or_none(args.up, row);
      quantize_row_simd(to, row, args.gate.type,
                        [&](row_view const& out, index_t col, index_t count)
                            HWY_ATTR { run(args.activation, gate, up, out, col, count); });
    }
  });
}

}  // namespace

void activate_simd(activate_args const& args, stream where);
void activate_simd(activate_args const& args, stream where) {
  index_t const rows = count_rows("activate", args.live_rows, args.gate.extent[0]);
  index_t const inter = args.gate.extent[1];
  bool const streamed = is_streamed(args.out.type, rows * inter);
  index_t const bytes = 3 * bits(args.gate.type) / 8;
  visit_kind(args.activation.kind, [&](auto kind) {
    if (args.quantized.kind != scale_kind::none) {
      return activate_and_quantize(args, activate_run<kind()>, rows, where);
    }
    for_each_run(where, rows, inter, bytes, streamed, [&](index_t row) {
      return activate_row<kind()>{args.activation, row_of(args.gate, row),
                                  row_or_none(args.up, row), row_of(args.out, row), streamed};
    });
  });
}

void activate_backward_simd(activate_backward_args const& args, stream where);
void activate_backward_simd(activate_backward_args const& args, stream where) {
  index_t const rows = count_rows("activate_backward", args.live_rows, args.gate.extent[0]);
  index_t const inter = args.gate.extent[1];
  routing_plan const& plan = args.weighted_by;
  bool const streamed = is_streamed(args.d_gate.type, rows * inter);
  index_t const bytes = 5 * bits(args.gate.type) / 8;
  auto const weight_of = [&](index_t row) {
    if (!plan.present()) return 1.0F;
    return as<float, 1>(plan.slot_weight)(as<std::int64_t, 1>(plan.row_to_slot)(row));
  };
  visit_kind(args.activation.kind, [&](auto kind) {
    for_each_run(where, rows, inter, bytes, streamed, [&](index_t row) {
      return activate_backward_row<kind()>{args.activation,
                                           weight_of(row),
                                           row_of(args.gate, row),
                                           row_or_none(args.up, row),
                                           row_of(args.d_out, row),
                                           row_of(args.d_gate, row),
                                           row_or_none(args.d_up, row),
                                           streamed};
    });
  });
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
