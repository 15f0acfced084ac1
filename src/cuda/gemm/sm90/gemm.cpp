#include "cuda/gemm/sm90/gemm.hpp"

#include "core/verbose.hpp"
#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm90/operands.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "cuda/places.hpp"
#include "cuda/runtime/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda::wgmma {
namespace {

/// Codes along k whose products are added before they are scaled.
constexpr index_t block = 128;
/// Of an operand in shared memory.
constexpr int row_bytes = 128;

support takes_types(grouped_gemm_args const& args) {
  dtype const x = args.x.type(), weights = args.weights.type();
  bool const numbers = x == weights && (x == dtype::bf16 || x == dtype::f16);
  bool const codes = x == dtype::e4m3 && weights == dtype::e4m3;
  if (numbers || codes) return support::yes();
  return support::no(fmt::format("x is {} and weights are {}, not both e4m3, bf16 or f16", name(x),
                                 name(weights)));
}

support takes_scales(quantized_view const& x, quantized_view const& weights) {
  if (support const type = takes_scale_type(x); !type) return type;
  if (!whole_blocks(x.layout().cols_per_scale(x.cols()), x.cols()) ||
      x.layout().rows_per_scale(x.rows()) != 1) {
    return support::no(fmt::format("x has scale {}: neither one for each row nor for each {} of it",
                                   to_string(x.layout()), block));
  }
  return takes_weight_scales(weights);
}

/// How many f32 scales of a row of x, which has `count`, can be copied together: they lie side by
/// side, at a multiple of what they take.
int at_once(wgmma_scales const& x, index_t count) {
  if (x.type != dtype::f32 || x.k != 1 || x.k_blocks != 1) return 1;
  auto const address = reinterpret_cast<std::uintptr_t>(x.data);
  for (int together : {4, 2}) {
    auto const bytes = static_cast<std::uintptr_t>(together) * sizeof(float);
    bool const aligned = address % bytes == 0 && x.n % together == 0;
    if (aligned && count % together == 0) return together;
  }
  return 1;
}

/// Of large tiles, those of three groups (`more`) where they are faster (docs/hopper.md): where an
/// expert's rows fill them better than tiles of 256, and else along a short k through small
/// experts. Where most of them are whole, the copy engine writes y (`whole`). Below eight blocks
/// along k the beginnings and ends of tiles cost more than that, and those of 192 outputs (`broad`)
/// have fewer of them; below five they cost more than two groups' tiles of 256 rows.
wgmma_size size_for(grouped_gemm_args const& args, index_t each) {
  wgmma_size const size = size_of(each);
  index_t const k = args.weights.cols(), n = args.weights.parts() * args.weights.part_rows();
  if (size != wgmma_size::many || args.x.type() != dtype::e4m3) return size;
  if (k < 8 * block) return k > 4 * block && each > 176 ? wgmma_size::broad : size;
  if (each <= 160) return wgmma_size::more;
  bool const small_experts = k <= 16 * block && n <= 32 * block;
  bool const fits = each > 272 && each <= 368;
  return fits || (each > 368 && small_experts) ? wgmma_size::whole : size;
}

static_assert(wgmma_tickets * sizeof(std::uint32_t) <= grouped_gemm_scratch_bytes);

/// Whether tickets for the tiles pay (docs/hopper.md): an expert's weights are too large for the
/// cache to keep them until its other rows come, and it has some.
bool tickets_pay(grouped_gemm_args const& args, wgmma_size size, index_t each, index_t tiles) {
  weight_stack const& w = args.weights;
  index_t const bytes = w.parts() * w.part_rows() * w.cols() * (w.type() == dtype::e4m3 ? 1 : 2);
  constexpr index_t most_tiles = index_t{1} << 31;  // tickets are 32 bits
  return size == wgmma_size::many && each > 160 && bytes > index_t{8} << 20 && tiles < most_tiles;
}

/// The same bits, later.
void say_without(char const* what, stream where, std::string const& reason) {
  if (verbose_level() >= 2) print_refused("grouped_gemm", where.device, what, reason);
}

}  // namespace

grouped_gemm_wgmma_parameters parameters(grouped_gemm_args const& args, stream where,
                                         int weight_rows) {
  grouped_gemm_wgmma_parameters p = {};
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
    p.x_scales_at_once = at_once(p.x_scales, ceil_div(args.x.cols(), block));
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
                              .box = {row_bytes / size, weight_rows, 1}});
    if (!q.is_plain()) (one_per_row(q) ? p.row_scales : p.weight_scales)[part] = scales_of(q);
    p.at[part] = places_of(q);
    p.marks_lost = p.marks_lost || (q.is_plain() && q.places().present());
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  p.expert_begin = args.expert_begin;
  p.n_part = args.weights.part_rows();
  p.k = args.weights.cols();
  p.operands_ready = args.operands_ready;
  p.y = args.y;
  p.y_vectors = has_eights(args.y, p.n_part);
  return p;
}

support takes(grouped_gemm_args const& args) {
  if (support const types = takes_types(args); !types) return types;
  for (int part = 0; part < args.weights.parts(); ++part) {
    quantized_view const& q = args.weights.part(part);
    if (q.is_plain()) continue;
    if (support const scales = takes_scales(args.x, q); !scales) return scales;
  }
  if (args.transpose) return support::no("weights are transposed");
  if (args.low_rank.u.present()) return support::no("there is a low-rank term");
  return takes_call(args);
}

void grouped_gemm(grouped_gemm_args const& args, stream where) {
  launcher on("grouped_gemm", args, where);
  index_t const each = rows_each(args);
  wgmma_size const size = size_for(args, each);
  auto const [run, shape] = grouped_gemm_wgmma_choice(size, args.x.type());
  bool const broad = size == wgmma_size::broad;
  grouped_gemm_wgmma_parameters p = parameters(args, where, broad ? 96 : 128);
  p.once = each <= shape.most_rows;
  if (broad || size == wgmma_size::whole) {
    if (p.y_vectors) {
      p.y_map = map_of_y(args.y, p.parts, p.n_part, 64, encoder(where));
    } else {
      say_without("y by the copy engine", where,
                  fmt::format("y {} of {} outputs a part is not made of 8 at multiples of 16 bytes",
                              to_string(args.y), p.n_part));
    }
  }
  index_t const tiles =
      checked_mul(checked_add(ceil_div(args.x.rows(), shape.rows), args.weights.experts()),
                  p.parts * ceil_div(p.n_part, shape.outs));
  index_t const clusters = std::min(tiles, on.multiprocessors() / shape.cluster);
  if (tickets_pay(args, size, each, tiles) && clusters <= wgmma_pairs) {
    if (args.scratch.bytes >= grouped_gemm_scratch_bytes) {
      p.tickets = static_cast<std::uint32_t*>(args.scratch.data);
      on.fill(p.tickets, 0, wgmma_tickets * sizeof(std::uint32_t));
    } else {
      say_without("tiles from a counter", where,
                  fmt::format("scratch has {} bytes, fewer than {}", args.scratch.bytes,
                              grouped_gemm_scratch_bytes));
    }
  }
  on.launch(run, {clusters * shape.cluster, shape.threads, shape.shared_bytes}, p);
}

}  // namespace moe64::cuda::wgmma
