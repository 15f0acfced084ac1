#pragma once

#include "cuda/kernels/gemm/sm90/gemm.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// What the implementations of grouped_gemm for sm_90a ask of their operands alike.
namespace moe64::cuda::sm90 {

/// All but types, scales, transposition and a low-rank term: something to multiply, rows that
/// TMA can address, a result in 16 bits, and a Hopper.
[[nodiscard]] support takes_call(grouped_gemm_args const& args);
/// Rows of x for each expert on average, rounded up.
[[nodiscard]] index_t rows_per_expert(grouped_gemm_args const& args);
/// Whether `per` elements that share a scale are whole blocks of 128 of an extent.
[[nodiscard]] bool whole_blocks(index_t per, index_t extent);
[[nodiscard]] bool one_per_row(quantized_view const& q);
/// f32, bf16 or e8m0.
[[nodiscard]] support takes_scale_type(quantized_view const& q);
/// The same, for rows or whole blocks of 128.
[[nodiscard]] support takes_weight_scales(quantized_view const& weights);
[[nodiscard]] block_scales scales_of(quantized_view const& q);

/// Whether y [capacity, parts * n_part] in 16 bits is made of 8 outputs of a row at multiples of 16
/// bytes. (A TMA store across a width that is no multiple of 8 was seen to change what lies behind
/// it.)
[[nodiscard]] bool has_vec8(tensor_view const& y, index_t n_part);

/// Makes tensor maps for TMA.
class encoder {
 public:
  explicit encoder(stream where) : where_(where) {}
  [[nodiscard]] tensor_map operator()(tensor_box const& box) const;

 private:
  stream where_;
};

/// y [capacity, parts * n_part] in 16 bits, which has_vec8(), as (output of a part, part, row) in
/// boxes of y_box_outs by `rows`.
[[nodiscard]] tensor_map map_of_y(tensor_view const& y, int parts, index_t n_part, int rows,
                                  encoder const& encode);

}  // namespace moe64::cuda::sm90
