#pragma once

#include "cuda/kernels/grouped_gemm_wgmma.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"

/// What the implementations of grouped_gemm for sm_90a ask of their operands alike.
namespace moe64::cuda::wgmma {

[[nodiscard]] support has_hopper(moe64::device where);
/// Contiguous rows that the copy engine can address.
[[nodiscard]] support takes_rows(char const* argument, tensor_view const& values);
/// Whether `per` numbers that share a scale are whole blocks of 128 of an extent.
[[nodiscard]] bool whole_blocks(index_t per, index_t extent);
[[nodiscard]] bool one_per_row(quantized_view const& q);
/// f32, bf16 or e8m0.
[[nodiscard]] support takes_scale_type(quantized_view const& q);
/// The same, for rows or whole blocks of 128.
[[nodiscard]] support takes_weight_scales(quantized_view const& weights);
[[nodiscard]] wgmma_scales scales_of(quantized_view const& q);

/// Maps for the copy engine.
class encoder {
 public:
  explicit encoder(stream where) : where_(where) {}
  [[nodiscard]] tensor_map operator()(tensor_box const& box) const;

 private:
  stream where_;
};

}  // namespace moe64::cuda::wgmma
