#pragma once

#include "moe64/checkpoint.hpp"
#include "nlohmann/json.hpp"

#include <string>
#include <string_view>
#include <vector>

/// Descriptions of checkpoints as people and programs read them.
namespace moe64::cli {

/// "e4m3 block:128x128 bf16, fused, transposed"
[[nodiscard]] std::string format_text(projection_description const& part);
/// Gate and up in one, where they are alike.
[[nodiscard]] std::string gate_up_text(layer_description const& layer);
/// "layer 3", "MTP layer 61"
[[nodiscard]] std::string layer_text(layer_description const& layer);
/// What a 32-bit kernel cannot reach: "gate_up 6.44 G elements, 6.00 GiB"; empty when it can.
[[nodiscard]] std::string limits_text(layer_description const& layer);
/// "1 shard", "3 shards"
[[nodiscard]] std::string counted(index_t count, std::string_view noun);
/// "1.50 G", "12.3 M"
[[nodiscard]] std::string human_count(double count);

[[nodiscard]] nlohmann::ordered_json to_json(layer_description const& layer);
[[nodiscard]] nlohmann::ordered_json to_json(checkpoint_description const& described,
                                             std::vector<finding> const& findings);

}  // namespace moe64::cli
