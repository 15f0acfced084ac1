#include "cuda/gemm/sm80/gemm.hpp"

#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm80/heuristics.hpp"
#include "cuda/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

namespace moe64::cuda::sm80 {
namespace {

bool is_16_byte_aligned(void const* data, index_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride_bytes % 16 == 0;
}

int log2_of(index_t power) { return std::countr_zero(static_cast<std::uint64_t>(power)); }

/// How scales that `per` elements share lie along one dimension of a stage, of `width` elements.
struct scale_cut {
  int count = 1;  ///< scales of the stage
  int shift = 0;  ///< log2 of the elements of the stage that share one
  index_t stages_per_scale = std::numeric_limits<index_t>::max();
};

std::optional<scale_cut> cut_scales(index_t per, index_t extent, index_t width) {
  if (per >= extent) return scale_cut{.shift = log2_of(width)};
  if (per % width == 0) return scale_cut{.shift = log2_of(width), .stages_per_scale = per / width};
  if (width % per != 0) return std::nullopt;
  return scale_cut{static_cast<int>(width / per), log2_of(per), 1};  // narrow-ok: at most width
}

/// The stack as the kernels see it, n outputs and k.
struct orientation {
  bool transpose, cols_contiguous;

  explicit orientation(grouped_gemm_args const& args)
      : transpose(args.transpose), cols_contiguous(args.weights.part(0).values().stride[2] == 1) {}
  [[nodiscard]] bool k_major() const { return transpose != cols_contiguous; }
};

std::optional<mma_scale_grid> grid_of(grouped_gemm_args const& args) {
  quantized_view const& first = args.weights.part(0);
  index_t const rows = first.rows(), cols = first.cols();
  index_t const row_block = first.layout().rows_per_scale(rows);
  index_t const col_block = first.layout().cols_per_scale(cols);
  index_t const grid_rows = first.layout().grid_rows(rows);
  index_t const grid_cols = first.layout().grid_cols(cols);
  bool const t = args.transpose;
  auto const n = cut_scales(t ? col_block : row_block, t ? cols : rows, mma_code_outs);
  auto const k = cut_scales(t ? row_block : col_block, t ? rows : cols, stage_k);
  if (!n || !k || n->count * k->count > 4 * mma_code_outs) return std::nullopt;
  return mma_scale_grid{.type = first.scales().type,
                        .global_divides = first.global().applied == global_scale::direction::divide,
                        .scales_n = n->count,
                        .scales_k = k->count,
                        .log2_scales_n = log2_of(n->count),
                        .shift_n = n->shift,
                        .shift_k = k->shift,
                        .stages_per_scale = k->stages_per_scale,
                        .tiles_per_scale = n->stages_per_scale,
                        .limit_n = t ? grid_cols : grid_rows,
                        .limit_k = t ? grid_rows : grid_cols};
}

mma_weight_operand operand_of(quantized_view const& q, bool transpose, bool cols_contiguous) {
  tensor_view const& values = q.values();
  tensor_view const& scales = q.scales();
  index_t const size = bits(values.type);
  return {.values = static_cast<std::uint8_t const*>(values.data),
          .expert_bytes = values.stride[0] * size / 8,
          .line_bytes = values.stride[cols_contiguous ? 1 : 2] * size / 8,
          .scales = q.is_plain() ? nullptr : scales.data,
          .scale_expert = scales.stride[0],
          .scale_n = scales.stride[transpose ? 2 : 1],
          .scale_k = scales.stride[transpose ? 1 : 2],
          .global = static_cast<float const*>(q.global().values.data),
          .global_expert = q.global().values.stride[0],
          .expert_place = places_of(q)};
}

support takes_part(quantized_view const& q, orientation const& way) {
  tensor_view const& values = q.values();
  if (values.stride[way.cols_contiguous ? 2 : 1] != 1) {
    return support::no(
        fmt::format("weights {} are contiguous along neither rows nor columns", to_string(values)));
  }
  mma_weight_operand const w = operand_of(q, way.transpose, way.cols_contiguous);
  if (is_16_byte_aligned(w.values, w.line_bytes) && w.expert_bytes % 16 == 0) return support::yes();
  return support::no(fmt::format("weights {} do not begin their rows at multiples of 16 bytes",
                                 to_string(values)));
}

sm80_gemm_parameters parameters(grouped_gemm_args const& args) {
  sm80_gemm_parameters p = {};
  orientation const way(args);
  weight_stack const& stack = args.weights;
  p.expert_begin = args.expert_begin;
  p.x = static_cast<std::uint8_t const*>(args.x.values().data);
  p.x_row_bytes = args.x.values().stride[1] * 2;
  for (int part = 0; part < stack.parts(); ++part) {
    p.weights[part] = operand_of(stack.part(part), way.transpose, way.cols_contiguous);
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  p.has_places = has_places(stack);
  p.n_parts = args.transpose ? 1 : stack.parts();
  p.k_parts = args.transpose ? stack.parts() : 1;
  p.n_part = args.transpose ? stack.cols() : stack.part_rows();
  p.k_part = args.transpose ? stack.part_rows() : stack.cols();
  p.code = stack.type();
  if (!stack.is_plain()) p.grid = *grid_of(args);
  p.low_rank = low_rank_of(args);
  p.y = args.y;
  return p;
}

mma_weights kind_of(grouped_gemm_args const& args) {
  if (args.weights.is_plain()) return mma_weights::plain;
  mma_scale_grid const grid = *grid_of(args);
  index_t const k = args.transpose ? args.weights.part_rows() : args.weights.cols();
  int const shift = orientation(args).k_major() ? grid.shift_k : grid.shift_n;
  if (shift < 4 || k % stage_k != 0) return mma_weights::element_scaled;
  return args.weights.type() == dtype::e4m3 ? mma_weights::vec16_scaled_e4m3
                                            : mma_weights::vec16_scaled;
}

mma_tile tile_of(launcher const& on, grouped_gemm_args const& args, mma_weights weights) {
  index_t const experts = std::max<index_t>(args.weights.experts(), 1);
  gemm_extents const call = {ceil_div(args.x.rows(), experts), args.x.cols(), args.y.extent[1]};
  return choose_tile(on, gemm_tiles(weights), call, weights != mma_weights::plain);
}

}  // namespace

support takes_low_rank(grouped_gemm_args const& args) {
  low_rank_term const& low = args.low_rank;
  if (!low.u.present()) return support::yes();
  dtype const type = args.x.type();
  if (low.u.type != type) {
    return support::no(fmt::format("low_rank.u is {}, x is {}", name(low.u.type), name(type)));
  }
  bool const exact = type == dtype::bf16 && low.weights.type() == dtype::f32;
  if (low.weights.type() != type && !exact) {
    return support::no(
        fmt::format("low_rank.weights are {}, x is {}", name(low.weights.type()), name(type)));
  }
  if (args.transpose && low.weights.parts() != 1) {
    return support::no("low_rank.weights have two parts along the rank");
  }
  return support::yes();
}

low_rank_operands low_rank_of(grouped_gemm_args const& args) {
  low_rank_operands result = {};
  low_rank_term const& low = args.low_rank;
  if (!low.u.present() || low.u.extent[1] == 0) return result;
  result.u = static_cast<std::uint16_t const*>(low.u.data);
  result.u_row = low.u.stride[0];
  result.u_col = low.u.stride[1];
  result.rank = low.u.extent[1];
  for (int part = 0; part < low.weights.parts(); ++part) {
    tensor_view const& values = low.weights.part(part).values();
    result.weights[part] = values.data;
    result.expert[part] = values.stride[0];
    result.n[part] = values.stride[args.transpose ? 2 : 1];
    result.k[part] = values.stride[args.transpose ? 1 : 2];
  }
  result.f32 = low.weights.type() == dtype::f32;
  result.scaling = low.scaling;
  return result;
}

support takes_rows(char const* argument, tensor_view const& matrix) {
  if (matrix.type != dtype::bf16 && matrix.type != dtype::f16) {
    return support::no(
        fmt::format("{} is {}: tensor cores take bf16 and f16", argument, name(matrix.type)));
  }
  int const last = matrix.rank - 1;
  if (matrix.stride[last] == 1 && is_16_byte_aligned(matrix.data, matrix.stride[last - 1] * 2)) {
    return support::yes();
  }
  return support::no(fmt::format("{} {} does not begin contiguous rows at multiples of 16 bytes",
                                 argument, to_string(matrix)));
}

support takes(grouped_gemm_args const& args) {
  if (support const rows = takes_rows("x", args.x.values()); !rows) return rows;
  weight_stack const& stack = args.weights;
  if (stack.is_plain() && stack.type() != args.x.type()) {
    return support::no(
        fmt::format("plain weights are {}, x is {}", name(stack.type()), name(args.x.type())));
  }
  if (args.x.cols() == 0) return support::no("k is 0");
  if (args.transpose && stack.parts() == 2 && stack.part_rows() % 8 != 0) {
    return support::no(fmt::format(
        "the second half of x begins at column {}, not at a multiple of 8", stack.part_rows()));
  }
  orientation const way(args);
  for (int part = 0; part < stack.parts(); ++part) {
    if (support const values = takes_part(stack.part(part), way); !values) return values;
  }
  if (!stack.is_plain() && !grid_of(args)) {
    return support::no(fmt::format("scale {} does not divide a stage of {} x {}",
                                   to_string(stack.layout()), mma_code_outs, stage_k));
  }
  return takes_low_rank(args);
}

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  launcher on("grouped_gemm", args, where);
  mma_weights const weights = kind_of(args);
  mma_tile const tile = tile_of(on, args, weights);
  mma_tile_config const& config = config_of(tile);
  index_t const tiles = most_tiles(args, config.rows, config.outs);
  on.launch(
      sm80_gemm_kernel(tile, {args.x.type() == dtype::bf16, orientation(args).k_major(), weights}),
      {on.ctas_for(tiles, config.ctas_per_sm), config.threads(),
       config.shared_bytes(weights != mma_weights::plain)},
      parameters(args));
}

}  // namespace moe64::cuda::sm80
