#pragma once

#include "checkpoint/convert/plan.hpp"

#include <string>
#include <string_view>

namespace moe64::checkpoint {

inline constexpr std::string_view converted_index_name = "model.safetensors.index.json";

/// The index of the planned shards, as the Hub's libraries write it.
[[nodiscard]] std::string index_text(conversion_plan const& plan);

}  // namespace moe64::checkpoint
