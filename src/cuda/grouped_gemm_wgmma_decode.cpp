#include "cuda/grouped_gemm_wgmma_decode.hpp"

#include "cuda/kernels/grouped_gemm_wgmma_decode.hpp"
#include "cuda/launch.hpp"
#include "cuda/wgmma_operands.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda::wgmma_decode {
namespace {

using wgmma::encoder;

support takes_types(grouped_gemm_args const& args) {
  dtype const x = args.x.type(), weights = args.weights.type();
  if ((x == dtype::bf16 || x == dtype::f16) && weights == dtype::e4m3) return support::yes();
  return support::no(
      fmt::format("x is {} and weights are {}, not bf16 or f16 and e4m3", name(x), name(weights)));
}

void describe_x(tensor_view const& x, encoder const& encode, grouped_gemm_decode_parameters& p) {
  int rows = 8;
  for (tensor_map& map : p.x) {
    map = encode({.data = x.data,
                  .element_bytes = 2,
                  .rank = 2,
                  .extent = {x.extent[2], x.extent[1]},
                  .stride_bytes = {x.stride[1] * 2},
                  .box = {64, rows}});
    rows *= 2;
  }
}

void describe_y(tensor_view const& y, encoder const& encode, grouped_gemm_decode_parameters& p) {
  p.y = y;
  p.y_vectors = reinterpret_cast<std::uintptr_t>(y.data) % 16 == 0 && y.stride[0] % 8 == 0 &&
                (p.parts == 1 || p.n_part % 8 == 0);
  if (!p.y_vectors) return;
  int rows = 8;
  for (tensor_map& map : p.y_map) {
    map = encode({.data = y.data,
                  .element_bytes = 2,
                  .rank = 3,
                  .extent = {p.n_part, p.parts, y.extent[0]},
                  .stride_bytes = {(p.parts == 1 ? y.stride[0] : p.n_part) * 2, y.stride[0] * 2},
                  .box = {64, 1, rows}});
    rows *= 4;
  }
}

grouped_gemm_decode_parameters parameters(grouped_gemm_args const& args, decode_shape const& shape,
                                          stream where) {
  grouped_gemm_decode_parameters p = {};
  encoder const encode(where);
  p.parts = args.weights.parts();
  p.n_part = args.weights.part_rows();
  p.k = args.weights.cols();
  p.expert_begin = args.expert_begin;
  describe_x(args.x.values(), encode, p);
  for (int part = 0; part < p.parts; ++part) {
    quantized_view const& q = args.weights.part(part);
    tensor_view const& w = q.values();
    p.weights[part] =
        encode({.data = w.data,
                .element_bytes = 1,
                .rank = 3,
                .extent = {w.extent[2], w.extent[1], w.extent[0]},
                .stride_bytes = {w.stride[1], w.stride[0]},
                .box = {shape.stage_k, static_cast<int>(shape.tile.outs), 1},  // narrow-ok: 256
                .swizzle_bytes = shape.stage_k});
    p.scales[part] = wgmma::scales_of(q);
    p.row_scales = wgmma::one_per_row(q);
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  describe_y(args.y, encode, p);
  return p;
}

}  // namespace

support takes(grouped_gemm_args const& args) {
  if (support const types = takes_types(args); !types) return types;
  if (args.x.cols() % 16 != 0) {
    return support::no(fmt::format("{} numbers along k are no multiple of 16", args.x.cols()));
  }
  for (int part = 0; part < args.weights.parts(); ++part) {
    quantized_view const& q = args.weights.part(part);
    if (q.is_plain()) return support::no("weights have no scales");
    if (support const scales = wgmma::takes_weight_scales(q); !scales) return scales;
  }
  return wgmma::takes_call(args);
}

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  launcher on("grouped_gemm", args, where);
  index_t const experts = args.weights.experts();
  wgmma_size const size = wgmma::size_of(args.x.rows(), experts);
  decode_shape const shape = grouped_gemm_decode_shape(size);
  wgmma_shape const& tile = shape.tile;
  grouped_gemm_decode_parameters p = parameters(args, shape, where);
  p.once = ceil_div(args.x.rows(), std::max<index_t>(experts, 1)) <= tile.most_rows;
  index_t const tiles = checked_mul(checked_add(ceil_div(args.x.rows(), tile.rows), experts),
                                    p.parts * ceil_div(p.n_part, tile.outs * tile.cluster));
  index_t const clusters = std::min(tiles, on.multiprocessors() / tile.cluster);
  on.launch(grouped_gemm_decode_kernel(size, args.x.type()),
            {clusters * tile.cluster, tile.threads, tile.shared_bytes}, p);
}

}  // namespace moe64::cuda::wgmma_decode
