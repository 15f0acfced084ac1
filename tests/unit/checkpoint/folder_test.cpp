#include "checkpoint/files/folder.hpp"

#include "checkpoint/safetensors/shard_index.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <errno.h>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

namespace moe64::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::temp_folder;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

/// A file of U8 tensors, each filled with the first letter of its name.
std::string tensors_file(std::vector<std::pair<std::string, index_t>> const& tensors) {
  std::string header = "{";
  std::string data;
  for (auto const& [name, bytes] : tensors) {
    std::string const begin = std::to_string(data.size());
    data.append(static_cast<std::size_t>(bytes), name[0]);
    if (header.size() > 1) header += ',';
    header += test::entry_text(name, "U8", std::to_string(bytes),
                               begin + "," + std::to_string(data.size()));
  }
  return test::safetensors_bytes(header + "}", data);
}

constexpr std::string_view first_file = "model-00001-of-00002.safetensors";
constexpr std::string_view second_file = "model-00002-of-00002.safetensors";
constexpr std::string_view index_file = "model.safetensors.index.json";

/// Tensors a, c in the first shard and b in the second.
void write_shards(temp_folder const& folder) {
  folder.write(first_file, tensors_file({{"a", 3}, {"c", 5}}));
  folder.write(second_file, tensors_file({{"b", 4}}));
}

void write_index(temp_folder const& folder, std::string_view map, index_t total = 12) {
  folder.write(index_file, "{\"metadata\":{\"total_size\":" + std::to_string(total) +
                               "},\"weight_map\":{" + std::string(map) + "}}");
}

std::string map_line(std::string_view name, std::string_view file) {
  return "\"" + std::string(name) + "\":\"" + std::string(file) + "\"";
}

std::string right_map() {
  return map_line("a", first_file) + "," + map_line("b", second_file) + "," +
         map_line("c", first_file);
}

std::vector<std::string> rules(folder const& opened) {
  std::vector<std::string> result;
  for (finding const& one : opened.warnings()) result.push_back(one.rule);
  return result;
}

std::string content(folder const& opened, std::string_view name) {
  tensor_entry const* const tensor = opened.find(name);
  std::string bytes(static_cast<std::size_t>(tensor->bytes), '?');
  opened.read(*tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(CheckpointFolder, OpensShardsThroughTheirIndex) {
  temp_folder const place;
  write_shards(place);
  write_index(place, right_map());
  place.write("config.json", R"({"model_type":"glm"})");
  place.write("hf_quant_config.json", R"({"quantization":{}})");
  folder opened = folder::open(place.path());
  EXPECT_THAT(rules(opened), IsEmpty());
  ASSERT_EQ(opened.shards().size(), 2U);
  EXPECT_EQ(opened.shards()[0].name, first_file);
  EXPECT_EQ(opened.shards()[0].tensors, 2);
  EXPECT_EQ(opened.shards()[1].bytes, static_cast<index_t>(place.read(second_file).size()));
  ASSERT_EQ(opened.tensors().size(), 3U);
  EXPECT_EQ(opened.tensors()[1].name, "b");
  EXPECT_EQ(opened.tensors()[1].shard, 1);
  EXPECT_EQ(content(opened, "a"), "aaa");
  EXPECT_EQ(content(opened, "b"), "bbbb");
  EXPECT_EQ(content(opened, "c"), "ccccc");
  EXPECT_EQ(opened.find("d"), nullptr);
  EXPECT_EQ(opened.find(""), nullptr);
  EXPECT_EQ(opened.config()->at("model_type").text(), "glm");
  EXPECT_NE(opened.hf_quant_config(), nullptr);
  EXPECT_EQ(opened.params(), nullptr);
  folder const moved = std::move(opened);
  EXPECT_EQ(content(moved, "b"), "bbbb");
}

TEST(CheckpointFolder, AFileAloneHasTheConfigsBesideIt) {
  temp_folder const place;
  place.write(first_file, tensors_file({{"a", 1}}));
  place.write("config.json", R"({"model_type":"glm"})");
  folder const opened = folder::open(place.path() / first_file);
  EXPECT_TRUE(opened.is_single_file());
  ASSERT_NE(opened.config(), nullptr);
  EXPECT_EQ(opened.config()->at("model_type").text(), "glm");
  place.write("config.json", "{broken");
  EXPECT_THAT(rules(folder::open(place.path() / first_file)), ElementsAre("neighbour-config"));
}

TEST(CheckpointFolder, OpensWithoutAnIndex) {
  temp_folder const place;
  place.write("model.safetensors", tensors_file({{"x", 1}}));
  EXPECT_THAT(rules(folder::open(place.path())), IsEmpty());
  place.write("adapter.safetensors", tensors_file({{"y", 1}}));
  folder const single = folder::open(place.path());
  EXPECT_EQ(single.tensors().size(), 1U);
  EXPECT_THAT(rules(single), ElementsAre("extra-file"));
  EXPECT_EQ(folder::open(place.file("adapter.safetensors")).tensors()[0].name, "y");
  fs::remove(place.file("model.safetensors"));
  place.write("zone.safetensors", tensors_file({{"z", 1}}));
  folder const several = folder::open(place.path());
  EXPECT_EQ(several.tensors().size(), 2U);
  EXPECT_THAT(rules(several), ElementsAre("no-index"));
}

TEST(CheckpointFolder, NumberedShardsWithoutAnIndexHaveToBeWhole) {
  temp_folder const place;
  write_shards(place);
  folder const opened = folder::open(place.path());
  EXPECT_EQ(opened.tensors().size(), 3U);
  EXPECT_THAT(rules(opened), ElementsAre("no-index"));
  std::string const shard = place.read(second_file);
  fs::remove(place.file(second_file));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "1 of 2 numbered shards");
  place.write("model-00003-of-00002.safetensors", shard);
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "numbered shards");
  fs::rename(place.file("model-00003-of-00002.safetensors"), place.file(second_file));
  place.write("consolidated.safetensors", tensors_file({{"q", 1}}));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::invalid_argument, "more than one set",
                     "'consolidated.safetensors'");
}

TEST(CheckpointFolder, ATensorInTwoShardsIsAnError) {
  temp_folder const place;
  place.write(first_file, tensors_file({{"a", 3}}));
  place.write(second_file, tensors_file({{"a", 4}}));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "tensor 'a'", first_file,
                     second_file);
  write_index(place, map_line("a", first_file) + "," + map_line("b", second_file));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "tensor 'a'", first_file,
                     second_file);
}

TEST(CheckpointFolder, TheIndexHasToAgreeWithTheShards) {
  temp_folder const place;
  write_shards(place);
  auto const open = [&](std::string_view map) {
    write_index(place, map);
    return folder::open(place.path());
  };
  std::string const a = map_line("a", first_file);
  std::string const b = map_line("b", second_file);
  std::string const c = map_line("c", first_file);
  EXPECT_MOE64_ERROR(open(a + "," + b), errc::malformed_file, "'c' is not in the index",
                     first_file);
  EXPECT_MOE64_ERROR(open(b + "," + c), errc::malformed_file, "'a' is not in the index");
  EXPECT_MOE64_ERROR(open(a + "," + b + "," + c + "," + map_line("d", second_file)),
                     errc::malformed_file, "'d' is in the index, but not in", second_file);
  EXPECT_MOE64_ERROR(open(a + "," + map_line("aa", first_file) + "," + b + "," + c),
                     errc::malformed_file, "'aa' is in the index, but not in");
  EXPECT_MOE64_ERROR(open(map_line("a", second_file) + "," + b + "," + c), errc::malformed_file,
                     "'a' is not where the index says", first_file);
  EXPECT_MOE64_ERROR(open(a + "," + c + "," + map_line("b", "none.safetensors")), errc::io_failure,
                     "none.safetensors", "No such file");
}

TEST(CheckpointFolder, OddButLegalFoldersAreReported) {
  temp_folder const place;
  write_shards(place);
  write_index(place, right_map(), 13);
  EXPECT_THAT(rules(folder::open(place.path())), ElementsAre("total-size"));
  write_index(place, right_map());
  place.write("consolidated.safetensors", "whatever");
  EXPECT_THAT(rules(folder::open(place.path())), ElementsAre("extra-file"));
  fs::remove(place.file("consolidated.safetensors"));
  write_index(place, map_line("a", first_file) + "," + map_line("c", first_file), 8);
  EXPECT_THAT(rules(folder::open(place.path())), ElementsAre("extra-file", "shard-count"));
}

TEST(CheckpointFolder, AChoiceOfIndicesIsTheCallersChoice) {
  temp_folder const place;
  place.write("x.safetensors", tensors_file({{"x", 1}}));
  place.write("y.safetensors", tensors_file({{"y", 1}}));
  auto const index = [](std::string_view name) {
    return "{\"metadata\":{\"total_size\":1},\"weight_map\":{" +
           map_line(name, std::string(name) + ".safetensors") + "}}";
  };
  place.write("x.safetensors.index.json", index("x"));
  EXPECT_EQ(folder::open(place.path()).tensors()[0].name, "x");
  place.write("y.safetensors.index.json", index("y"));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::invalid_argument, "several indices",
                     "'x.safetensors.index.json'", "'y.safetensors.index.json'");
  EXPECT_EQ(
      folder::open(place.path(), {.index_name = "y.safetensors.index.json"}).tensors()[0].name,
      "y");
  EXPECT_MOE64_ERROR(folder::open(place.path(), {.index_name = "../i.json"}),
                     errc::invalid_argument, "'../i.json'");
  place.write(index_file, index("y"));
  folder const usual = folder::open(place.path());
  EXPECT_EQ(usual.tensors()[0].name, "y");
  EXPECT_THAT(rules(usual), Contains("other-index"));
}

TEST(CheckpointFolder, HostileFoldersAreErrors) {
  temp_folder const place;
  EXPECT_MOE64_ERROR(folder::open(place.file("none")), errc::io_failure, "No such file");
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "neither an index");
  EXPECT_MOE64_ERROR(folder::open("/dev/zero"), errc::io_failure, "device");
  EXPECT_MOE64_ERROR(folder::open(place.write("text.txt", "hello, world")), errc::malformed_file,
                     "text.txt");
  // The index points at things that are no files, or at one file under two names.
  std::string const x = "x.safetensors";
  write_index(place, map_line("x", x), 1);
  fs::create_directory(place.file(x));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::io_failure, "is a folder");
  fs::remove(place.file(x));
  ASSERT_EQ(::mkfifo(place.file(x).c_str(), 0600), 0);
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::io_failure, "FIFO");
  fs::remove(place.file(x));
  fs::create_symlink("/dev/zero", place.file(x));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::io_failure, "symbolic link");
  EXPECT_MOE64_ERROR(folder::open(place.path(), {.links = link_rule::any}), errc::io_failure,
                     "device");
  fs::remove(place.file(x));
  fs::create_symlink(index_file, place.file(x));
  EXPECT_MOE64_ERROR(folder::open(place.path(), {.links = link_rule::any}), errc::malformed_file,
                     "x.safetensors");
  fs::remove(place.file(x));
  place.write(x, tensors_file({{"x", 1}}));
  EXPECT_NO_THROW(folder::open(place.path()));
  fs::create_hard_link(place.file(x), place.file("y.safetensors"));
  write_index(place, map_line("x", x) + "," + map_line("y", "y.safetensors"), 2);
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "same file");
  fs::remove(place.file("y.safetensors"));
  write_index(place, map_line("x", x), 1);
  place.write("config.json", "{\"a\":1,\"a\":2}");
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "config.json", "twice");
  place.write("config.json", std::string((16 << 20) + 1, ' '));
  EXPECT_MOE64_ERROR(folder::open(place.path()), errc::malformed_file, "config.json", "more than");
}

TEST(CheckpointFolder, LimitsHoldForAllShardsTogether) {
  temp_folder const place;
  write_shards(place);
  EXPECT_NO_THROW(folder::open(place.path(), {.max_tensors = 3}));
  EXPECT_MOE64_ERROR(folder::open(place.path(), {.max_tensors = 2}), errc::malformed_file,
                     second_file, "tensors");
}

TEST(CheckpointFolder, OpensSnapshotsOfTheHubCache) {
  temp_folder const place;
  fs::create_directories(place.file("blobs"));
  fs::create_directories(place.file("snapshots/rev"));
  place.write("blobs/b1", tensors_file({{"a", 2}}));
  place.write("blobs/b2", "{\"model_type\":\"m\"}");
  fs::create_symlink("../../blobs/b1", place.file("snapshots/rev/model.safetensors"));
  fs::create_symlink("../../blobs/b2", place.file("snapshots/rev/config.json"));
  folder const opened = folder::open(place.file("snapshots/rev"));
  EXPECT_EQ(content(opened, "a"), "aa");
  EXPECT_NE(opened.config(), nullptr);
  EXPECT_MOE64_ERROR(folder::open(place.file("snapshots/rev"), {.links = link_rule::none}),
                     errc::io_failure, "links are not followed");
}

TEST(CheckpointFolder, ReadsPiecesInsideATensorOnly) {
  temp_folder const place;
  place.write("model.safetensors", tensors_file({{"a", 6}, {"b", 2}}));
  for (read_mode const mode : {read_mode::positioned, read_mode::mapped}) {
    folder const opened = folder::open(place.path(), {.mode = mode});
    tensor_entry const& a = *opened.find("a");
    std::vector<std::byte> bytes(3);
    opened.read(a, 3, bytes);
    EXPECT_EQ(std::memcmp(bytes.data(), "aaa", 3), 0);
    EXPECT_NO_THROW(opened.read(a, 6, {}));
    EXPECT_MOE64_ERROR(opened.read(a, 4, bytes), errc::invalid_argument, "'a'", "4 + 3 of 6");
    EXPECT_MOE64_ERROR(opened.read(a, -1, bytes), errc::invalid_argument, "-1");
    EXPECT_MOE64_ERROR(opened.read(a, 7, {}), errc::invalid_argument, "7");
    tensor_entry forged = a;
    forged.shard = 1;
    EXPECT_MOE64_ERROR(opened.read(forged, 0, bytes), errc::invalid_argument, "shard 1 of 1");
    forged = a;
    forged.begin = INT64_MAX - 1;
    EXPECT_MOE64_ERROR(opened.read(forged, 0, bytes), errc::invalid_argument, "outside");
    EXPECT_NO_THROW(opened.check_unchanged(0));
  }
}

TEST(CheckpointFolder, AFileTruncatedAfterOpeningIsAnError) {
  for (read_mode const mode : {read_mode::positioned, read_mode::mapped}) {
    temp_folder const place;
    std::string const path =
        place.write("model.safetensors", tensors_file({{"a", 600}, {"b", 200}}));
    folder const opened = folder::open(place.path(), {.mode = mode});
    fs::resize_file(path, fs::file_size(path) - 100);
    EXPECT_MOE64_ERROR(content(opened, "b"), errc::io_failure, "model.safetensors", "had");
    EXPECT_MOE64_ERROR(opened.check_unchanged(0), errc::io_failure, "had");
  }
}

TEST(CheckpointFolder, AnyCallThatFailsIsATypedError) {
  temp_folder const place;
  write_shards(place);
  write_index(place, right_map());
  place.write("config.json", "{}");
  test::faulty_files counted;
  EXPECT_NO_THROW(folder::open(place.path(), {.files = &counted}));
  auto const total = static_cast<index_t>(counted.calls.size());
  ASSERT_GT(total, 15);
  for (index_t failing = 1; failing <= total; ++failing) {
    test::faulty_files files;
    files.before = [&](std::string_view, index_t number) { return number == failing ? -EIO : 0; };
    try {
      static_cast<void>(folder::open(place.path(), {.files = &files}));
      // Only what happens after everything was read may fail unseen.
      EXPECT_EQ(counted.calls[static_cast<std::size_t>(failing - 1)], "close");
    } catch (error const& caught) {
      EXPECT_EQ(caught.code(), errc::io_failure) << caught.what();
    }
  }
}

TEST(CheckpointFolder, SeveralThreadsMayRead) {
  temp_folder const place;
  place.write("model.safetensors", tensors_file({{"a", 100000}, {"b", 100000}}));
  folder const opened = folder::open(place.path());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string const expected(100000, t % 2 == 0 ? 'a' : 'b');
      for (int i = 0; i < 20; ++i) wrong[t] += content(opened, t % 2 == 0 ? "a" : "b") != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace moe64::checkpoint
