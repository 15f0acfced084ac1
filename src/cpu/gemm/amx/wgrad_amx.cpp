#include "cpu/gemm/bf16/gradient.hpp"
#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
// after the headers of other instruction sets
#include "cpu/gemm/amx/amx_bf16.hpp"

namespace moe64::cpu::amx {

MOE64_BEGIN_AMX_BF16

namespace {

using bf16::gradient_rows;
using bf16::outer_columns;
using bf16::outer_pairs;

/// The tiles want the summands of the left-hand side along its rows.
class engine {
 public:
  void take(std::uint32_t const (&left)[outer_pairs][outer_columns], index_t rows, index_t pairs) {
    rows_ = rows;
    depth_ = ceil_div(2 * pairs, tile_depth) * tile_depth;
    for (index_t p = 0; p < depth_ / 2; p += tile_rows) {
      for (index_t n = 0; n < rows; n += tile_rows) {
        __m512i patch[tile_rows];
        for (index_t i = 0; i < tile_rows; ++i) {
          patch[i] = p + i < pairs ? _mm512_load_si512(&left[p + i][n]) : _mm512_setzero_si512();
        }
        transpose(patch, &left_[n][p], outer_pairs);
      }
    }
  }
  void multiply(bf16::outer_accumulators& acc, index_t columns,
                bf16::pair_tile const& right) const {
    tiles const configured;
    for (index_t n = 0; n < rows_; n += tile_rows) {
      for (index_t c = 0; c < columns; c += 64) {
        amx::multiply(&acc[n][c], outer_columns,
                      reinterpret_cast<std::uint16_t const*>(&left_[n][0]), 2 * outer_pairs,
                      &right.values[0][c], outer_columns, depth_,
                      std::min<index_t>(4, ceil_div(columns - c, tile_rows)));
      }
    }
  }

 private:
  alignas(64) std::uint32_t left_[gradient_rows][outer_pairs];
  index_t rows_ = 0;
  index_t depth_ = 0;
};

}  // namespace

void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where) {
  bf16::for_each_gradient(args, where, [&](std::size_t part, tile_place const& at) {
    bf16::compute_gradient<engine>(args, part, at);
  });
  bf16::compute_bias_gradient(args, where);
}

MOE64_END_AMX_BF16

}  // namespace moe64::cpu::amx
