#include "support/checkpoint_files.hpp"

#include "checkpoint/files/output_folder.hpp"
#include "checkpoint/safetensors/writer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace moe64::test {
namespace {

std::vector<std::byte> content_of(checkpoint_builder const& from, std::string const& name) {
  std::vector<std::byte> bytes = from.bytes_of(name);
  if (name.ends_with(".weight_shape") && bytes.size() == 16) {
    bool const down = name.find("down_proj") != std::string::npos;
    std::array<std::int64_t, 2> const shape = {down ? case_extents::hidden : case_extents::inter,
                                               down ? case_extents::inter : case_extents::hidden};
    std::memcpy(bytes.data(), shape.data(), bytes.size());
  }
  return bytes;
}

}  // namespace

index_t scales_apart(std::string const& name) {
  return name.ends_with("weight") || name.ends_with("_packed") || name.ends_with("_blocks") ||
                 name.ends_with("_proj")
             ? 0
             : 1;
}

std::string shard_name(index_t shard, index_t shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

void write_checkpoint(temp_folder const& into, checkpoint_builder const& from,
                      shard_rule const& shard_of, index_t shards) {
  checkpoint::output_folder const folder(checkpoint::posix_files(), into.path().string());
  std::string weight_map;
  index_t total = 0;
  for (index_t shard = 0; shard < shards; ++shard) {
    std::vector<checkpoint::new_tensor> tensors;
    for (std::string const& name : from.names()) {
      if (shard_of(name) != shard) continue;
      tensors.push_back({name, from.type_of(name), from.shape_of(name)});
      weight_map += fmt::format(R"({}"{}": "{}")", weight_map.empty() ? "" : ", ", name,
                                shard_name(shard, shards));
    }
    checkpoint::safetensors_writer writer(folder, shard_name(shard, shards), tensors, {});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const bytes = content_of(from, tensors[i].name);
      writer.append(static_cast<index_t>(i), bytes);
      total += static_cast<index_t>(bytes.size());
    }
    (void)writer.finish();
  }
  into.write("model.safetensors.index.json",
             fmt::format(R"({{"metadata": {{"total_size": {}}}, "weight_map": {{{}}}}})", total,
                         weight_map));
  constexpr std::array<char const*, 3> names = {"config.json", "hf_quant_config.json",
                                                "params.json"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!from.texts()[i].empty()) into.write(names[i], from.texts()[i]);
  }
}

}  // namespace moe64::test
