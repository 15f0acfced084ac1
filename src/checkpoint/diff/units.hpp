#pragma once

#include "checkpoint/convert/plan.hpp"
#include "checkpoint/load/opened.hpp"
#include "checkpoint/naming/part.hpp"

#include <deque>
#include <map>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// One thing that two checkpoints may both have: the matrix of one expert, a module, a tensor.
struct diff_unit {
  std::string tensor;                        ///< what to call it
  std::string stored;                        ///< how it is stored; safe to print
  std::vector<tensor_entry const*> entries;  ///< every tensor that it is made of
  bool readable = false;                     ///< it has numbers: `job` says how to read its rows
  bool of_activations = false;
  conversion_job job;
};

/// Everything in a part of a checkpoint, by a key that does not depend on how it is stored.
struct diff_side {
  std::deque<stored_matrices> matrices;
  std::map<std::string, diff_unit> units;
};
[[nodiscard]] diff_side units_of(checkpoint_reader::state const& opened,
                                 checkpoint_part const& part = {});

}  // namespace moe64::checkpoint
