#include "cuda/gemm/parameters.hpp"
#include "cuda/gemm/sm80/gemm.hpp"
#include "cuda/gemm/sm90/gemm.hpp"
#include "cuda/gemm/sm90/mixed_gemm.hpp"
#include "cuda/operations.hpp"
#include "cuda/places.hpp"
#include "cuda/runtime/launch.hpp"

#include <algorithm>

namespace moe64::cuda {

matrix_operand operand_of(quantized_view const& q) {
  return {q.values(),
          q.scales(),
          q.global().values,
          q.layout().rows_per_scale(q.rows()),
          q.layout().cols_per_scale(q.cols()),
          q.global().applied == global_scale::direction::divide,
          places_of(q)};
}

grouped_gemm_parameters parameters_of(grouped_gemm_args const& args) {
  grouped_gemm_parameters p = {};
  p.x = operand_of(args.x);
  p.parts = args.weights.parts();
  for (int part = 0; part < p.parts; ++part) {
    p.weights[part] = operand_of(args.weights.part(part));
    p.bias[part] = args.bias[static_cast<std::size_t>(part)];
  }
  p.transpose = args.transpose;
  p.expert_begin = args.expert_begin;
  p.y = args.y;
  if (!args.low_rank.u.present()) return p;
  p.low_rank_x = operand_of(quantized_view::plain(args.low_rank.u));
  p.low_rank_parts = args.low_rank.weights.parts();
  for (int part = 0; part < p.low_rank_parts; ++part) {
    p.low_rank_weights[part] = operand_of(args.low_rank.weights.part(part));
  }
  p.low_rank_scaling = args.low_rank.scaling;
  return p;
}

index_t most_tiles(grouped_gemm_args const& args, index_t row_tile, index_t out_tile) {
  index_t const rows = args.x.rows();
  index_t const row_tiles =
      checked_add(ceil_div(rows, row_tile), std::min(rows, args.weights.experts()));
  return checked_mul(row_tiles, ceil_div(args.y.extent[1], out_tile));
}

namespace {

void run_reference(grouped_gemm_args const& args, stream where) {
  launcher on("grouped_gemm", args, where);
  index_t const tiles = most_tiles(args, gemm_reference_tile, gemm_reference_tile);
  on.launch(grouped_gemm_reference_kernel(),
            {on.ctas_for(tiles, 8), gemm_reference_tile * gemm_reference_tile},
            parameters_of(args));
}

constexpr implementation<grouped_gemm_args> gemms[] = {
    {"sm90_w8a8", sm90::takes_w8a8, sm90::w8a8_gemm, preferred},
    {"sm90_bf16", sm90::takes_bf16, sm90::bf16_gemm},
    {"sm90_w8a16", sm90_mixed::takes_w8a16, sm90_mixed::grouped_gemm},
    {"sm90_w4a16", sm90_mixed::takes_w4a16, sm90_mixed::grouped_gemm},
    {"sm80_mma", sm80::takes, sm80::grouped_gemm},
    {"reference", any_call<grouped_gemm_args>, run_reference},
};

}  // namespace

implementation_list<grouped_gemm_args> grouped_gemm_list() { return gemms; }

}  // namespace moe64::cuda
