#pragma once

#include "cases/arena.hpp"
#include "cases/comparison.hpp"
#include "cases/numbers.hpp"
#include "moe64/explain.hpp"
#include "moe64/problem.hpp"

#include <memory>
#include <string>
#include <vector>

namespace moe64::cases {

/// What one execution computes and must move at least: each operand once (a layer's weights once
/// per pass). The mean over the routings of a case that has several.
struct work {
  double flops = 0.0;
  double bytes = 0.0;
  double weight_bytes = 0.0;  ///< of `bytes`: expert weights with their scales, biases, adapters
};

struct operation_report {
  std::string operation;
  std::vector<implementation_report> implementations;  ///< best first
};

struct named_tensor {
  std::string name;
  tensor_view tensor;
};

/// What a scenario is built from. All of it outlives the scenario.
struct setting {
  problem const& p;
  data_mode data;
  arena& memory;
  cpu_executor* executor;
  index_t routings = 1;
};

/// One kind of problem with its operands: how it runs, and what must come out. Made by the
/// functions below, one per file; problem_case is what others use.
class scenario {
 public:
  virtual ~scenario() = default;
  virtual void execute(stream where) const = 0;
  virtual void compare(comparison& result) const = 0;
  /// The operations that it runs; the first one decides the name of its implementation.
  [[nodiscard]] virtual std::vector<operation_report> explain(stream where) const = 0;
  [[nodiscard]] virtual work cost() const = 0;
  [[nodiscard]] virtual std::vector<named_tensor> outputs() const = 0;
  /// Slots that hold no expert.
  [[nodiscard]] virtual index_t skipped_slots() const { return 0; }
  /// How many routings it was built with, and which of them execute uses; compare is about the
  /// first.
  [[nodiscard]] virtual index_t routings() const { return 1; }
  virtual void use_routing(index_t /*routing*/) {}
  /// The compute mode and why it was chosen, where there is a choice.
  [[nodiscard]] virtual std::string remark() const { return {}; }
};

[[nodiscard]] std::unique_ptr<scenario> make_layer(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_quantize(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_dequantize(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_route(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_plan_scenario(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_movement(setting const& s);  ///< gather and combine
[[nodiscard]] std::unique_ptr<scenario> make_grouped_gemm(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_grouped_gemm_wgrad(setting const& s);
[[nodiscard]] std::unique_ptr<scenario> make_activate(setting const& s);

/// Throws errc::unsupported: the problem has no gradient to run.
void refuse_backward(problem const& p, char const* why);
/// Throws errc::invalid_argument: such a problem cannot be free of rounding.
void refuse_exact(setting const& s, char const* why);

/// A quantised matrix [rows, cols] of activations for the weights of the problem (mode=w8a8),
/// `live` rows filled.
[[nodiscard]] quantized_view quantized_rows(setting const& s, std::string const& name, index_t rows,
                                            index_t live, index_t cols);
/// A plain matrix [rows, cols] io, `live` rows filled with numbers of deviation 1 (exact: -1, 0,
/// 1), the others NaN.
[[nodiscard]] tensor_view plain_rows(setting const& s, std::string const& name, tensor_id id,
                                     index_t rows, index_t live, index_t cols);

/// What quantized=1 must make of `row` [cols] io: the numbers of its codes and its scales.
[[nodiscard]] std::vector<expectation> quantized_row(problem const& p, std::vector<double> row);

/// Bytes of `rows` rows of a matrix.
[[nodiscard]] double bytes_of(tensor_view const& matrix, index_t rows);

}  // namespace moe64::cases
