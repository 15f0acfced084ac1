#pragma once

#include "cases/problem_case.hpp"
#include "cases/routing.hpp"
#include "cases/tolerance.hpp"
#include "moe64/layer.hpp"

#include <string>
#include <vector>

namespace moe64::cases {

struct loaded_options {
  index_t tokens = 64;
  index_t top_k = 1;
  dtype io = dtype::bf16;
  std::uint64_t seed = 1;
  bool backward = false;  ///< gradients of x and of the slot weights
};

/// A layer whose weights come from elsewhere, with seeded inputs and routing: run, and compared
/// with the oracle on sampled tokens. What a row of such a layer is made to have is not known; the
/// root mean square of the sampled rows stands for it.
class loaded_layer {
 public:
  /// All of `memory` that it takes is its own; `layer` is looked at as long as it lives.
  loaded_layer(layer_desc const& layer, loaded_options const& options, arena& memory,
               cpu_executor* executor);

  void forward(stream where) const;
  void backward(stream where) const;  ///< after forward
  [[nodiscard]] verification verify(stream where, double budget,
                                    progress_report const& progress) const;

  [[nodiscard]] mode_choice const& mode() const noexcept { return mode_; }
  /// The first implementation that takes the gate_up projection.
  [[nodiscard]] std::string implementation(stream where) const;
  [[nodiscard]] double flops() const;  ///< of forward

 private:
  struct token_reference {
    std::vector<double> y;
    oracle::token_gradient gradient;
  };
  [[nodiscard]] std::vector<index_t> sample(double budget) const;
  [[nodiscard]] std::vector<token_reference> references(std::vector<index_t> const& tokens,
                                                        progress_report const& progress) const;
  [[nodiscard]] double typical_weight_gradient(token_reference const& reference,
                                               index_t token) const;

  layer_desc const& layer_;
  problem p_;
  arena& memory_;
  cpu_executor* executor_;
  routed_tokens routed_;
  mode_choice mode_;
  forward_args forward_;
  backward_args backward_;
};

}  // namespace moe64::cases
