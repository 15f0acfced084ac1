#include "cpu/gemm/epilogue.hpp"

#include "cpu/runtime/rows.hpp"

namespace moe64::cpu {

void store_tile(grouped_gemm_args const& args, tile_place const& at, float* acc,
                float const* low_rank, index_t stride) {
  if (low_rank != nullptr) {
    for (index_t r = 0; r < at.rows; ++r) {
      for (index_t n = 0; n < at.outs; ++n) {
        acc[r * stride + n] += args.low_rank.scaling * low_rank[r * stride + n];
      }
    }
  }
  for (index_t n = 0; !args.transpose && n < at.outs; ++n) {
    part_row const place = part_row_of(args.weights, at.out_begin + n);
    auto const part = static_cast<std::size_t>(place.part);
    if (!args.bias[part].present()) continue;
    float const bias = load_number(args.bias[part], at.expert, place.row);
    for (index_t r = 0; r < at.rows; ++r) acc[r * stride + n] += bias;
  }
  for (index_t r = 0; r < at.rows; ++r) {
    store_row(row_of(args.y, at.row_begin + r), at.out_begin, at.outs, acc + r * stride);
  }
}

}  // namespace moe64::cpu
