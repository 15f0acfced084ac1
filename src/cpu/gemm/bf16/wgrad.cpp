#include "cpu/gemm/bf16/gradient.hpp"
#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/simd/widths.hpp"

namespace moe64::cpu {

MOE64_DECLARE_WIDTHS(grouped_gemm_wgrad_args, grouped_gemm_wgrad_simd)

namespace bf16 {

MOE64_BEGIN_AVX512_BF16

namespace {

class engine {
 public:
  void take(std::uint32_t const (&left)[outer_pairs][outer_columns], index_t rows, index_t pairs) {
    left_ = {left, sizeof(std::uint32_t), sizeof(left[0])};
    rows_ = rows;
    pairs_ = pairs;
  }
  void multiply(outer_accumulators& acc, index_t columns, pair_tile const& right) const {
    multiply_outer(acc, rows_, columns, left_, right, pairs_);
  }

 private:
  pair_source left_ = {};
  index_t rows_ = 0;
  index_t pairs_ = 0;
};

}  // namespace

void grouped_gemm_wgrad(grouped_gemm_wgrad_args const& args, stream where) {
  for_each_gradient(args, where, [&](std::size_t part, tile_place const& at) {
    compute_gradient<engine>(args, part, at);
  });
  compute_bias_gradient(args, where);
}

MOE64_END_AVX512_BF16

void compute_bias_gradient(grouped_gemm_wgrad_args const& args, stream where) {
  if (!args.d_bias[0].present() && !args.d_bias[1].present()) return;
  grouped_gemm_wgrad_args bias = args;
  bias.x = {};
  bias.d_weights = {};
  N_AVX3::grouped_gemm_wgrad_simd(bias, where);
}

}  // namespace bf16
}  // namespace moe64::cpu
