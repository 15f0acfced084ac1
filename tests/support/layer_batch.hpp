#pragma once

#include "moe64/cpu.hpp"
#include "support/buffer.hpp"
#include "support/layer_fixture.hpp"

#include <deque>
#include <string_view>
#include <vector>

namespace moe64::test {

/// Calls of one layer on some tokens of a layer_memory. Operands, outputs and workspaces are its
/// own; the weights are those of `whole`, which must outlive it and is only read: several of them
/// may run at once.
class layer_batch {
 public:
  /// Tokens at `places`, in that order; the gradients of x, of the slot weights and, where wanted,
  /// of all parameters.
  layer_batch(layer_memory const& whole, std::vector<index_t> const& places, bool parameters);

  /// Forward and backward from NaN in all memory that they may write.
  void run(std::string_view implementation, target_stream where = target());
  /// y, dx, d_weights and the gradients of parameters, named as layer_memory names them.
  [[nodiscard]] layer_result result() const;

 private:
  tensor_view rows_of(tensor_view const& tokens, std::vector<index_t> const& places);
  tensor_view like(tensor_view const& view, index_t tokens);

  layer_desc desc_;
  forward_args forward_;
  backward_args backward_;
  std::deque<test_tensor> tensors_;
  std::vector<std::pair<std::string, tensor_view>> outputs_;
  cpu_buffer saved_, forward_scratch_, backward_scratch_;
};

/// All tokens of a case, in order.
[[nodiscard]] std::vector<index_t> all_tokens(layer_case const& c);

}  // namespace moe64::test
