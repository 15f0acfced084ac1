#pragma once

#include "oracle/oracle.hpp"

#include <cstddef>
#include <vector>

namespace moe64::oracle {

/// Index of a std::vector.
[[nodiscard]] constexpr std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// One projection of one input.
struct projected {
  std::vector<double> low_rank;  // [rank] input * A^T, empty without LoRA
  std::vector<double> out;       // [rows]
};

/// Everything that one kept slot computes on its way forward.
struct slot_pass {
  index_t token = 0;
  index_t expert = 0;  // within the stacks
  double weight = 1.0;
  std::vector<double>
      x;  // [hidden] as gate_up sees it: times the weight if that is applied to the input
  projected gate_up;          // [parts * inter]
  std::vector<double> inner;  // [inter] the activation of gate_up
  projected down;             // [hidden], not yet weighted
};

/// The slot must have a row.
[[nodiscard]] slot_pass pass_slot(layer_desc const& layer, layer_call const& call,
                                  planned const& rows, index_t slot);

/// top_k of the call that was planned.
[[nodiscard]] index_t slots_per_token(layer_call const& call, planned const& rows);

}  // namespace moe64::oracle
