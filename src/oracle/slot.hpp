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
  std::vector<double> x;      // [hidden] as gate_up sees it: weighted if that is done to the input
  projected gate_up;          // [parts * inter]
  std::vector<double> inner;  // [inter] the activation of gate_up
  projected down;             // [hidden], not yet weighted
};

/// What a pass is for. Backward starts from the gate_up output that forward saved, whatever mode it
/// ran in, but reads everything after it unquantised.
enum class pass_use { forward, backward };

/// The slot must have a row.
[[nodiscard]] slot_pass pass_slot(layer_desc const& layer, layer_call const& call,
                                  planned const& rows, index_t slot, pass_use use);

/// top_k of the call that was planned.
[[nodiscard]] index_t slots_per_token(layer_call const& call, planned const& rows);

}  // namespace moe64::oracle
