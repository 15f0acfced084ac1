#pragma once

#include "cuda/gemm/tile_rule.hpp"
#include "cuda/kernels/gemm/sm90/gemm.hpp"

/// Which tile a grouped GEMM of sm_90a gets, and why: one table for each family of kernels. Every
/// tile gives the same bits, so this is about speed alone. The thresholds were measured on an H200
/// (docs/hopper.md, docs/experiments).
namespace moe64::cuda::sm90 {

using tile_rule = cuda::tile_rule<tile_shape>;

/// The tables: of the rules that take a call the first one counts, and the last takes every call.
[[nodiscard]] std::span<tile_rule const> w8a8_tiles();
[[nodiscard]] std::span<tile_rule const> bf16_tiles();
[[nodiscard]] std::span<tile_rule const> w8a16_tiles();
/// W8A16 with transposed weights (dx).
[[nodiscard]] std::span<tile_rule const> w8a16_transposed_tiles();
[[nodiscard]] std::span<tile_rule const> w4a16_tiles();

/// Whether m256n128 takes its tiles from a work counter; other tiles have no dynamic schedule.
/// `expert_bytes`: of the weights of an expert.
[[nodiscard]] bool dynamic_schedule_pays(tile_shape tile, index_t rows_per_expert,
                                         index_t expert_bytes);

/// By tokens, of which an expert has one row each at most.
[[nodiscard]] std::span<tile_rule const> fused_layer_tiles();

/// The rule that a call falls under; MOE64_VERBOSE=2 prints it.
[[nodiscard]] tile_rule const& choose_tile(char const* operation, std::span<tile_rule const> rules,
                                           gemm_extents const& call, moe64::device where);

}  // namespace moe64::cuda::sm90
