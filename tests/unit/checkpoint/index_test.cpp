#include "checkpoint/safetensors/shard_index.hpp"
#include "support/error_matcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace moe64::checkpoint {
namespace {

using testing::ElementsAre;

shard_index parsed(std::string_view text, index_options const& options = {}) {
  return shard_index::parse(text, "m.index.json", options);
}

std::string mapping(std::string_view file) {
  return "{\"weight_map\":{\"a\":\"" + std::string(file) + "\"}}";
}

std::vector<std::string> rules(std::vector<finding> const& found) {
  std::vector<std::string> result;
  for (finding const& one : found) result.push_back(one.rule);
  return result;
}

TEST(CheckpointIndex, GivesFilesAndTensorsSorted) {
  auto const index = parsed(
      R"({"metadata":{"total_size":123,"other":[{"a":1}],"x":null},)"
      R"("weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}})");
  EXPECT_THAT(index.files(), ElementsAre("m-1.safetensors", "m-2.safetensors"));
  ASSERT_EQ(index.entries().size(), 3U);
  EXPECT_EQ(index.entries()[0].name, "a");
  EXPECT_EQ(index.entries()[0].file, 0);
  EXPECT_EQ(index.entries()[1].name, "b");
  EXPECT_EQ(index.entries()[1].file, 1);
  EXPECT_EQ(index.entries()[2].file, 1);
  EXPECT_EQ(index.total_size(), 123);
  EXPECT_TRUE(index.warnings().empty());
}

TEST(CheckpointIndex, LivesWithWhatRealFilesDo) {
  for (std::string_view const metadata :
       {"{}", "null", "{\"total_size\":1.5e3}", "{\"total_size\":\"12\"}", "{\"total_size\":-1}",
        "{\"total_size\":null}", "{\"total_size\":[1]}", "{\"total_size\":18446744073709551615}"}) {
    auto const index = parsed("{\"metadata\":" + std::string(metadata) +
                              ",\"weight_map\":{\"a\":\"m.safetensors\"}}");
    EXPECT_EQ(index.total_size(), std::nullopt);
    EXPECT_THAT(rules(index.warnings()), ElementsAre("total-size")) << metadata;
  }
  auto const index = parsed(
      R"({"extra":{"deep":[1,{"x":2}]},"note":1,"metadata":{"total_size":0},"weight_map":{"a":"m.safetensors"}})");
  EXPECT_THAT(rules(index.warnings()), ElementsAre("unknown-field"));
  EXPECT_EQ(index.total_size(), 0);
}

TEST(CheckpointIndex, FileNamesStayInsideTheFolder) {
  for (std::string_view const file :
       {"../m.safetensors", "/etc/m.safetensors", "a/m.safetensors", "..", ".", "",
        "C:m.safetensors", "a\\\\m.safetensors", "m\\u0000.safetensors", "m\\n.safetensors",
        "m.bin", "m.index.json", "config.json"}) {
    EXPECT_MOE64_ERROR(parsed(mapping(file)), errc::malformed_file, "m.index.json", "'a'");
  }
  EXPECT_MOE64_ERROR(parsed(mapping(std::string(300, 'x') + ".safetensors")), errc::malformed_file,
                     "255");
  EXPECT_NO_THROW(parsed(mapping("..m..safetensors")));
}

TEST(CheckpointIndex, RefusesOtherForms) {
  for (std::string_view const text :
       {"", "[]", "null", "1", "{", "{}", "{\"metadata\":{}}", "{\"weight_map\":[]}",
        "{\"weight_map\":null}", "{\"weight_map\":{}}", "{\"weight_map\":\"a\"}",
        "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{\"a\":null}}",
        "{\"weight_map\":{\"a\":{}}}", "{\"weight_map\":{\"a\":[\"m.safetensors\"]}}",
        "{\"metadata\":[],\"weight_map\":{\"a\":\"m.safetensors\"}}",
        "{\"metadata\":1,\"weight_map\":{\"a\":\"m.safetensors\"}}",
        "{\"weight_map\":{\"a\\u0007\":\"m.safetensors\"}}",
        "{\"weight_map\":{\"../a\":\"m.safetensors\"}}"}) {
    EXPECT_MOE64_ERROR(parsed(text), errc::malformed_file, "m.index.json") << text;
  }
}

TEST(CheckpointIndex, RefusesKeysThatAppearTwice) {
  for (std::string_view const text :
       {R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})",
        R"({"weight_map":{"a":"m.safetensors","\u0061":"n.safetensors"}})",
        R"({"weight_map":{"a":"m.safetensors"},"weight_map":{"b":"m.safetensors"}})",
        R"({"metadata":{},"metadata":{},"weight_map":{"a":"m.safetensors"}})",
        R"({"metadata":{"total_size":1,"total_size":2},"weight_map":{"a":"m.safetensors"}})",
        R"({"metadata":{"x":[{"y":1,"y":1}]},"weight_map":{"a":"m.safetensors"}})"}) {
    EXPECT_MOE64_ERROR(parsed(text), errc::malformed_file, "twice") << text;
  }
}

TEST(CheckpointIndex, HoldsItsLimits) {
  std::string const text = R"({"weight_map":{"a":"m.safetensors","b":"n.safetensors"}})";
  EXPECT_NO_THROW(parsed(text, {.max_files = 2, .max_tensors = 2}));
  EXPECT_MOE64_ERROR(parsed(text, {.max_files = 1}), errc::malformed_file, "more than 1 files");
  EXPECT_MOE64_ERROR(parsed(text, {.max_tensors = 1}), errc::malformed_file, "more than 1 tensors");
  EXPECT_MOE64_ERROR(parsed(text, {.max_bytes = 10}), errc::malformed_file, "more than 10");
  EXPECT_MOE64_ERROR(parsed("{\"metadata\":{\"x\":" + std::string(1000000, '[')),
                     errc::malformed_file, "deeper than 8");
  EXPECT_MOE64_ERROR(parsed("{\"weight_map\":{\"a\":\"" + std::string(1 << 20, 'x') + "\"}}"),
                     errc::malformed_file, "longer than");
}

TEST(CheckpointIndex, WhatIsWrittenIsReadBack) {
  std::string const files[] = {"m-1.safetensors", "m-2.safetensors"};
  shard_index::entry const entries[] = {{"a", 1}, {"quote\"back\\slash", 0}, {"\xc3\xa9", 1}};
  std::string const text = shard_index_text(files, entries, 77);
  auto const index = parsed(text);
  EXPECT_EQ(index.total_size(), 77);
  ASSERT_EQ(index.entries().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(index.entries()[i].name, entries[i].name);
    EXPECT_EQ(index.entries()[i].file, entries[i].file);
  }
  shard_index::entry const bad[] = {{"\xff", 0}};
  EXPECT_MOE64_ERROR(shard_index_text(files, bad, 0), errc::invalid_argument, "UTF-8");
  shard_index::entry const control[] = {{"a\nb", 0}};
  EXPECT_MOE64_ERROR(shard_index_text(files, control, 0), errc::invalid_argument, "control");
}

TEST(CheckpointIndex, ShardNamesHaveTheirNumbers) {
  EXPECT_EQ(shard_file_name("model", 2, 13), "model-00002-of-00013.safetensors");
  EXPECT_EQ(shard_file_name("model", 123456, 123456), "model-123456-of-123456.safetensors");
  auto const parts = parse_shard_file_name("my-model-00002-of-00013.safetensors");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->stem, "my-model");
  EXPECT_EQ(parts->number, 2);
  EXPECT_EQ(parts->count, 13);
  for (std::string_view const name :
       {"model.safetensors", "", ".safetensors", "00001-of-00002.safetensors",
        "model-1.safetensors", "model-1-of-.safetensors", "model--of-2.safetensors",
        "model-1-of-2.bin", "-1-of-2.safetensors", "123.safetensors", "model-1of-2.safetensors",
        "model-12345678901-of-2.safetensors"}) {
    EXPECT_FALSE(parse_shard_file_name(name)) << name;
  }
}

TEST(CheckpointIndex, ManyTensorsTakeLinearTime) {
  std::string text = "{\"weight_map\":{";
  for (int i = 0; i < 200000; ++i) {
    text += "\"t" + std::to_string(i * 7919 % 200000) + "\":\"m-" + std::to_string(i % 97) +
            ".safetensors\",";
  }
  text.back() = '}';
  EXPECT_EQ(parsed(text + "}").entries().size(), 200000U);
}

}  // namespace
}  // namespace moe64::checkpoint
