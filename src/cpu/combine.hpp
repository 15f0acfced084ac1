#pragma once

#include "moe64/routing.hpp"

/// What the implementations of combine and slot_weight_gradient share.
namespace moe64::cpu {

/// The last expert that begins at or before the row; empty experts begin where the next one does.
[[nodiscard]] index_t expert_of_row(routing_plan const& plan, index_t row);

}  // namespace moe64::cpu
