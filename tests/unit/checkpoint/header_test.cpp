#include "checkpoint/safetensors/header.hpp"

#include "support/error_matcher.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace moe64::checkpoint {
namespace {

using test::entry_text;
using testing::ElementsAre;

/// A header in memory, of a file with that many bytes of data.
safetensors_header parsed(std::string const& text, index_t data_bytes,
                          header_options const& options = {}) {
  return safetensors_header::parse(text, "m.safetensors",
                                   8 + static_cast<index_t>(text.size()) + data_bytes, options);
}

std::vector<std::string> rules(std::vector<finding> const& found) {
  std::vector<std::string> result;
  for (finding const& one : found) result.push_back(one.rule);
  return result;
}

TEST(CheckpointDtype, NamesAndBitsAreThoseOfTheFormat) {
  EXPECT_EQ(file_dtype_named("F8_E4M3"), file_dtype::f8_e4m3);
  EXPECT_EQ(file_dtype_named("BOOL"), file_dtype::boolean);
  EXPECT_EQ(file_dtype_named("f32"), std::nullopt);
  EXPECT_EQ(file_dtype_named(""), std::nullopt);
  for (int i = 0; i < file_dtype_count; ++i) {
    auto const type = static_cast<file_dtype>(i);
    EXPECT_EQ(file_dtype_named(name(type)), type);
  }
  EXPECT_EQ(bits(file_dtype::f4), 4);
  EXPECT_EQ(bits(file_dtype::f6_e2m3), 6);
  EXPECT_EQ(bits(file_dtype::f6_e3m2), 6);
  EXPECT_EQ(bits(file_dtype::f8_e8m0), 8);
  EXPECT_EQ(bits(file_dtype::bf16), 16);
  EXPECT_EQ(bits(file_dtype::c64), 64);
}

TEST(CheckpointHeader, EveryTypeHasItsSize) {
  for (int i = 0; i < file_dtype_count; ++i) {
    auto const type = static_cast<file_dtype>(i);
    index_t const bytes = bits(type);  // of eight elements
    std::string const text =
        "{" + entry_text("t", name(type), "2,4", "0," + std::to_string(bytes)) + "}";
    auto const header = parsed(text, bytes);
    EXPECT_EQ(header.tensors()[0].type, type);
    EXPECT_EQ(header.tensors()[0].bytes, bytes);
    EXPECT_MOE64_ERROR(
        parsed("{" + entry_text("t", name(type), "2,4", "0," + std::to_string(bytes + 1)) + "}",
               bytes + 1),
        errc::malformed_file, "'t'", name(type), "[2, 4]");
  }
}

TEST(CheckpointHeader, TensorsAreSortedByNameWithAbsoluteOffsets) {
  std::string const text = "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\\u0000\\n\"}," +
                           entry_text("b", "F32", "2", "0,8") + "," +
                           entry_text("a", "BF16", "3,1", "8,14") + "}";
  auto header = parsed(text, 14);
  ASSERT_EQ(header.tensors().size(), 2U);
  tensor_entry const& a = header.tensors()[0];
  tensor_entry const& b = header.tensors()[1];
  index_t const data = 8 + static_cast<index_t>(text.size());
  EXPECT_EQ(header.data_begin(), data);
  EXPECT_EQ(a.name, "a");
  EXPECT_THAT(a.shape, ElementsAre(3, 1));
  EXPECT_EQ(a.begin, data + 8);
  EXPECT_EQ(a.bytes, 6);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.begin, data);
  EXPECT_THAT(header.metadata(),
              ElementsAre(std::pair("format", "pt"), std::pair("k", std::string("v\0\n", 3))));
  EXPECT_TRUE(header.warnings().empty());
  auto const moved = std::move(header);
  EXPECT_EQ(moved.tensors()[1].name, "b");
}

TEST(CheckpointHeader, EmptyFilesScalarsAndEmptyTensorsAreLegal) {
  EXPECT_EQ(parsed("{}", 0).tensors().size(), 0U);
  EXPECT_EQ(parsed("{\"__metadata__\":null}", 0).metadata().size(), 0U);
  EXPECT_EQ(parsed("{" + entry_text("s", "F64", "", "0,8") + "}", 8).tensors()[0].shape.size(), 0U);
  // An empty tensor shares its offset with a neighbour: before it, behind it and with another one.
  std::string const text =
      "{" + entry_text("x", "U8", "0,7", "0,0") + "," + entry_text("m", "U8", "4", "0,4") + "," +
      entry_text("z", "F32", "7,0", "4,4") + "," + entry_text("y", "U8", "0", "4,4") + "}";
  EXPECT_EQ(parsed(text, 4).tensors().size(), 4U);
}

TEST(CheckpointHeader, KeysComeInAnyOrderWithAnyWhitespace) {
  std::string const text =
      "{ \"t\" :\n{\"data_offsets\": [0 , 2],\t\"shape\": [ 2 ],"
      "\"dtype\":\"\\u00558\"} }  \n ";
  auto const header = parsed(text, 2);
  EXPECT_EQ(header.tensors()[0].type, file_dtype::u8);
  EXPECT_TRUE(header.warnings().empty());
}

TEST(CheckpointHeader, OddButLegalHeadersAreReported) {
  std::string const entry = entry_text("t", "U8", "1", "0,1");
  EXPECT_THAT(rules(parsed(" {" + entry + "}", 1).warnings()), ElementsAre("leading-whitespace"));
  std::string const names = "{" + entry_text("\xc3\xa9", "U8", "1", "0,1") + "," +
                            entry_text("e\xcc\x81", "U8", "1", "1,2") + "}";
  auto const header = parsed(names, 2);
  EXPECT_EQ(header.tensors().size(), 2U);  // differ by normalisation alone: two names
  EXPECT_THAT(rules(header.warnings()), ElementsAre("non-ascii-name"));
  std::string const padding(25'000'000, ' ');
  EXPECT_THAT(rules(parsed("{" + entry + "}" + padding, 1).warnings()),
              ElementsAre("large-header"));
}

TEST(CheckpointHeader, UnknownFieldsAreIgnoredOnlyWhenAsked) {
  std::string const text =
      "{\"t\":{\"dtype\":\"U8\",\"extra\":{\"a\":[1,{\"b\":null}],\"c\":[]},\"shape\":[1],\"note\":"
      "-1.5,"
      "\"data_offsets\":[0,1]},\"u\":{\"extra\":[],\"shape\":[1],\"dtype\":\"U8\","
      "\"data_offsets\":[1,2]}}";
  EXPECT_MOE64_ERROR(parsed(text, 2), errc::malformed_file, "m.safetensors", "'t'",
                     "unknown field 'extra'");
  auto const header = parsed(text, 2, {.lenient = true});
  EXPECT_EQ(header.tensors().size(), 2U);
  EXPECT_THAT(rules(header.warnings()), ElementsAre("unknown-field"));
  std::string const twice =
      "{\"t\":{\"x\":1,\"x\":1,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  EXPECT_MOE64_ERROR(parsed(twice, 1, {.lenient = true}), errc::malformed_file, "'x'", "twice");
  std::string many = "{\"t\":{";
  for (int i = 0; i < 100; ++i) many += "\"x" + std::to_string(i) + "\":1,";
  EXPECT_MOE64_ERROR(parsed(many + "\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                            {.lenient = true}),
                     errc::malformed_file, "too many unknown fields");
}

TEST(CheckpointHeader, ReadsFilesPastFourGibibytes) {
  test::temp_folder const folder;
  index_t const big = (index_t{1} << 33) + 12;
  std::string const text =
      "{" + entry_text("big", "U8", std::to_string(big), "0," + std::to_string(big)) + "," +
      entry_text("last", "U8", "4", std::to_string(big) + "," + std::to_string(big + 4)) + "}";
  std::string const path = folder.write("sparse.safetensors", test::safetensors_bytes(text, ""));
  index_t const data = 8 + static_cast<index_t>(text.size());
  int const descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(::pwrite(descriptor, "tail", 4, data + big), 4);
  ::close(descriptor);
  input_file const file = input_file::open(posix_files(), path, link_rule::none);
  auto const header = safetensors_header::read(file);
  tensor_entry const& last = header.tensors()[1];
  EXPECT_EQ(last.begin, data + big);
  std::string bytes(4, '\0');
  file.read(last.begin, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "tail");
}

TEST(CheckpointHeader, ManyTensorsTakeLinearTime) {
  // Under sanitizers too: the bound is for a quadratic reader, which would take hours.
  std::string text = "{";
  constexpr int count = 120000;
  for (int i = 0; i < count; ++i) {
    if (i != 0) text += ',';
    int const shuffled = i * 7919 % count;
    text += entry_text("model.layers." + std::to_string(shuffled % 92) + ".mlp.experts." +
                           std::to_string(shuffled) + ".w",
                       "U8", "1", std::to_string(i) + "," + std::to_string(i + 1));
  }
  auto const begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parsed(text + "}", count).tensors().size(), static_cast<std::size_t>(count));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace moe64::checkpoint
