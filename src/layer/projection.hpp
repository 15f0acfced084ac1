#pragma once

#include "moe64/layer.hpp"

/// One projection with its bias and its LoRA: forward, gradient of its input, gradients of its
/// parameters. Each is a short list of grouped_gemm calls; `low_rank` buffers are [capacity, >=
/// rank] io.
namespace moe64 {

/// y = x W^T + bias + scaling * (plain_x A^T) B^T. `x` may be quantised; LoRA always sees
/// `plain_x`. Parameters and expert_begin are complete: operands_ready.
struct project_args {
  quantized_view x;          ///< [capacity, in]
  tensor_view plain_x;       ///< [capacity, in] io; only read with LoRA
  tensor_view low_rank;      ///< scratch
  tensor_view expert_begin;  ///< [experts + 1] int64
  tensor_view y;             ///< out: [capacity, out] io
  std::string_view implementation;
  workspace scratch = {};  ///< of the product
};
void project(projection const& p, project_args const& args, stream where);
/// The product by the weights themselves in it; the low-rank term, if any, is in `low_rank`.
[[nodiscard]] grouped_gemm_args product_of(projection const& p, project_args const& args);

/// dx = dy W + scaling * (dy B) A
struct project_backward_args {
  tensor_view dy;            ///< [capacity, out] io
  tensor_view d_low_rank;    ///< scratch
  tensor_view expert_begin;  ///< [experts + 1] int64
  tensor_view dx;            ///< out: [capacity, in] io
  bool has_dyb;              ///< d_low_rank has dy B already
  std::string_view implementation;
};
void project_backward(projection const& p, project_backward_args const& args, stream where);

/// Gradients of W, bias, A and B, as far as they are asked for; with that of A, d_low_rank is dy B.
struct project_parameters_args {
  tensor_view x;             ///< [capacity, in] io
  tensor_view dy;            ///< [capacity, out] io
  tensor_view low_rank;      ///< scratch
  tensor_view d_low_rank;    ///< scratch
  tensor_view expert_begin;  ///< [experts + 1] int64
  std::string_view implementation;
};
void project_parameters(projection const& p, project_parameters_args const& args,
                        projection_gradients const& gradients, stream where);

}  // namespace moe64
