#pragma once

#include "checkpoint/files/folder.hpp"
#include "moe64/diff.hpp"

#include <vector>

namespace moe64::checkpoint {

/// Keys of the configs that do not say the same, in the order of the first, then those that only
/// the second has. A list is one value.
[[nodiscard]] std::vector<config_difference> config_differences(folder const& first,
                                                                folder const& second);

}  // namespace moe64::checkpoint
