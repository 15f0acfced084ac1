#pragma once

#include "checkpoint/load/opened.hpp"
#include "checkpoint/load/weight_list.hpp"
#include "checkpoint/merge/adapter.hpp"
#include "checkpoint/merge/factor_cache.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// A pair of factors and what its numbers mean.
struct stated_pair {
  factor_pair const* factors = nullptr;
  index_t rank = 0;  ///< of one expert
  index_t experts = 1;
  double scaling = 0;
  factor_layout layout = factor_layout::rank_major;
  /// A has the outputs and B the inputs: what PEFT makes of a stack [experts, in, out] whose module
  /// does not say that it is transposed.
  bool swapped = false;
};

/// Which outputs of a module a pair changes: for i in [0, count), output first + i * step of the
/// module is output pair_first + i * pair_step of the pair.
struct delta_term {
  stated_pair const* pair = nullptr;
  index_t slice = -1;  ///< of the module; -1: every one, slice s with expert s of the pair
  index_t expert = 0;  ///< of the pair, where the slice is stated
  index_t first = 0;
  index_t step = 1;
  index_t count = 0;
  index_t pair_first = 0;
  index_t pair_step = 1;

  /// The pair's output for one of the module; -1: the term does not change it.
  [[nodiscard]] index_t output_of(index_t module_output) const noexcept {
    index_t const distance = module_output - first;
    if (distance < 0 || distance % step != 0 || distance / step >= count) return -1;
    return pair_first + distance / step * pair_step;
  }
  [[nodiscard]] bool covers(index_t of_slice) const noexcept {
    return slice < 0 || slice == of_slice;
  }
  [[nodiscard]] index_t expert_of(index_t of_slice) const noexcept {
    return slice < 0 ? of_slice : expert;
  }
};

/// All that is added to the numbers of one tensor of weights.
struct module_delta {
  std::vector<delta_term> terms;
  module_format format;
  index_t inputs = 0;
  index_t outputs = 0;
  bool transposed = false;  ///< stored [inputs, outputs]

  /// Of all pairs that change the slice.
  [[nodiscard]] index_t rank_of(index_t slice) const noexcept;
};

/// What an adapter adds to the weights of a checkpoint: every pair of factors with the tensors that
/// it changes. Built before anything is written; a pair without such a tensor, or of other
/// extents, is an error that names it.
class weight_deltas {
 public:
  /// At most `memory_bytes` are used to keep factors in memory.
  weight_deltas(adapter_files const& adapter, checkpoint_reader::state const& base,
                std::optional<factor_layout> layout, index_t memory_bytes);
  weight_deltas(weight_deltas const&) = delete;
  weight_deltas& operator=(weight_deltas const&) = delete;

  [[nodiscard]] adapter_files const& adapter() const noexcept { return adapter_; }
  /// Of a tensor of weights, or null.
  [[nodiscard]] module_delta const* of(tensor_entry const* values) const;
  [[nodiscard]] index_t modules() const noexcept { return static_cast<index_t>(deltas_.size()); }
  [[nodiscard]] std::uint64_t sum() const noexcept { return sum_; }  ///< of all the adapter says
  [[nodiscard]] factor_cache& cache() const noexcept { return *cache_; }

 private:
  friend class delta_builder;
  adapter_files const& adapter_;
  std::uint64_t sum_ = 0;
  std::unique_ptr<factor_cache> cache_;
  std::vector<stated_pair> pairs_;
  std::map<tensor_entry const*, module_delta> deltas_;
};

}  // namespace moe64::checkpoint
