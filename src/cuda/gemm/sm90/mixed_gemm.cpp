#include "cuda/gemm/sm90/mixed_gemm.hpp"

#include "cuda/gemm/four_bit_operands.hpp"
#include "cuda/gemm/sm80/gemm.hpp"
#include "cuda/gemm/sm90/heuristics.hpp"
#include "cuda/gemm/sm90/operands.hpp"
#include "cuda/kernels/gemm/sm90/mixed/gemm.hpp"
#include "cuda/places.hpp"
#include "cuda/runtime/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace moe64::cuda::sm90_mixed {
namespace {

using sm90::encoder;
using sm90::tile_rule;

support no_types(grouped_gemm_args const& args, char const* wanted) {
  return support::no(fmt::format("x is {} and weights are {}, not bf16 or f16 and {}",
                                 name(args.x.type()), name(args.weights.type()), wanted));
}
bool has_16_bit_x(grouped_gemm_args const& args) {
  return args.x.type() == dtype::bf16 || args.x.type() == dtype::f16;
}

mixed_weights weights_of(grouped_gemm_args const& args) {
  if (is_w4(args.weights.type())) return mixed_weights::w4;
  return args.transpose ? mixed_weights::w8_transposed : mixed_weights::w8;
}

std::span<tile_rule const> tiles_for(mixed_weights weights) {
  switch (weights) {
    case mixed_weights::w8:
      return sm90::w8a16_tiles();
    case mixed_weights::w8_transposed:
      return sm90::w8a16_transposed_tiles();
    default:
      return sm90::w4a16_tiles();
  }
}

/// Rows [capacity, parts * cols] in 16 bits as (k, part, row): TMA loads zeros past the end of a
/// part.
void map_rows(tensor_view const& rows, int parts, encoder const& encode, tensor_map (&maps)[5]) {
  int const last = rows.rank - 1;
  index_t const part = rows.extent[last] / parts, row_bytes = rows.stride[last - 1] * 2;
  int box_rows = 8;
  for (tensor_map& map : maps) {
    map = encode({.data = rows.data,
                  .element_bytes = 2,
                  .rank = 3,
                  .extent = {part, parts, rows.extent[last - 1]},
                  .stride_bytes = {parts == 1 ? row_bytes : part * 2, row_bytes},
                  .box = {64, 1, box_rows}});
    box_rows *= 2;
  }
}

void map_y(tensor_view const& y, encoder const& encode, sm90_mixed_parameters& p) {
  p.y = y;
  p.y_by_tma = sm90::has_vec8(y, p.n_part);
  if (!p.y_by_tma) return;
  std::transform(std::begin(mixed_store_box_rows), std::end(mixed_store_box_rows), p.y_map,
                 [&](int rows) { return sm90::map_of_y(y, p.n_parts, p.n_part, rows, encode); });
}

tensor_map map_of_codes(tensor_view const& w, bool transpose, mixed_config const& shape,
                        encoder const& encode) {
  int const outs = static_cast<int>(shape.tile.outs);  // narrow-ok: 128
  index_t const width = bits(w.type);
  auto const bytes = [width](index_t codes) { return codes * width / 8; };
  int const line = static_cast<int>(bytes(shape.stage_k));  // narrow-ok: at most 128
  tensor_box codes = {.data = w.data,
                      .element_bytes = 1,
                      .rank = 3,
                      .extent = {bytes(w.extent[2]), w.extent[1], w.extent[0]},
                      .stride_bytes = {bytes(w.stride[1]), bytes(w.stride[0])},
                      .box = {line, outs, 1},
                      .swizzle_bytes = line};
  if (transpose) {
    codes.box[0] = codes.swizzle_bytes = outs;
    codes.box[1] = shape.stage_k;
  }
  return encode(codes);
}

/// By n and k, which with transposed weights are their columns and rows.
block_scales scales_by_use(quantized_view const& q, bool transpose) {
  block_scales scales = sm90::scales_of(q);
  if (transpose) {
    std::swap(scales.n, scales.k);
    std::swap(scales.n_blocks, scales.k_blocks);
  }
  return scales;
}

sm90_mixed_parameters parameters(grouped_gemm_args const& args, mixed_config const& shape,
                                 stream where) {
  sm90_mixed_parameters p = {};
  encoder const encode(where);
  bool const t = args.transpose;
  weight_stack const& stack = args.weights;
  p.n_parts = t ? 1 : stack.parts();
  p.k_parts = t ? stack.parts() : 1;
  p.n_part = t ? stack.cols() : stack.part_rows();
  p.k_part = t ? stack.part_rows() : stack.cols();
  p.expert_begin = args.expert_begin;
  map_rows(args.x.values(), p.k_parts, encode, p.x);
  for (int part = 0; part < stack.parts(); ++part) {
    quantized_view const& q = stack.part(part);
    p.weights[part] = map_of_codes(q.values(), t, shape, encode);
    p.expert_place[part] = places_of(q);
    if (is_w4(q.type())) {
      p.groups[part] = group_scales_of(q);
    } else {
      p.scales[part] = scales_by_use(q, t);
      p.row_scales = sm90::one_per_row(q);
    }
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  if (is_w4(stack.type())) describe_codes(stack.type(), p.f16_upper_bytes);
  p.low_rank = sm80::low_rank_of(args);
  if (p.low_rank.rank > 0) map_rows(args.low_rank.u, 1, encode, p.u);
  map_y(args.y, encode, p);
  return p;
}

support takes_depth(grouped_gemm_args const& args) {
  if (!args.transpose && args.x.cols() % 16 != 0) {
    return support::no(fmt::format("{} elements along k are no multiple of 16", args.x.cols()));
  }
  if (args.transpose && args.weights.parts() == 2 && args.weights.part_rows() % 8 != 0) {
    return support::no(fmt::format("the second half of x begins at column {}, no multiple of 8",
                                   args.weights.part_rows()));
  }
  return support::yes();
}

support takes_low_rank(grouped_gemm_args const& args) {
  tensor_view const& u = args.low_rank.u;
  if (!u.present() || u.extent[1] == 0) return support::yes();
  if (support const types = sm80::takes_low_rank(args); !types) return types;
  constexpr index_t most_rank = 4096;
  if (u.extent[1] > most_rank) {
    return support::no(fmt::format("the rank is {}, more than {}", u.extent[1], most_rank));
  }
  return sm80::takes_rows("low_rank.u", u);
}

support takes_alike(grouped_gemm_args const& args) {
  if (support const depth = takes_depth(args); !depth) return depth;
  if (support const low_rank = takes_low_rank(args); !low_rank) return low_rank;
  for (int part = 0; part < args.weights.parts(); ++part) {
    quantized_view const& q = args.weights.part(part);
    if (q.is_plain()) return support::no("weights have no scales");
    bool const groups = is_w4(q.type());
    support const scales = groups ? takes_group_scales(q) : sm90::takes_weight_scales(q);
    if (!scales) return scales;
  }
  return sm90::takes_call(args);
}

}  // namespace

support takes_w8a16(grouped_gemm_args const& args) {
  bool const types = has_16_bit_x(args) && args.weights.type() == dtype::e4m3;
  return types ? takes_alike(args) : no_types(args, "e4m3");
}

support takes_w4a16(grouped_gemm_args const& args) {
  if (!has_16_bit_x(args) || !is_w4(args.weights.type())) {
    return no_types(args, "int4 or fp4");
  }
  if (args.transpose) {
    return support::no(fmt::format("weights are {} and transposed", name(args.weights.type())));
  }
  return takes_alike(args);
}

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  launcher on("grouped_gemm", args, where);
  index_t const experts = args.weights.experts();
  index_t const rows = sm90::rows_per_expert(args);
  mixed_weights const weights = weights_of(args);
  index_t const n = args.y.extent[1], k = args.x.cols();
  tile_shape const tile =
      sm90::choose_tile("grouped_gemm", tiles_for(weights), {rows, k, n}, where.device).tile;
  auto const [kernel, config] = sm90_mixed_kernel(tile, args.x.type(), weights);
  gemm_config const& shape = config.tile;
  sm90_mixed_parameters p = parameters(args, config, where);
  p.evict_first = rows <= shape.most_rows;
  index_t const tiles = checked_mul(checked_add(ceil_div(args.x.rows(), shape.rows), experts),
                                    p.n_parts * ceil_div(p.n_part, shape.outs * shape.cluster));
  index_t const clusters =
      std::min(tiles, on.multiprocessors() * config.ctas_per_sm / shape.cluster);
  on.launch(kernel, {clusters * shape.cluster, shape.threads, shape.shared_bytes}, p);
}

}  // namespace moe64::cuda::sm90_mixed
