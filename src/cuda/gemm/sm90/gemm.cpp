#include "cuda/gemm/sm90/gemm.hpp"

#include "core/verbose.hpp"
#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm90/heuristics.hpp"
#include "cuda/gemm/sm90/operands.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/places.hpp"
#include "cuda/runtime/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda::sm90 {
namespace {

/// K of a quantisation block: products over it are promoted together.
constexpr index_t block = 128;
/// Bytes of a row of a TMA box.
constexpr int row_bytes = 128;

support takes_scales(quantized_view const& x, quantized_view const& weights) {
  if (support const type = takes_scale_type(x); !type) return type;
  if (!whole_blocks(x.layout().cols_per_scale(x.cols()), x.cols()) ||
      x.layout().rows_per_scale(x.rows()) != 1) {
    return support::no(fmt::format("x has scale {}: neither one for each row nor for each {} of it",
                                   to_string(x.layout()), block));
  }
  return takes_weight_scales(weights);
}

/// How many f32 scales of a row of x, which has `count`, one cp.async can load: they are
/// contiguous and aligned to what they take.
int scales_per_copy(block_scales const& x, index_t count) {
  if (x.type != dtype::f32 || x.k != 1 || x.k_blocks != 1) return 1;
  auto const address = reinterpret_cast<std::uintptr_t>(x.data);
  for (int scales : {4, 2}) {
    auto const bytes = static_cast<std::uintptr_t>(scales) * sizeof(float);
    bool const aligned = address % bytes == 0 && x.n % scales == 0;
    if (aligned && count % scales == 0) return scales;
  }
  return 1;
}

static_assert(work_counter_words * sizeof(std::uint32_t) <= grouped_gemm_scratch_bytes);

/// Bytes of the weights of an expert.
index_t expert_bytes(weight_stack const& w) {
  return w.parts() * w.part_rows() * w.cols() * bits(w.type()) / 8;
}

/// Whether the work counter, of 32 bits, and its mailboxes are enough.
bool fits_work_counter(index_t tiles, index_t clusters) {
  return tiles < index_t{1} << 31 && clusters <= most_clusters;
}

/// What a call goes without; it gets the same bits, later.
void say_without(char const* what, stream where, std::string const& reason) {
  if (verbose_level() >= 2) print_refused("grouped_gemm", where.device, what, reason);
}

}  // namespace

sm90_gemm_parameters parameters(grouped_gemm_args const& args, stream where, int weight_box_rows) {
  sm90_gemm_parameters p = {};
  encoder const encode(where);
  tensor_view const& x = args.x.values();
  int const size = x.type == dtype::e4m3 ? 1 : 2;
  int rows = 8;
  for (tensor_map& map : p.x) {
    map = encode({.data = x.data,
                  .element_bytes = size,
                  .rank = 2,
                  .extent = {x.extent[2], x.extent[1]},
                  .stride_bytes = {x.stride[1] * size},
                  .box = {row_bytes / size, rows}});
    rows *= 2;
  }
  if (!args.x.is_plain()) {
    p.x_scales = scales_of(args.x);
    p.x_scales_per_copy = scales_per_copy(p.x_scales, ceil_div(args.x.cols(), block));
  }
  p.parts = args.weights.parts();
  for (int part = 0; part < p.parts; ++part) {
    quantized_view const& q = args.weights.part(part);
    tensor_view const& w = q.values();
    p.weights[part] = encode({.data = w.data,
                              .element_bytes = size,
                              .rank = 3,
                              .extent = {w.extent[2], w.extent[1], w.extent[0]},
                              .stride_bytes = {w.stride[1] * size, w.stride[0] * size},
                              .box = {row_bytes / size, weight_box_rows, 1}});
    if (!q.is_plain()) (one_per_row(q) ? p.row_scales : p.weight_scales)[part] = scales_of(q);
    p.expert_place[part] = places_of(q);
    p.poison_invalid = p.poison_invalid || (q.is_plain() && q.places().present());
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  p.expert_begin = args.expert_begin;
  p.n_part = args.weights.part_rows();
  p.k = args.weights.cols();
  p.operands_ready = args.operands_ready;
  p.y = args.y;
  p.y_vectors = has_vec8(args.y, p.n_part);
  return p;
}

namespace {

support takes_alike(grouped_gemm_args const& args) {
  for (int part = 0; part < args.weights.parts(); ++part) {
    quantized_view const& q = args.weights.part(part);
    if (q.is_plain()) continue;
    if (support const scales = takes_scales(args.x, q); !scales) return scales;
  }
  if (args.transpose) return support::no("weights are transposed");
  if (args.low_rank.u.present()) return support::no("there is a low-rank term");
  return takes_call(args);
}

support no_types(grouped_gemm_args const& args, char const* wanted) {
  return support::no(fmt::format("x is {} and weights are {}, not both {}", name(args.x.type()),
                                 name(args.weights.type()), wanted));
}

void run(grouped_gemm_args const& args, stream where, std::span<tile_rule const> rules) {
  launcher on("grouped_gemm", args, where);
  index_t const rows = rows_per_expert(args);
  tile_shape const tile =
      choose_tile("grouped_gemm", rules,
                  {rows, args.weights.cols(), args.weights.parts() * args.weights.part_rows()},
                  where.device)
          .tile;
  auto const [kernel, config] = sm90_gemm_kernel(tile, args.x.type());
  sm90_gemm_parameters p = parameters(args, where, config.weight_box_rows);
  p.evict_first = rows <= config.most_rows;
  if (config.y_by_tma) {
    if (p.y_vectors) {
      p.y_map = map_of_y(args.y, p.parts, p.n_part, y_box_rows, encoder(where));
    } else {
      say_without("y by TMA store", where,
                  fmt::format("y {} of {} outputs a part is not made of 8 at multiples of 16 bytes",
                              to_string(args.y), p.n_part));
    }
  }
  index_t const tiles =
      checked_mul(checked_add(ceil_div(args.x.rows(), config.rows), args.weights.experts()),
                  p.parts * ceil_div(p.n_part, config.outs));
  index_t const clusters = std::min(tiles, on.multiprocessors() / config.cluster);
  if (dynamic_schedule_pays(tile, rows, expert_bytes(args.weights)) &&
      fits_work_counter(tiles, clusters)) {
    if (args.scratch.bytes >= grouped_gemm_scratch_bytes) {
      p.work_counter = static_cast<std::uint32_t*>(args.scratch.data);
      on.fill(p.work_counter, 0, work_counter_words * sizeof(std::uint32_t));
    } else {
      say_without("tiles from a work counter", where,
                  fmt::format("scratch has {} bytes, fewer than {}", args.scratch.bytes,
                              grouped_gemm_scratch_bytes));
    }
  }
  on.launch(kernel, {clusters * config.cluster, config.threads, config.shared_bytes}, p);
}

}  // namespace

support takes_w8a8(grouped_gemm_args const& args) {
  bool const types = args.x.type() == dtype::e4m3 && args.weights.type() == dtype::e4m3;
  return types ? takes_alike(args) : no_types(args, "e4m3");
}

support takes_bf16(grouped_gemm_args const& args) {
  dtype const x = args.x.type();
  bool const types = x == args.weights.type() && (x == dtype::bf16 || x == dtype::f16);
  return types ? takes_alike(args) : no_types(args, "bf16 or f16");
}

void w8a8_gemm(grouped_gemm_args const& args, stream where) { run(args, where, w8a8_tiles()); }

void bf16_gemm(grouped_gemm_args const& args, stream where) { run(args, where, bf16_tiles()); }

}  // namespace moe64::cuda::sm90
