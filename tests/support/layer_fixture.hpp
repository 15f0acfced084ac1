#pragma once

#include "moe64/layer.hpp"
#include "oracle/oracle.hpp"
#include "support/buffer.hpp"
#include "support/layer_case.hpp"
#include "support/target.hpp"

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace moe64::test {

/// The outputs of a layer call by name, each as the bits of its elements in row-major order,
/// whatever the memory layout: y, dx, d_weights, gate_up.weights.0, down.lora_a, ...
struct layer_result {
  std::map<std::string, std::vector<std::uint64_t>> bits;

  /// Entries of dimension 0 (tokens or experts), of `count` in all.
  [[nodiscard]] std::vector<std::uint64_t> entries(std::string const& name,
                                                   std::vector<index_t> const& places,
                                                   index_t count) const;
  /// Names of outputs that are not the same in `other`; empty when all are.
  [[nodiscard]] std::string difference(layer_result const& other) const;
  [[nodiscard]] std::uint64_t hash() const;
};

/// A layer_case in memory. Outputs hold NaN; every gradient that exists is asked for, in the
/// storage of the parameter that it belongs to. Whoever writes outside of a tensor fails the test.
class layer_memory {
 public:
  explicit layer_memory(layer_case const& c);
  layer_memory(layer_memory const&) = delete;
  layer_memory& operator=(layer_memory const&) = delete;

  layer_desc desc;
  layer_shape shape;
  forward_args forward;
  backward_args backward;

  void run_forward(target_stream where = target()) const { moe64::forward(desc, forward, where); }
  void run_backward(target_stream where = target()) const {
    moe64::backward(desc, backward, where);
  }
  [[nodiscard]] layer_result result() const;
  /// All outputs to NaN again.
  void poison_outputs() const;
  [[nodiscard]] std::vector<std::pair<std::string, tensor_view>> outputs() const;

  /// What the oracle needs.
  [[nodiscard]] oracle::layer_call call() const;
  [[nodiscard]] oracle::planned rows() const;

  /// Memory of this object that holds 'view', to be read or changed.
  [[nodiscard]] test_tensor& owner(tensor_view const& view);

 private:
  /// [n], [n, rows] or [n, rows, cols] with the padding of the case, owned here.
  test_tensor& make(dtype type, std::vector<index_t> const& extents);
  tensor_view make_tokens(dtype type, index_t cols);
  /// One view [stored experts, rows, cols] per part.
  std::array<tensor_view, 2> make_parts(dtype type, int parts, index_t rows, index_t cols,
                                        gate_up_storage storage, bool in_first);
  std::array<tensor_view, 2> make_bias(int parts, index_t rows);

  void fill_tokens(tensor_view const& view, int tensor);
  void fill_routing();
  weight_stack make_weights(int tensor, int parts, index_t rows, index_t cols);
  void fill_bias(std::array<tensor_view, 2> const& bias, int tensor);
  lora_adapter make_lora(int tensor, index_t rank, int parts, index_t rows, index_t cols);
  projection make_projection(int tensor, index_t rank, int parts, index_t rows, index_t cols);
  projection_gradients make_gradients(projection const& p, index_t rank);

  [[nodiscard]] double random(int tensor, index_t label, index_t row, index_t col) const;
  /// A plain number of deviation `deviation`.
  [[nodiscard]] double number(int tensor, index_t label, index_t row, index_t col,
                              double deviation) const;
  /// A number of a matrix whose longer side is `longest`.
  [[nodiscard]] double sparse(int tensor, index_t label, index_t row, index_t col,
                              index_t longest) const;
  template <class Value>
  void fill_experts(tensor_view const& view, Value const& value);

  layer_case c_;
  std::deque<test_tensor> tensors_;
};

/// Forward, then backward with every gradient.
[[nodiscard]] layer_result run(layer_case const& c, target_stream where = target());

/// How `memory`, after a run, differs from the oracle, per output and expert; empty when it does
/// not: exactly for integers, otherwise within the bound that cases/tolerance.hpp derives.
[[nodiscard]] std::string oracle_difference(layer_case const& c, layer_memory const& memory);

/// Elements of any view as bits, in row-major order.
[[nodiscard]] std::vector<std::uint64_t> bits_of(tensor_view const& view);

}  // namespace moe64::test
