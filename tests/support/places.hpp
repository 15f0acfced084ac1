#pragma once

#include "moe64/cpu.hpp"
#include "moe64/quant.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace moe64::test {

/// A copy of weights whose matrices lie apart from each other, in another order, in memory that is
/// NaN between them (in types that have one); so do their scales.
class placed_weights {
 public:
  /// Bytes between places, multiples of the elements' sizes; 0: in order, without a table.
  struct steps {
    index_t values = 256, scales = 16;
  };
  placed_weights(weight_stack const& of, std::uint64_t seed) : placed_weights(of, seed, steps{}) {}
  placed_weights(weight_stack const& of, std::uint64_t seed, steps const& apart);
  placed_weights(placed_weights const&) = delete;
  placed_weights& operator=(placed_weights const&) = delete;

  weight_stack stack;

  /// Entries of the tables, to be changed.
  [[nodiscard]] index_t& values_place(int part, index_t expert);
  [[nodiscard]] index_t& scales_place(int part, index_t expert);

 private:
  /// One array of one part.
  struct array {
    cpu_buffer memory{0};
    tensor_view view;
    std::vector<index_t> table;

    [[nodiscard]] tensor_view places() const;
  };
  array const& scattered(tensor_view const& of, index_t step_bytes, std::uint64_t seed);
  [[nodiscard]] quantized_view part(quantized_view const& of, std::uint64_t seed,
                                    steps const& apart);

  std::deque<array> arrays_;  ///< values and scales of each part
};

}  // namespace moe64::test
