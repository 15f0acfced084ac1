#pragma once

#include "moe64/index.hpp"

namespace moe64::cuda {

/// Where the matrices of experts are in a stack: expert_places for the device.
struct matrix_places {
  index_t const* table;  ///< null: the matrix of expert e has index e
  index_t stride;        ///< of the table
  index_t count;         ///< places of the stack
};

/// Of the values and the scales of one part of weights.
struct part_places {
  matrix_places values, scales;
};

}  // namespace moe64::cuda
