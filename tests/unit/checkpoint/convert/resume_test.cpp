// A conversion that goes on where another one ended: what it may keep, and what it may remove.

#include "checkpoint/convert/files.hpp"
#include "checkpoint/convert/resume/manifest.hpp"
#include "checkpoint/files/checksum.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

constexpr index_t extent = 200;  // two blocks of 100, or of 128
constexpr index_t experts = 4;

std::string config_with_block(int block) {
  std::string const size = std::to_string(block);
  return R"({"model_type": "qwen3_moe", "hidden_size": 200, "moe_intermediate_size": 200,
 "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1, "hidden_act": "silu",
 "torch_dtype": "bfloat16",
 "quantization_config": {"quant_method": "fp8", "weight_block_size": [)" +
         size + ", " + size + "]}}";
}

checkpoint_builder builder_with_block(int block) {
  checkpoint_builder builder;
  builder.config(config_with_block(block));
  for (index_t expert = 0; expert < experts; ++expert) {
    for (char const* const part : {"gate_proj", "up_proj", "down_proj"}) {
      std::string const name =
          "model.layers.0.mlp.experts." + std::to_string(expert) + "." + part + ".weight";
      builder.add(name, file_dtype::f8_e4m3, {extent, extent});
      builder.add(name + "_scale_inv", file_dtype::f32, {2, 2});
    }
  }
  return builder;
}

std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> contents(fs::path const& folder) {
  std::map<std::string, std::string> files;
  if (!fs::exists(folder)) return files;
  for (auto const& entry : fs::directory_iterator(folder)) {
    std::string const name = entry.path().filename().string();
    if (name != checkpoint::manifest_name) files[name] = text_of(entry.path());
  }
  return files;
}

class convert_resume : public ::testing::Test {
 protected:
  convert_resume() {
    checkpoint_builder const builder = builder_with_block(128);
    write_checkpoint(source_, builder, plausible_tensors(builder), 2);
    source_.write("tokenizer.json", "{\"a\": 1}");
    options_.shard_bytes = 250'000;  // several files
    reopen();
  }

  void reopen() { reader_.emplace(source_.path().string()); }

  convert_report convert(std::string const& out,
                         checkpoint::file_system const& files = checkpoint::posix_files()) {
    return checkpoint::convert_files(reader_->internals(), parent_.file(out), options_,
                                     cpu_stream(), {}, {files, false});
  }

  /// As if the process had been killed at its call number `at`: nothing that follows happens.
  /// False when it was done by then.
  bool convert_killed_at(std::string const& out, index_t at) {
    faulty_files files;
    files.before = [&](std::string_view, index_t number) { return number >= at ? -EIO : 0; };
    try {
      convert(out, files);
      return static_cast<index_t>(files.calls.size()) >= at;
    } catch (error const&) {
      return true;
    }
  }

  /// With some shards under their names, and no config.
  void convert_a_part(std::string const& out) {
    faulty_files files;
    index_t renames = 0;
    files.before = [&](std::string_view call, index_t) {
      return call == "rename" && ++renames >= 4 ? -EIO : 0;
    };
    EXPECT_MOE64_ERROR(convert(out, files), errc::io_failure, "name");
    ASSERT_TRUE(fs::exists(parent_.path() / out / first_shard()));
    ASSERT_FALSE(fs::exists(parent_.path() / out / "config.json"));
  }

  [[nodiscard]] std::string first_shard() const {
    return options_.shard_bytes < 300'000 ? "model-00001-of-00004.safetensors" : "";
  }

  void put(std::string const& out, std::string const& name, std::string const& text) const {
    std::ofstream(parent_.path() / out / name, std::ios::binary) << text;
  }

  temp_folder source_;
  temp_folder parent_;
  convert_options options_;
  std::optional<checkpoint_reader> reader_;
};

TEST_F(convert_resume, a_corrected_declaration_starts_over) {
  source_.write("config.json", config_with_block(100));
  reopen();
  convert_a_part("out");
  source_.write("config.json", config_with_block(128));
  reopen();
  auto const report = convert("out");
  EXPECT_EQ(report.shards_kept, 0);
  EXPECT_THAT(report.notes, Contains(HasSubstr("declaration changed")));
  convert("fresh");
  EXPECT_TRUE(contents(parent_.path() / "out") == contents(parent_.path() / "fresh"));
}

TEST_F(convert_resume, a_finished_conversion_of_another_declaration_is_refused) {
  source_.write("config.json", config_with_block(100));
  reopen();
  convert("out");
  auto const whole = contents(parent_.path() / "out");
  source_.write("config.json", config_with_block(128));
  reopen();
  EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "finished conversion", "declaration");
  EXPECT_TRUE(contents(parent_.path() / "out") == whole);
}

TEST_F(convert_resume, every_config_and_the_arithmetic_are_part_of_the_identity) {
  auto const expect_start_over = [&](std::string_view changed) {
    auto const report = convert("out");
    EXPECT_EQ(report.shards_kept, 0) << changed;
    EXPECT_THAT(report.notes, Contains(HasSubstr(std::string(changed) + " changed")));
    fs::remove_all(parent_.path() / "out");
  };
  convert_a_part("out");
  source_.write("config.json", config_with_block(128) + "\n");
  reopen();
  expect_start_over("declaration");
  convert_a_part("out");
  source_.write("params.json", "{}");
  reopen();
  expect_start_over("declaration");
  convert_a_part("out");
  std::string manifest = text_of(parent_.path() / "out" / checkpoint::manifest_name);
  std::size_t const at = manifest.find("arithmetic ");
  ASSERT_NE(at, std::string::npos);
  manifest.insert(at + std::string_view("arithmetic ").size(), "9");
  put("out", std::string(checkpoint::manifest_name), manifest);
  expect_start_over("library");
}

TEST_F(convert_resume, the_same_arithmetic_writes_the_same_bytes) {
  // When a sum changes, results of this version differ from those of an earlier one: raise
  // conversion_arithmetic, then put the new sums here.
  ASSERT_EQ(checkpoint::conversion_arithmetic, 1);
  struct expected {
    int block;
    convert_target to;
    std::string sum;
  };
  for (expected const& one : {expected{128, convert_target::bf16, "87e0c16794413fe0"},
                              {128, convert_target::f16, "ebfc4f4e0501fd30"},
                              {128, convert_target::fp8_row, "a9676d76d25acd51"},
                              {100, convert_target::fp8_block, "38210f359211458e"}}) {
    source_.write("config.json", config_with_block(one.block));
    reopen();
    options_.to = one.to;
    std::string const out(name(one.to));
    convert(out);
    checkpoint::checksum sum;
    for (auto const& [name, tensor] : read_tensors(parent_.file(out))) {
      sum.add(std::as_bytes(std::span(name)));
      sum.add(tensor.bytes);
    }
    EXPECT_EQ(checkpoint::hex(sum.value()), one.sum) << out;
  }
}

TEST_F(convert_resume, all_configs_that_are_there_are_documents_of_the_folder) {
  for (char const* const name : {"hf_quant_config.json", "params.json"}) source_.write(name, "{}");
  checkpoint::folder const opened = checkpoint::folder::open(source_.path());
  std::vector<std::string> names;
  for (auto const& document : opened.documents()) names.push_back(document.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"config.json", "hf_quant_config.json", "params.json"}));
}

TEST_F(convert_resume, starting_over_removes_no_file_that_it_did_not_write) {
  convert_a_part("out");
  fs::path const out = parent_.path() / "out";
  std::map<std::string, std::string> const foreign = {
      {"adapter_model.safetensors", "weeks of training"},
      {"download.partial", "half of something"},
      {"model-00004-of-00004.safetensors", "has a name of ours, and was not written by us"},
      {"config.json", "{\"mine\": true}"},
      {"params.json", "{}"},
      {"model.safetensors.index.json", "{\"weight_map\": {}}"},
  };
  options_.shard_bytes = 700'000;
  for (auto const& [name, text] : foreign) {
    put("out", name, text);
    auto const before = contents(out);
    EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "'" + name + "'", "not what");
    EXPECT_TRUE(contents(out) == before) << name;
    fs::remove(out / name);
  }
  EXPECT_EQ(convert("out").shards_kept, 0);
  convert("fresh");
  EXPECT_TRUE(contents(out) == contents(parent_.path() / "fresh"));
}

TEST_F(convert_resume, going_on_overwrites_no_file_that_it_did_not_write) {
  convert_a_part("out");
  fs::path const out = parent_.path() / "out";
  // the last three are no outputs, but would say how the result is read
  for (std::string const name : {"config.json", "tokenizer.json", "model.safetensors.index.json",
                                 "model-00004-of-00004.safetensors", "hf_quant_config.json",
                                 "params.json", "consolidated.safetensors.index.json"}) {
    put("out", name, "somebody else's");
    auto const before = contents(out);
    EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "'" + name + "'", "not what");
    EXPECT_TRUE(contents(out) == before) << name;
    fs::remove(out / name);
  }
  put("out", "adapter_model.safetensors", "weeks of training");
  put("out", "model-00004-of-00004.safetensors.partial", "a download");
  auto const report = convert("out");
  EXPECT_GT(report.shards_kept, 0);
  EXPECT_THAT(report.notes, Contains(HasSubstr("'adapter_model.safetensors'")));
  EXPECT_EQ(text_of(out / "adapter_model.safetensors"), "weeks of training");
  EXPECT_EQ(text_of(out / "model-00004-of-00004.safetensors.partial"), "a download");
}

TEST_F(convert_resume, a_file_that_was_edited_since_is_not_overwritten) {
  convert("out");
  std::string const written = text_of(parent_.path() / "out" / "config.json");
  std::string same_size = written;
  same_size[same_size.find("silu")] = 'r';
  for (std::string const& edited : {written + " ", same_size, std::string("{}")}) {
    put("out", "config.json", edited);
    EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "'config.json'", "not what");
    EXPECT_EQ(text_of(parent_.path() / "out" / "config.json"), edited);
  }
  put("out", "config.json", written);
  convert("out");
}

TEST_F(convert_resume, a_manifest_that_is_not_understood_is_refused) {
  convert_a_part("out");
  put("out", std::string(checkpoint::manifest_name), "{\"moe64_convert\":1,\"library\":\"0\"}\n");
  auto const before = contents(parent_.path() / "out");
  EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "not understood", "format 1");
  EXPECT_TRUE(contents(parent_.path() / "out") == before);
}

TEST_F(convert_resume, a_file_that_appears_meanwhile_stays) {
  faulty_files files;
  index_t renames = 0;
  files.before = [&](std::string_view call, index_t) {
    if (call == "rename" && ++renames == 2) put("out", "config.json", "{\"mine\": true}");
    return 0;
  };
  EXPECT_MOE64_ERROR(convert("out", files), errc::invalid_argument, "config.json", "already there");
  EXPECT_EQ(text_of(parent_.path() / "out" / "config.json"), "{\"mine\": true}");
}

TEST_F(convert_resume, killed_anywhere_while_it_starts_over_the_next_run_completes_it) {
  options_.shard_bytes = 700'000;
  convert("fresh");
  auto const whole = contents(parent_.path() / "fresh");
  for (index_t at = 1;; at += 13) {
    options_.shard_bytes = 250'000;
    convert_a_part("out");
    options_.shard_bytes = 700'000;
    bool const killed = convert_killed_at("out", at);
    convert("out");
    ASSERT_TRUE(contents(parent_.path() / "out") == whole) << at;
    fs::remove_all(parent_.path() / "out");
    if (!killed) break;
    ASSERT_LT(at, 2000);
  }
}

TEST_F(convert_resume, killed_twice_what_is_whole_is_kept) {
  convert("fresh");
  auto const whole = contents(parent_.path() / "fresh");
  for (index_t at = 40; convert_killed_at("out", at); at += 17) {
    static_cast<void>(convert_killed_at("out", at / 2));
    for (auto const& [name, text] : contents(parent_.path() / "out")) {
      if (name.starts_with(".moe64")) continue;
      ASSERT_TRUE(text == whole.at(name)) << at << " " << name;
    }
    convert("out");
    ASSERT_TRUE(contents(parent_.path() / "out") == whole) << at;
    fs::remove_all(parent_.path() / "out");
  }
}

}  // namespace
}  // namespace moe64::test
