#pragma once

#include "cases/magnitude.hpp"
#include "cases/neurons.hpp"
#include "cases/routing.hpp"
#include "cases/scenario.hpp"
#include "cases/tolerance.hpp"
#include "cases/weights.hpp"

namespace moe64::cases {

/// The call that forward makes for a projection, as far as choosing an implementation looks at it.
[[nodiscard]] grouped_gemm_args gemm_of(problem const& line, projection const& p, compute_mode mode,
                                        void const* anywhere);

/// op=layer: forward, and with backward=1 backward after it with every gradient that exists.
class layer_scenario final : public scenario {
 public:
  explicit layer_scenario(setting const& s);

  void execute(stream where) const override;
  void compare(comparison& result) const override;
  [[nodiscard]] std::vector<operation_report> explain(stream where) const override;
  [[nodiscard]] work cost() const override;
  [[nodiscard]] std::vector<named_tensor> outputs() const override;
  [[nodiscard]] index_t skipped_slots() const override { return routed_.rows.skipped; }
  [[nodiscard]] std::string remark() const override;
  [[nodiscard]] index_t routings() const override { return 1 + std::ssize(other_draws_); }
  void use_routing(index_t routing) override;

 private:
  [[nodiscard]] std::vector<index_t> experts_of_all_draws() const;
  [[nodiscard]] projection_gradients parameter_gradients(std::string const& name,
                                                         projection const& from);
  /// Gradients of parameters that are asked for, each [experts, ...].
  [[nodiscard]] std::vector<named_tensor> parameters() const;
  [[nodiscard]] std::vector<expectation> expected_token(oracle::layer_call const& call,
                                                        index_t token) const;
  [[nodiscard]] std::vector<expectation> expected_parameters(oracle::layer_call const& call,
                                                             index_t expert,
                                                             neuron_sample const& neurons) const;
  [[nodiscard]] std::function<tensor_view(index_t)> part_of(tensor_view const& gradient,
                                                            neuron_sample const& neurons) const;
  void compare_tokens(comparison& result, oracle::layer_call const& call) const;
  void compare_parameters(comparison& result, oracle::layer_call const& call) const;
  [[nodiscard]] double bound(layer_output output, index_t rows) const;

  setting s_;
  routed_tokens routed_;
  std::vector<routed_tokens> other_draws_;
  layer_desc layer_;
  forward_args forward_;
  backward_args backward_;
  mode_choice mode_;
  activation_magnitude magnitude_;
  double expert_bytes_ = 0.0;  ///< weights of one expert
};

}  // namespace moe64::cases
