#include "layer/projection.hpp"

namespace moe64 {
namespace {

/// Where x A^T lies in `buffer`: in its first columns.
tensor_view columns_of(tensor_view const& buffer, lora_adapter const& lora) {
  return buffer.slice(1, 0, lora.a.rows());
}

/// x A^T, in the first columns of `buffer`.
tensor_view lora_xa(lora_adapter const& lora, tensor_view const& x, tensor_view const& buffer,
                    tensor_view const& expert_begin, std::string_view implementation,
                    stream where) {
  tensor_view const u = columns_of(buffer, lora);
  grouped_gemm({.x = quantized_view::plain(x),
                .weights = lora.a,
                .expert_begin = expert_begin,
                .y = u,
                .implementation = implementation},
               where);
  return u;
}

/// dy B, in the first columns of `buffer`.
tensor_view lora_dyb(lora_adapter const& lora, tensor_view const& dy, tensor_view const& buffer,
                     tensor_view const& expert_begin, std::string_view implementation,
                     stream where) {
  tensor_view const du = buffer.slice(1, 0, lora.b.cols());
  grouped_gemm({.x = quantized_view::plain(dy),
                .weights = lora.b,
                .expert_begin = expert_begin,
                .transpose = true,
                .y = du,
                .implementation = implementation},
               where);
  return du;
}

}  // namespace

grouped_gemm_args product_of(projection const& p, project_args const& args) {
  low_rank_term low_rank;
  if (p.lora.present()) low_rank = {columns_of(args.low_rank, p.lora), p.lora.b, p.lora.scaling};
  return {.x = args.x,
          .weights = p.weights,
          .expert_begin = args.expert_begin,
          .bias = p.bias,
          .low_rank = low_rank,
          .y = args.y,
          .implementation = args.implementation,
          .operands_ready = true,
          .scratch = args.scratch};
}

void project(projection const& p, project_args const& args, stream where) {
  if (p.lora.present()) {
    static_cast<void>(lora_xa(p.lora, args.plain_x, args.low_rank, args.expert_begin,
                              args.implementation, where));
  }
  grouped_gemm(product_of(p, args), where);
}

void project_backward(projection const& p, project_backward_args const& args, stream where) {
  low_rank_term low_rank;
  if (p.lora.present()) {
    low_rank.u = args.has_dyb ? args.d_low_rank.slice(1, 0, p.lora.b.cols())
                              : lora_dyb(p.lora, args.dy, args.d_low_rank, args.expert_begin,
                                         args.implementation, where);
    low_rank.weights = p.lora.a;
    low_rank.scaling = p.lora.scaling;
  }
  grouped_gemm({.x = quantized_view::plain(args.dy),
                .weights = p.weights,
                .expert_begin = args.expert_begin,
                .transpose = true,
                .low_rank = low_rank,
                .y = args.dx,
                .implementation = args.implementation},
               where);
}

void project_parameters(projection const& p, project_parameters_args const& args,
                        projection_gradients const& gradients, stream where) {
  int const parts = p.weights.parts();
  bool const base = gradients.weights[0].present() || gradients.weights[1].present() ||
                    gradients.bias[0].present() || gradients.bias[1].present();
  if (base) {
    grouped_gemm_wgrad({.dy = args.dy,
                        .x = args.x,
                        .expert_begin = args.expert_begin,
                        .parts = parts,
                        .d_weights = gradients.weights,
                        .d_bias = gradients.bias},
                       where);
  }
  if (gradients.lora_b[0].present() || gradients.lora_b[1].present()) {
    tensor_view const u =
        lora_xa(p.lora, args.x, args.low_rank, args.expert_begin, args.implementation, where);
    grouped_gemm_wgrad({.dy = args.dy,
                        .x = u,
                        .expert_begin = args.expert_begin,
                        .scaling = p.lora.scaling,
                        .parts = parts,
                        .d_weights = gradients.lora_b},
                       where);
  }
  if (gradients.lora_a.present()) {
    tensor_view const du =
        lora_dyb(p.lora, args.dy, args.d_low_rank, args.expert_begin, args.implementation, where);
    grouped_gemm_wgrad({.dy = du,
                        .x = args.x,
                        .expert_begin = args.expert_begin,
                        .scaling = p.lora.scaling,
                        .d_weights = {gradients.lora_a, {}}},
                       where);
  }
}

}  // namespace moe64
