#pragma once

#include "cases/arena.hpp"
#include "cases/numbers.hpp"
#include "moe64/layer.hpp"
#include "moe64/problem.hpp"

#include <array>
#include <string>
#include <vector>

namespace moe64::cases {

/// Weight stacks of a problem in its format. Only the experts in `used` are filled. The others hold
/// NaN (in their codes, or in their scales where the codes have no NaN) as long as the tensor is
/// small, and are never touched when it is not: reading them is a bug either way, and filling them
/// would cost the memory of the whole stack.
class weight_builder {
 public:
  weight_builder(arena& memory, problem const& p, data_mode data, cpu_executor* executor,
                 std::vector<index_t> used);

  /// [experts, parts * rows, cols] in the format, granularity and layout of the problem. The global
  /// scale of NVFP4 multiplies in gate_up and divides in down, so that a layer has both.
  [[nodiscard]] weight_stack stack(std::string const& name, tensor_id id, int parts, index_t rows,
                                   index_t cols);
  /// One matrix of such a stack.
  [[nodiscard]] quantized_view matrix(std::string const& name, tensor_id id, index_t rows,
                                      index_t cols);
  /// Per part [experts, rows] io.
  [[nodiscard]] std::array<tensor_view, 2> bias(std::string const& name, tensor_id id, int parts,
                                                index_t rows);
  /// A [experts, rank, cols] and B [experts, parts * rows, rank], io, scaling one half.
  [[nodiscard]] lora_adapter lora(std::string const& name, tensor_id id, int parts, index_t rows,
                                  index_t cols);

  /// Bytes of the used experts in everything built so far: what an operation must read at least.
  [[nodiscard]] double bytes_in_use() const noexcept { return bytes_in_use_; }

 private:
  /// Memory for [experts, rows, cols] (or [experts, rows] when cols is 0), its used experts filled.
  tensor_view filled(std::string const& name, tensor_id id, number_source const& source, dtype type,
                     index_t rows, index_t cols);
  std::array<quantized_view, 2> parts_of(std::string const& name, tensor_id id, int parts,
                                         index_t rows, index_t cols);

  arena& memory_;
  problem const& p_;
  data_mode data_;
  cpu_executor* executor_;
  std::vector<index_t> used_;
  double bytes_in_use_ = 0.0;
};

/// Experts [begin, end) of a stack.
[[nodiscard]] weight_stack experts_of(weight_stack const& stack, index_t begin, index_t end);

}  // namespace moe64::cases
