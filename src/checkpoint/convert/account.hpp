#pragma once

#include "checkpoint/convert/shard.hpp"
#include "checkpoint/load/opened.hpp"
#include "moe64/convert.hpp"

#include <vector>

namespace moe64::checkpoint {

/// Fills in what became of every tensor, the counts, and what makes the result doubtful.
void account_for(checkpoint_reader::state const& from, conversion_plan const& plan,
                 std::vector<shard_record> const& records, convert_report& report);

}  // namespace moe64::checkpoint
