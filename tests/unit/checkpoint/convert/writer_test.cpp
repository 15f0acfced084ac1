#include "checkpoint/safetensors/writer.hpp"

#include "checkpoint/files/folder.hpp"
#include "support/error_matcher.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace moe64::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::temp_folder;
using testing::ElementsAre;

std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint64_t sum_of(std::string_view text) {
  checksum sum;
  sum.add(bytes_of(text));
  return sum.value();
}

TEST(CheckpointChecksum, IsXxh64) {
  // Values of the reference implementation, seed 0.
  EXPECT_EQ(sum_of(""), 0xef46db3751d8e999U);
  EXPECT_EQ(sum_of("a"), 0xd24ec4f1a98c6e5bU);
  EXPECT_EQ(sum_of("abc"), 0x44bc2cf5ad770999U);
  EXPECT_EQ(sum_of("The quick brown fox jumps over the lazy dog"), 0x0b242d361fda71bcU);
}

TEST(CheckpointChecksum, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37);
  std::uint64_t const whole = sum_of(text);
  for (std::size_t piece = 1; piece < 100; ++piece) {
    checksum sum;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      sum.add(bytes_of(std::string_view(text).substr(at, piece)));
    }
    EXPECT_EQ(sum.value(), whole) << piece;
  }
  for (std::size_t bit = 0; bit < 8 * text.size(); bit += 7) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(sum_of(flipped), whole);
  }
}

std::vector<new_tensor> some_tensors() {
  return {{"scale", file_dtype::f32, {2}}, {"b", file_dtype::f8_e4m3, {3, 1}},
          {"a", file_dtype::f8_e4m3, {5}}, {"empty", file_dtype::bf16, {0, 7}},
          {"scalar", file_dtype::i64, {}}, {"packed", file_dtype::f4, {3, 2}}};
}

TEST(CheckpointLayout, OrdersByAlignmentThenNameAndAlignsTheData) {
  auto const tensors = some_tensors();
  file_layout const layout = lay_out(tensors, {{"format", "pt"}});
  EXPECT_THAT(layout.order, ElementsAre(4, 0, 3, 2, 1, 5));
  index_t const data = static_cast<index_t>(layout.header.size());
  EXPECT_EQ(data % 64, 0);
  EXPECT_EQ(layout.places[4].begin, data);
  EXPECT_EQ(layout.places[0].begin, data + 8);
  EXPECT_EQ(layout.places[3].bytes, 0);
  EXPECT_EQ(layout.bytes, data + 8 + 8 + 5 + 3 + 3);
  auto const header = safetensors_header::parse(layout.header.substr(8), "x", layout.bytes);
  EXPECT_EQ(header.tensors().size(), 6U);
  EXPECT_TRUE(header.warnings().empty());
  EXPECT_THAT(header.metadata(), ElementsAre(std::pair("format", "pt")));
}

TEST(CheckpointLayout, NamesAndMetadataAreEscaped) {
  new_tensor const tensors[] = {{"q\"b\\s\xc3\xa9", file_dtype::u8, {1}}};
  file_layout const layout = lay_out(tensors, {{"k\"", std::string("v\n\0\x1f\x7f", 5)}});
  auto const header = safetensors_header::parse(layout.header.substr(8), "x", layout.bytes);
  EXPECT_EQ(header.tensors()[0].name, tensors[0].name);
  EXPECT_THAT(header.metadata(), ElementsAre(std::pair("k\"", std::string("v\n\0\x1f\x7f", 5))));
}

TEST(CheckpointLayout, RefusesWhatNoReaderWouldTake) {
  auto const refused = [](new_tensor const& tensor) {
    new_tensor const tensors[] = {tensor};
    return lay_out(tensors, {});
  };
  EXPECT_MOE64_ERROR(refused({"a\n", file_dtype::u8, {1}}), errc::invalid_argument, "control");
  EXPECT_MOE64_ERROR(refused({"\xff", file_dtype::u8, {1}}), errc::invalid_argument, "UTF-8");
  EXPECT_MOE64_ERROR(refused({"../a", file_dtype::u8, {1}}), errc::invalid_argument, "path");
  EXPECT_MOE64_ERROR(refused({"__metadata__", file_dtype::u8, {1}}), errc::invalid_argument,
                     "reserved");
  EXPECT_MOE64_ERROR(refused({std::string(4097, 'n'), file_dtype::u8, {1}}), errc::invalid_argument,
                     "4096");
  EXPECT_MOE64_ERROR(refused({"a", file_dtype::u8, {-1}}), errc::invalid_argument, "negative");
  EXPECT_MOE64_ERROR(refused({"a", file_dtype::f4, {3}}), errc::invalid_argument, "whole bytes");
  EXPECT_MOE64_ERROR(refused({"a", file_dtype::f32, {index_t{1} << 62, 4}}), errc::invalid_argument,
                     "63 bits");
  new_tensor const twice[] = {{"a", file_dtype::u8, {1}}, {"a", file_dtype::f32, {1}}};
  EXPECT_MOE64_ERROR(lay_out(twice, {}), errc::invalid_argument, "'a' is there twice");
  EXPECT_MOE64_ERROR(lay_out({}, {{"k", "1"}, {"k", "2"}}), errc::invalid_argument, "'k'", "twice");
  EXPECT_MOE64_ERROR(lay_out({}, {{"k", "\xff"}}), errc::invalid_argument, "UTF-8");
  std::vector<new_tensor> many;
  for (int i = 0; i < 7000; ++i) {
    many.push_back({std::string(4000, 'n') + std::to_string(i), file_dtype::u8, {1}});
  }
  EXPECT_MOE64_ERROR(lay_out(many, {}), errc::invalid_argument, "7000 tensors", "use more shards");
  std::vector<new_tensor> const huge(2, {"", file_dtype::u8, {(index_t{1} << 60) - 1}});
  std::vector<new_tensor> parts;
  for (int i = 0; i < 9; ++i) parts.push_back({std::to_string(i), file_dtype::u8, huge[0].shape});
  EXPECT_MOE64_ERROR(lay_out(parts, {}), errc::size_overflow, "add");
}

/// Writes some_tensors(); each is filled with its number, in two pieces.
std::uint64_t write_some(output_folder const& folder, std::string_view name, bool replace = false) {
  safetensors_writer writer(folder, name, some_tensors(), {{"format", "pt"}}, replace);
  for (std::size_t i = writer.layout().places.size(); i-- > 0;) {
    std::vector<std::byte> const fill(static_cast<std::size_t>(writer.layout().places[i].bytes),
                                      std::byte(i));
    auto const tensor = static_cast<index_t>(i);
    writer.append(tensor, std::span(fill).first(fill.size() / 2));
    writer.append(tensor, std::span(fill).subspan(fill.size() / 2));
  }
  return writer.finish();
}

TEST(CheckpointWriter, WritesWhatTheReaderReads) {
  temp_folder const place;
  std::uint64_t sum = 0;
  {
    output_folder const out(posix_files(), place.file("out/"));
    sum = write_some(out, "model.safetensors");
    EXPECT_TRUE(place.has("out/.moe64.lock"));
  }
  EXPECT_FALSE(place.has("out/.moe64.lock"));
  EXPECT_FALSE(place.has("out/.moe64-model.safetensors.partial"));
  folder const opened = folder::open(place.file("out"));
  EXPECT_TRUE(opened.warnings().empty());
  EXPECT_EQ(opened.shards()[0].data_begin % 64, 0);
  auto const tensors = some_tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensor_entry const* const entry = opened.find(tensors[i].name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->type, tensors[i].type);
    EXPECT_TRUE(std::equal(entry->shape.begin(), entry->shape.end(), tensors[i].shape.begin(),
                           tensors[i].shape.end()));
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry->bytes));
    opened.read(*entry, 0, bytes);
    EXPECT_EQ(bytes, std::vector<std::byte>(bytes.size(), std::byte(i)));
  }
  input_file const file =
      input_file::open(posix_files(), place.file("out/model.safetensors"), link_rule::none);
  EXPECT_EQ(file_checksum(file, safetensors_header::read(file)), sum);
}

TEST(CheckpointWriter, AFileWithoutTensorsIsLegal) {
  temp_folder const place;
  output_folder const out(posix_files(), place.path().string());
  safetensors_writer writer(out, "e.safetensors", {}, {});
  writer.finish();
  EXPECT_EQ(place.read("e.safetensors").size(), 64U);
  EXPECT_EQ(folder::open(place.file("e.safetensors")).tensors().size(), 0U);
}

TEST(CheckpointWriter, TensorsMayComeFromSeveralThreads) {
  temp_folder const place;
  output_folder const out(posix_files(), place.path().string());
  std::vector<new_tensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back({std::to_string(i), file_dtype::u8, {300000}});
  safetensors_writer writer(out, "m.safetensors", tensors, {});
  std::vector<std::thread> threads;
  for (index_t i = 0; i < 4; ++i) {
    threads.emplace_back([&writer, i] {
      std::vector<std::byte> const piece(1000, std::byte('a' + i));
      for (int n = 0; n < 300; ++n) writer.append(i, piece);
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.finish();
  folder const opened = folder::open(place.file("m.safetensors"));
  std::vector<std::byte> bytes(300000);
  opened.read(*opened.find("2"), 0, bytes);
  EXPECT_EQ(bytes, std::vector<std::byte>(300000, std::byte{'c'}));
}

TEST(CheckpointWriter, IncompleteOrTooManyBytesAreRefused) {
  temp_folder const place;
  output_folder const out(posix_files(), place.path().string());
  {
    safetensors_writer writer(out, "m.safetensors", {{"a", file_dtype::u8, {4}}}, {});
    writer.append(0, bytes_of("123"));
    EXPECT_MOE64_ERROR(writer.append(0, bytes_of("45")), errc::invalid_argument, "'a'",
                       "2 bytes after 3 of 4");
    EXPECT_MOE64_ERROR(writer.append(1, bytes_of("4")), errc::invalid_argument, "tensor 1 of 1");
    EXPECT_MOE64_ERROR(writer.append(-1, bytes_of("4")), errc::invalid_argument, "tensor -1");
    EXPECT_MOE64_ERROR(writer.finish(), errc::invalid_argument, "'a'", "3 bytes written of 4");
    EXPECT_TRUE(place.has(".moe64-m.safetensors.partial"));
  }
  EXPECT_FALSE(place.has("m.safetensors"));
  EXPECT_FALSE(place.has(".moe64-m.safetensors.partial"));
}

TEST(CheckpointWriter, AnExistingFileStaysUnlessItIsToBeReplaced) {
  temp_folder const place;
  place.write("model.safetensors", "old");
  output_folder const out(posix_files(), place.path().string());
  EXPECT_MOE64_ERROR(write_some(out, "model.safetensors"), errc::invalid_argument, "already there");
  EXPECT_EQ(place.read("model.safetensors"), "old");
  place.write(".moe64-model.safetensors.partial", "left by a process that was killed");
  EXPECT_NO_THROW(write_some(out, "model.safetensors", true));
  EXPECT_EQ(folder::open(place.file("model.safetensors")).tensors().size(), 6U);
  fs::create_symlink("/etc/passwd", place.file("link"));
  EXPECT_MOE64_ERROR(write_file(out, "link", bytes_of("x"), true), errc::invalid_argument,
                     "not a regular file");
  EXPECT_MOE64_ERROR(write_file(out, "../x", bytes_of("x"), true), errc::invalid_argument,
                     "'../x'");
  EXPECT_MOE64_ERROR(write_file(out, "", bytes_of("x"), true), errc::invalid_argument, "empty");
}

TEST(CheckpointWriter, SmallFilesAreWrittenWhole) {
  temp_folder const place;
  output_folder const out(posix_files(), place.path().string());
  write_file(out, "config.json", bytes_of("{}"), false);
  write_file(out, "empty", {}, false);
  EXPECT_EQ(place.read("config.json"), "{}");
  EXPECT_EQ(place.read("empty"), "");
  write_file(out, "config.json", bytes_of("{ }"), true);
  EXPECT_EQ(place.read("config.json"), "{ }");
}

TEST(CheckpointWriter, ASecondWriterIsRefusedAtOnce) {
  temp_folder const place;
  std::string const path = place.file("out");
  {
    output_folder const first(posix_files(), path);
    EXPECT_MOE64_ERROR(output_folder(posix_files(), path), errc::io_failure, "another process");
    EXPECT_TRUE(place.has("out/.moe64.lock"));
  }
  EXPECT_NO_THROW(output_folder(posix_files(), path));
}

TEST(CheckpointWriter, TheLockOfAKilledProcessIsFree) {
  temp_folder const place;
  std::string const path = place.file("out");
  pid_t const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    output_folder const held(posix_files(), path);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(place.has("out/.moe64.lock"));
  EXPECT_NO_THROW(output_folder(posix_files(), path));
}

TEST(CheckpointWriter, TheInputIsNeverTheOutput) {
  temp_folder const place;
  fs::create_directory(place.file("in"));
  fs::create_directory(place.file("out"));
  place.write("in/m.safetensors", "x");
  fs::create_directory_symlink("in", place.file("alias"));
  file_status folder_status;
  file_status file;
  ASSERT_EQ(posix_files().path_status(place.file("in"), true, folder_status), 0);
  ASSERT_EQ(posix_files().path_status(place.file("in/m.safetensors"), true, file), 0);
  for (std::string_view const path : {"in", "alias", "out/../in"}) {
    output_folder const out(posix_files(), place.file(path));
    EXPECT_MOE64_ERROR(out.refuse_input(folder_status, "in"), errc::invalid_argument, "'in'");
    EXPECT_MOE64_ERROR(out.refuse_input(file, "m"), errc::invalid_argument, "'m'");
  }
  output_folder const out(posix_files(), place.file("out"));
  EXPECT_NO_THROW(out.refuse_input(folder_status, "in"));
  EXPECT_NO_THROW(out.refuse_input(file, "m"));
  fs::create_hard_link(place.file("in/m.safetensors"), place.file("out/other-name"));
  EXPECT_MOE64_ERROR(out.refuse_input(file, "m"), errc::invalid_argument, "holds, the input 'm'");
}

}  // namespace
}  // namespace moe64::checkpoint
