#pragma once

#include "cuda/kernels/device/expert_place.cuh"
#include "cuda/kernels/device/number.cuh"
#include "cuda/kernels/gemm/sm90/gemm.hpp"

namespace moe64::cuda {

/// A row of block_scales: one scale for each 128 along k. NaN where an expert has no place.
class block_scale_row {
 public:
  __device__ block_scale_row(block_scales const& of, index_t place, index_t n)
      : of_(of), first_(place < 0 ? no_place : place * of.expert + n * of.n) {}
  [[nodiscard]] __device__ float at(int k_block) const {
    if (first_ < 0) return not_a_number();
    if (of_.data == nullptr) return 1.0F;
    int const k = of_.k_blocks == 1 ? k_block : k_block / of_.k_blocks;
    index_t const i = first_ + k * of_.k;
    if (of_.type == dtype::f32) return static_cast<float const*>(of_.data)[i];
    if (of_.type == dtype::bf16) return decode_bf16(static_cast<std::uint16_t const*>(of_.data)[i]);
    return decode_e8m0(static_cast<std::uint8_t const*>(of_.data)[i]);
  }

 private:
  block_scales const& of_;
  index_t first_;
};

}  // namespace moe64::cuda
