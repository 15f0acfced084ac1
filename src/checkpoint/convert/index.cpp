#include "checkpoint/convert/index.hpp"

#include "checkpoint/json/write.hpp"

#include <fmt/format.h>

#include <map>

namespace moe64::checkpoint {

std::string index_text(conversion_plan const& plan) {
  std::map<std::string_view, std::string_view> names;
  index_t total = 0;
  for (planned_shard const& shard : plan.shards) {
    total += shard.tensor_bytes;
    for (new_tensor const& tensor : shard.tensors) names.emplace(tensor.name, shard.name);
  }
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  bool first = true;
  for (auto const& [tensor, file] : names) {
    text += first ? "\n    " : ",\n    ";
    first = false;
    append_json_text(text, tensor);
    text += ": ";
    append_json_text(text, file);
  }
  return text + "\n  }\n}\n";
}

}  // namespace moe64::checkpoint
