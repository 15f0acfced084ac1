// A merge that is stopped at any call, and goes on.

#include "checkpoint/convert/resume/manifest.hpp"
#include "checkpoint/merge/merge.hpp"
#include "moe64/cpu.hpp"
#include "support/adapter_builder.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <errno.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

namespace moe64::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr index_t extent = 160;
constexpr index_t experts = 2;
constexpr char const* experts_path = "model.layers.0.mlp.experts";

std::map<std::string, std::string> contents(fs::path const& folder) {
  std::map<std::string, std::string> files;
  if (!fs::exists(folder)) return files;
  for (auto const& entry : fs::directory_iterator(folder)) {
    std::string const name = entry.path().filename().string();
    std::ifstream file(entry.path(), std::ios::binary);
    if (name != checkpoint::manifest_name) {
      files[name] = {std::istreambuf_iterator<char>(file), {}};
    }
  }
  return files;
}

class merge_faults : public ::testing::Test {
 protected:
  merge_faults() {
    checkpoint_builder builder;
    builder.config(case_config(R"("model_type": "qwen3_moe", "torch_dtype": "bfloat16",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})",
                               1, extent, extent, experts));
    for (index_t expert = 0; expert < experts; ++expert) {
      for (char const* const part : {"gate_proj", "up_proj", "down_proj"}) {
        std::string const name =
            std::string(experts_path) + "." + std::to_string(expert) + "." + part + ".weight";
        builder.add(name, file_dtype::f8_e4m3, {extent, extent});
        builder.add(name + "_scale_inv", file_dtype::f32, {2, 2});
      }
    }
    write_checkpoint(source_, builder, plausible_tensors(builder), 1);
    reader_.emplace(source_.path().string());
    made_.add_experts(experts_path, experts, extent, extent);
    made_.write(adapter_);
    options_.to = convert_target::same;
    options_.shard_bytes = 60'000;
    report_ = merge("whole");
    whole_ = contents(parent_.path() / "whole");
    EXPECT_GT(whole_.size(), 3U);
  }

  merge_report merge(std::string const& out,
                     checkpoint::file_system const& files = checkpoint::posix_files()) {
    return checkpoint::merge_files(reader_->internals(), adapter_.path().string(),
                                   parent_.file(out), options_, cpu_stream(), {}, {files, false});
  }

  /// Ends it where the second file gets its name.
  void merge_a_part(std::string const& out) {
    faulty_files files;
    index_t renames = 0;
    files.before = [&](std::string_view call, index_t) {
      return call == "rename" && ++renames >= 3 ? -EIO : 0;
    };
    EXPECT_MOE64_ERROR(merge(out, files), errc::io_failure, "name");
  }

  void expect_same_report(merge_report const& found) const {
    ASSERT_EQ(found.merged.size(), report_.merged.size());
    for (std::size_t i = 0; i < found.merged.size(); ++i) {
      EXPECT_EQ(found.merged[i].tensor, report_.merged[i].tensor);
      EXPECT_EQ(found.merged[i].delta, report_.merged[i].delta);
      EXPECT_EQ(found.merged[i].kept, report_.merged[i].kept);
      EXPECT_EQ(found.merged[i].error, report_.merged[i].error);
    }
  }

  temp_folder source_;
  temp_folder adapter_;
  temp_folder parent_;
  adapter_builder made_;
  merge_options options_;
  merge_report report_;
  std::optional<checkpoint_reader> reader_;
  std::map<std::string, std::string> whole_;
};

TEST_F(merge_faults, killed_at_every_call_it_goes_on_to_the_same_bytes_and_report) {
  faulty_files counting;
  merge("count", counting);
  auto const calls = static_cast<index_t>(counting.calls.size());
  ASSERT_GT(calls, 80);
  for (index_t at = 1; at <= calls; ++at) {
    faulty_files files;
    files.before = [&](std::string_view, index_t number) { return number >= at ? -EIO : 0; };
    try {
      merge("out", files);
    } catch (error const& refused) {
      ASSERT_EQ(refused.code(), errc::io_failure) << at << ": " << refused.what();
    }
    for (auto const& [name, text] : contents(parent_.path() / "out")) {
      if (name.ends_with(".partial") || name == ".moe64.lock") continue;
      ASSERT_TRUE(whole_.contains(name) && whole_.at(name) == text) << at << ": " << name;
    }
    merge_report const report = merge("out");
    ASSERT_EQ(contents(parent_.path() / "out"), whole_) << at;
    expect_same_report(report);
    fs::remove_all(parent_.path() / "out");
  }
}

TEST_F(merge_faults, whole_shards_and_what_they_report_are_kept) {
  merge_a_part("out");
  merge_report const report = merge("out");
  EXPECT_EQ(report.shards_kept, 1);
  expect_same_report(report);
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
}

TEST_F(merge_faults, another_adapter_starts_over) {
  merge_a_part("out");
  made_.add(experts_path, 4 * experts, extent, extent, 0.5);
  std::memcpy(made_.a(experts_path).bytes.data(), "\0\0\0\0", 4);
  made_.write(adapter_);
  merge_report const report = merge("out");
  EXPECT_EQ(report.shards_kept, 0);
  EXPECT_THAT(report.notes, Contains(HasSubstr("adapter changed")));
  EXPECT_NE(contents(parent_.path() / "out"), whole_);
  made_.members["lora_alpha"] = "7";
  made_.write(adapter_);
  EXPECT_MOE64_ERROR(merge("out"), errc::invalid_argument, "finished", "adapter changed");
  options_.layout = adapter_layout::unsloth;
  EXPECT_MOE64_ERROR(merge("whole"), errc::invalid_argument, "finished", "adapter changed");
}

TEST_F(merge_faults, an_adapter_that_changes_meanwhile_is_an_error) {
  faulty_files files;
  bool touched = false;
  files.before = [&](std::string_view call, index_t) {
    if (call == "write_at" && !touched) {
      touched = true;
      fs::last_write_time(adapter_.path() / "adapter_model.safetensors",
                          fs::file_time_type::clock::now() + std::chrono::hours(2));
    }
    return 0;
  };
  EXPECT_MOE64_ERROR(merge("out", files), errc::io_failure, "adapter_model.safetensors");
}

}  // namespace
}  // namespace moe64::test
