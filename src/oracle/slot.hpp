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

/// Rounds a result of f32 arithmetic to what memory between two operations holds. Only w8a8 asks
/// for it: a code is a step function of what is quantised, so an input that is not rounded as the
/// operations round it would give other codes.
class storage {
 public:
  explicit storage(layer_call const& call)
      : rounds_(call.mode == compute_mode::w8a8), type_(call.x.type) {}
  void keep(std::vector<double>& values) const {
    if (!rounds_) return;
    for (double& value : values) value = round_to(round_to(value, dtype::f32), type_);
  }

 private:
  bool rounds_;
  dtype type_;
};

/// What a projection makes of its input before any output: numbers as it reads them, and input *
/// A^T.
struct projection_input {
  std::vector<double> seen;
  std::vector<double> low_rank;
};
[[nodiscard]] projection_input input_of(projection const& p, index_t expert,
                                        std::vector<double> const& input, storage const& memory,
                                        bool quantizes);
/// One output of the projection.
[[nodiscard]] double output_of(projection const& p, index_t expert, projection_input const& input,
                               index_t row);

/// Token, expert, weight and x of a slot that has a row.
[[nodiscard]] slot_pass begin_slot(layer_desc const& layer, layer_call const& call,
                                   planned const& rows, index_t slot);

/// The slot must have a row.
[[nodiscard]] slot_pass pass_slot(layer_desc const& layer, layer_call const& call,
                                  planned const& rows, index_t slot, pass_use use);

/// top_k of the call that was planned.
[[nodiscard]] index_t slots_per_token(layer_call const& call, planned const& rows);

}  // namespace moe64::oracle
