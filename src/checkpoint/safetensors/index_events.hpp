#pragma once

#include "checkpoint/json/events.hpp"
#include "checkpoint/safetensors/shard_index.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// Collects the weight_map and the total_size of an index. Everything else is looked at for keys
/// that appear twice, and skipped.
class index_events final : public json_events {
 public:
  index_events(std::string_view file, index_options const& options)
      : file_(file), options_(options) {}

  void null() override { scalar("null"); }
  void boolean(bool value) override { scalar(value ? "true" : "false"); }
  void natural(std::uint64_t value) override;
  void number(std::string_view text, bool integer) override;
  void text(std::string_view value) override;
  void begin_object() override;
  void key(std::string_view name) override;
  void end_object() override;
  void begin_array() override;
  void end_array() override;

  struct raw_entry {
    std::uint32_t name_begin;
    std::uint32_t name_bytes;
    std::uint32_t file;
  };
  std::vector<raw_entry> entries;
  std::vector<char> names;
  std::map<std::string, std::uint32_t, std::less<>> files;  ///< numbered as they appear
  std::optional<index_t> total_size;
  std::string total_size_problem;
  std::string unknown_key;
  bool has_weight_map = false;

 private:
  [[noreturn]] void refuse(std::string_view found) const;
  [[nodiscard]] std::string_view current_name() const;
  [[nodiscard]] bool at_total_size() const;
  void scalar(std::string_view found);
  void add(std::string_view file);

  std::string_view file_;
  index_options options_;
  std::vector<std::set<std::string, std::less<>>> keys_;  // of the open objects but weight_map
  std::vector<char> open_;                                // '{' or '['
  std::string top_key_;
  std::string inner_key_;
  bool in_weight_map_ = false;
  std::uint32_t last_file_ = 0;
  std::string last_file_name_;
};

}  // namespace moe64::checkpoint
