#pragma once

#include "cases/arena.hpp"
#include "cases/numbers.hpp"
#include "moe64/explain.hpp"
#include "moe64/ops.hpp"

#include <cmath>
#include <string>

namespace moe64::test {

/// The GEMMs of sm_90a; bf16 is that of plain bf16 or f16 weights.
enum class product { w8a8, w8a16, w4a16, bf16 };
inline constexpr product every_product[] = {product::w8a8, product::w8a16, product::w4a16,
                                            product::bf16};

[[nodiscard]] inline std::string name(product kind) {
  constexpr char const* names[] = {"w8a8", "w8a16", "w4a16", "bf16"};
  return names[static_cast<int>(kind)];
}
[[nodiscard]] inline char const* hopper_implementation(product kind) {
  constexpr char const* names[] = {"sm90_w8a8", "sm90_w8a16", "sm90_w4a16", "sm90_bf16"};
  return names[static_cast<int>(kind)];
}
[[nodiscard]] inline dtype type_of_weights(product kind) {
  return kind == product::bf16 ? dtype::bf16 : kind == product::w4a16 ? dtype::fp4 : dtype::e4m3;
}
/// MXFP4, or scales of f32.
[[nodiscard]] inline dtype type_of_scales(product kind) {
  return kind == product::w4a16 ? dtype::e8m0 : dtype::f32;
}
[[nodiscard]] inline granularity layout_of_scales(product kind) {
  return kind == product::w4a16 ? granularity::group(32) : granularity::block(128, 128);
}
[[nodiscard]] inline dtype type_of_x(product kind) {
  return kind == product::w8a8 ? dtype::e4m3 : dtype::bf16;
}

inline constexpr granularity x_blocks = granularity::group(128);

/// The experts of one projection: gate and up, each [inter, hidden], or down, [hidden, inter].
struct matrices {
  index_t experts;
  int parts;
  index_t part_rows, cols;

  [[nodiscard]] index_t rows() const { return parts * part_rows; }
  [[nodiscard]] static matrices gate_up(index_t experts, index_t hidden, index_t inter) {
    return {experts, 2, inter, hidden};
  }
  [[nodiscard]] static matrices down(index_t experts, index_t hidden, index_t inter) {
    return {experts, 1, hidden, inter};
  }
};

/// A stack on fused arrays: values [experts, rows, cols]; scales [experts, parts * blocks, blocks],
/// absent where weights are plain.
[[nodiscard]] inline weight_stack stack_on(product kind, matrices const& m,
                                           tensor_view const& values, tensor_view const& scales) {
  auto const with = [&](tensor_view const& v, tensor_view const& s) {
    return s.present() ? quantized_view::scaled(v, s, layout_of_scales(kind))
                       : quantized_view::plain(v);
  };
  if (m.parts == 1) return weight_stack::single(with(values, scales));
  constexpr auto halves = gate_up_layout::concatenated;
  per_part const v = split_gate_up(values, halves);
  per_part const s = scales.present() ? split_gate_up(scales, halves) : per_part{};
  return weight_stack::gate_up(with(v[0], s[0]), with(v[1], s[1]));
}

/// Operands of products in an arena, filled. Exact: -1, 0 and 1 times 1 or 2, of which f32 holds
/// every sum; random: normal numbers, so that y has deviation 1.
class product_source {
 public:
  product_source(cases::arena& memory, product kind, cases::data_mode data, cpu_executor* executor)
      : memory_(memory),
        kind_(kind),
        exact_(data == cases::data_mode::exact),
        executor_(executor) {}

  [[nodiscard]] weight_stack weights(matrices const& m) const { return weights(m, "weights"); }
  [[nodiscard]] weight_stack weights(matrices const& m, std::string const& name,
                                     cases::tensor_id id = cases::tensor_id::gate_up) const {
    dtype const type = type_of_weights(kind_);
    double const size = 1.0 / std::sqrt(static_cast<double>(m.cols));
    // Codes use most of what they can say.
    double const spread = type == dtype::bf16 ? size : type == dtype::fp4 ? 2.0 : 100.0;
    tensor_view const values = filled(name, id, type, {m.experts, m.rows(), m.cols}, spread);
    if (type == dtype::bf16) return stack_on(kind_, m, values, {});
    granularity const layout = layout_of_scales(kind_);
    return stack_on(
        kind_, m, values,
        scales(name + " scales", id + 1, type_of_scales(kind_),
               {m.experts, m.parts * layout.grid_rows(m.part_rows), layout.grid_cols(m.cols)},
               size / spread));
  }

  /// [rows, cols]
  [[nodiscard]] quantized_view x(index_t rows, index_t cols) const {
    dtype const type = type_of_x(kind_);
    tensor_view const values =
        filled("x", cases::tensor_id::x, type, {rows, cols}, type == dtype::bf16 ? 1.0 : 100.0);
    if (type == dtype::bf16) return quantized_view::plain(values);
    return quantized_view::scaled(values,
                                  scales("x scales", cases::tensor_id::row_scales, dtype::f32,
                                         {rows, x_blocks.grid_cols(cols)}, 0.01),
                                  x_blocks);
  }

 private:
  [[nodiscard]] tensor_view filled(std::string const& name, cases::tensor_id id, dtype type,
                                   std::initializer_list<index_t> extents, double size) const {
    using cases::number_source;
    tensor_view const tensor = memory_.tensor(name, cases::purpose::input, type, extents);
    (exact_ ? number_source::one_of(type, {-1.0, 0.0, 0.0, 1.0})
            : number_source::normal(type, size))
        .fill(tensor, 7, id, executor_);
    return tensor;
  }
  [[nodiscard]] tensor_view scales(std::string const& name, cases::tensor_id id, dtype type,
                                   std::initializer_list<index_t> extents, double size) const {
    using cases::number_source;
    tensor_view const tensor = memory_.tensor(name, cases::purpose::input, type, extents);
    (exact_ ? number_source::one_of(type, {1.0, 2.0})
            : number_source::spread(type, 0.5 * size, 2.0 * size))
        .fill(tensor, 7, id, executor_);
    return tensor;
  }

  cases::arena& memory_;
  product kind_;
  bool exact_;
  cpu_executor* executor_;
};

/// [counts.size() + 1] int64 in an arena: the ranges of experts that have so many rows each.
template <class Counts>
[[nodiscard]] tensor_view ranges_of(cases::arena& memory, Counts const& counts) {
  tensor_view const begin = memory.tensor("expert_begin", cases::purpose::input, dtype::int64,
                                          {static_cast<index_t>(counts.size()) + 1});
  auto* next = static_cast<index_t*>(begin.data);
  *next = 0;
  for (index_t const count : counts) {
    next[1] = next[0] + count;
    ++next;
  }
  return begin;
}

/// Rows [begin, end) of a matrix with its scales.
[[nodiscard]] inline quantized_view rows_of(quantized_view const& x, index_t begin, index_t end) {
  tensor_view const values = x.values().slice(1, begin, end);
  if (x.is_plain()) return quantized_view::plain(values);
  return quantized_view::scaled(values, x.scales().slice(1, begin, end), x.layout());
}

/// Why the first CUDA device has no kernels of Hopper for such products; empty when it has.
[[nodiscard]] inline std::string lacks_hopper(product kind, stream where) {
  alignas(64) static unsigned char const anywhere[64] = {};
  auto const view = [&](dtype type, std::initializer_list<index_t> extents) {
    return tensor_view::contiguous(anywhere, type, extents, where.device);
  };
  matrices const m = matrices::down(1, 128, 128);
  grouped_gemm_args args;
  bool const plain = kind == product::bf16;
  granularity const layout = layout_of_scales(kind);
  args.weights = stack_on(
      kind, m, view(type_of_weights(kind), {1, 128, 128}),
      plain ? tensor_view{}
            : view(type_of_scales(kind), {1, layout.grid_rows(128), layout.grid_cols(128)}));
  args.x = kind == product::w8a8 ? quantized_view::scaled(view(dtype::e4m3, {1, 128}),
                                                          view(dtype::f32, {1, 1}), x_blocks)
                                 : quantized_view::plain(view(dtype::bf16, {1, 128}));
  args.expert_begin = view(dtype::int64, {2});
  args.y = view(dtype::bf16, {1, 128});
  for (implementation_report const& report : explain(args, where)) {
    if (report.name == hopper_implementation(kind)) return report.answer.reason();
  }
  return std::string("there is no ") + hopper_implementation(kind);
}

}  // namespace moe64::test
