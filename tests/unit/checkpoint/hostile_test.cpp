// The corpus of files that lie. Each is a typed error, found before memory is taken for what it
// claims.

#include "checkpoint/safetensors/header.hpp"
#include "support/error_matcher.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_folder.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <unistd.h>

namespace moe64::checkpoint {
namespace {

using test::entry_text;
using test::length_field;
using test::safetensors_bytes;

safetensors_header read_bytes(std::string const& bytes, header_options const& options = {}) {
  test::temp_folder const folder;
  std::string const path = folder.write("m.safetensors", bytes);
  return safetensors_header::read(input_file::open(posix_files(), path, link_rule::none), options);
}

safetensors_header read_header(std::string_view header, std::string_view data = "",
                               header_options const& options = {}) {
  return read_bytes(safetensors_bytes(header, data), options);
}

std::string one(std::string_view entry) { return "{" + std::string(entry) + "}"; }
std::string two(std::string_view first, std::string_view second) {
  return "{" + std::string(first) + "," + std::string(second) + "}";
}

TEST(CheckpointHostile, FilesShorterThanTheirLengthField) {
  for (std::size_t bytes = 0; bytes < 8; ++bytes) {
    EXPECT_MOE64_ERROR(read_bytes(std::string(bytes, '\1')), errc::malformed_file, "m.safetensors",
                       std::to_string(bytes) + " bytes");
  }
}

TEST(CheckpointHostile, LengthsThatCannotBe) {
  std::string const rest = "{}" + std::string(20, ' ');
  for (std::uint64_t const length :
       {std::uint64_t{0}, UINT64_MAX, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1,
        std::uint64_t{100'000'001}, std::uint64_t{rest.size()} + 1,
        std::uint64_t{rest.size()} + 8}) {
    EXPECT_MOE64_ERROR(read_bytes(length_field(length) + rest), errc::malformed_file,
                       std::to_string(length));
  }
  EXPECT_MOE64_ERROR(read_bytes(length_field(7) + rest), errc::malformed_file, "no tensor");
  EXPECT_MOE64_ERROR(read_bytes(length_field(1) + rest), errc::malformed_file, "m.safetensors");
  EXPECT_NO_THROW(read_bytes(length_field(rest.size()) + rest));
}

TEST(CheckpointHostile, AHeaderPastTheLimitInAFileThatHasIt) {
  test::temp_folder const folder;
  std::string const path = folder.write("m.safetensors", length_field(100'000'001) + "{}");
  std::filesystem::resize_file(path, 8 + 100'000'001);  // sparse
  EXPECT_MOE64_ERROR(
      safetensors_header::read(input_file::open(posix_files(), path, link_rule::none)),
      errc::malformed_file, "100000001");
}

TEST(CheckpointHostile, TextThatIsNotUtf8OrNotJson) {
  for (std::string_view const text : {"{",
                                      "}",
                                      "[]",
                                      "null",
                                      "true",
                                      "0",
                                      "\"a\"",
                                      "{}{}",
                                      "{} x",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"\xff\":1}",
                                      "\xff\xfe{}",
                                      "\xef\xbb\xbf{}",
                                      "{\"\\ud800\":1}",
                                      "{\"\\udc00\\ud800\":1}",
                                      "{\"\xc0\xaf\":1}",
                                      "{\"a\":1,}",
                                      "   ",
                                      "{'a':1}"}) {
    EXPECT_MOE64_ERROR(read_header(text), errc::malformed_file, "m.safetensors") << text;
  }
  std::string const nul("{}\0{\"a\":1}", 10);
  EXPECT_MOE64_ERROR(read_header(nul), errc::malformed_file, "byte 2: is NUL");
}

TEST(CheckpointHostile, NamesThatAreNoNames) {
  for (std::string_view const name :
       {"a\\u0000b", "a\\nb", "\\u001b[31mred", "\\u007f", "\\u009b31m", "../../etc/passwd",
        "a/../b", "..", "a\\\\..\\\\b", "/etc/passwd"}) {
    EXPECT_MOE64_ERROR(read_header(one(entry_text(name, "U8", "1", "0,1")), "x"),
                       errc::malformed_file, "the name");
  }
  for (std::string_view const name :
       {"", "a..b", "...", "a/b", "a.b/c", "\xe6\xa8\xa1\xe5\x9e\x8b"}) {
    EXPECT_NO_THROW(read_header(one(entry_text(name, "U8", "1", "0,1")), "x")) << name;
  }
  EXPECT_NO_THROW(read_header(one(entry_text(std::string(4096, 'n'), "U8", "1", "0,1")), "x"));
  EXPECT_MOE64_ERROR(read_header(one(entry_text(std::string(4097, 'n'), "U8", "1", "0,1")), "x"),
                     errc::malformed_file, "longer than 4096");
  EXPECT_MOE64_ERROR(read_header(one(entry_text(std::string(1 << 20, 'n'), "U8", "1", "0,1")), "x"),
                     errc::malformed_file, "longer than 4096", "(1048576 bytes)");
}

TEST(CheckpointHostile, MessagesShowNoControlCharactersAndStayShort) {
  try {
    static_cast<void>(read_header(
        one(entry_text("\\u001b]0;x\\u0007" + std::string(60000, 'n'), "U8", "1", "0,1")), "x"));
    FAIL();
  } catch (error const& caught) {
    std::string const message = caught.what();
    EXPECT_LT(message.size(), 600U);
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
    EXPECT_NE(message.find("\\x1b]0;x\\x07"), std::string::npos) << message;
  }
}

TEST(CheckpointHostile, DeepNesting) {
  std::string const deep(1'000'000, '[');
  for (std::string const& text :
       {"{\"__metadata__\":" + deep, "{\"__metadata__\":{\"a\":" + deep, "{\"t\":{\"x\":" + deep,
        "{\"t\":" + deep, deep, "{\"t\":{\"shape\":" + deep}) {
    EXPECT_MOE64_ERROR(read_header(text), errc::malformed_file, "m.safetensors");
    EXPECT_MOE64_ERROR(read_header(text, "", {.lenient = true}), errc::malformed_file,
                       "m.safetensors");
  }
  EXPECT_MOE64_ERROR(read_header("{\"t\":{\"x\":" + deep, "", {.lenient = true}),
                     errc::malformed_file, "deeper than 8");
}

TEST(CheckpointHostile, MetadataThatIsNotTextOrTooLarge) {
  for (std::string_view const value :
       {"[]", "1", "\"x\"", "true", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}", "{\"a\":[\"b\"]}",
        "{\"a\":\"b\",\"a\":\"b\"}"}) {
    EXPECT_MOE64_ERROR(read_header("{\"__metadata__\":" + std::string(value) + "}"),
                       errc::malformed_file, "m.safetensors");
  }
  EXPECT_MOE64_ERROR(read_header("{\"__metadata__\":{},\"__metadata__\":{}}"), errc::malformed_file,
                     "'__metadata__' twice");
  std::string const piece(1 << 20, 'm');
  EXPECT_MOE64_ERROR(
      read_header("{\"__metadata__\":{\"a\":\"" + std::string(17 << 20, 'm') + "\"}}"),
      errc::malformed_file, "longer than 16777216");
  std::string many = "{\"__metadata__\":{";
  for (int i = 0; i < 20; ++i) many += "\"k" + std::to_string(i) + "\":\"" + piece + "\",";
  EXPECT_MOE64_ERROR(read_header(many + "\"z\":\"\"}}"), errc::malformed_file, "__metadata__");
}

TEST(CheckpointHostile, RangesThatOverlapLeaveHolesOrDoNotCover) {
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("a", "U8", "4", "0,4"), entry_text("b", "U8", "4", "0,4")),
                  "1234"),
      errc::malformed_file, "inside another tensor");
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("a", "U8", "4", "0,4"), entry_text("b", "U8", "4", "3,7")),
                  "1234567"),
      errc::malformed_file, "'b'", "inside another tensor");
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("a", "U8", "4", "0,4"), entry_text("b", "U8", "4", "5,9")),
                  "123456789"),
      errc::malformed_file, "'b'", "hole");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "4", "1,5")), "12345"),
                     errc::malformed_file, "hole");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "4", "0,4")), "12345"),
                     errc::malformed_file, "4 bytes", "5 bytes", "no tensor");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "4", "0,4")), "123"),
                     errc::malformed_file, "truncated");
  EXPECT_MOE64_ERROR(read_header("{}", "1"), errc::malformed_file, "no tensor");
  // An empty tensor in the middle of another one.
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("a", "U8", "4", "0,4"), entry_text("z", "U8", "0", "2,2")),
                  "1234"),
      errc::malformed_file, "'z'", "inside another tensor");
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("a", "U8", "4", "0,4"), entry_text("z", "U8", "0", "9,9")),
                  "1234"),
      errc::malformed_file, "'z'", "hole");
}

TEST(CheckpointHostile, AHundredThousandTensorsOnTheSameBytes) {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) {
    text += entry_text("t" + std::to_string(i), "U8", "4", "0,4") + ",";
  }
  text.back() = '}';
  EXPECT_MOE64_ERROR(read_header(text, "1234"), errc::malformed_file, "inside another tensor");
}

TEST(CheckpointHostile, ManyOneByteTensorsPastTheLimit) {
  std::string text = "{";
  for (int i = 0; i < 1001; ++i) {
    text += entry_text("t" + std::to_string(i), "U8", "",
                       std::to_string(i) + "," + std::to_string(i + 1)) +
            ",";
  }
  text.back() = '}';
  std::string const data(1001, 'x');
  EXPECT_NO_THROW(read_header(text, data, {.max_tensors = 1001}));
  EXPECT_MOE64_ERROR(read_header(text, data, {.max_tensors = 1000}), errc::malformed_file,
                     "more than 1000 tensors");
}

TEST(CheckpointHostile, OffsetsAndExtentsThatAreNoPlainIntegers) {
  for (std::string_view const value :
       {"-1", "-0", "1.0", "1e0", "1E3", "0.5", "\"1\"", "null", "true", "[1]", "{}",
        "9223372036854775808", "18446744073709551615", "18446744073709551616",
        "100000000000000000000000000000000", "01", "+1", "0x1"}) {
    std::string const text(value);
    EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", text, "0,1")), "x"),
                       errc::malformed_file, "m.safetensors");
    EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", text + ",1")), "x"),
                       errc::malformed_file, "m.safetensors");
    EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", "0," + text)), "x"),
                       errc::malformed_file, "m.safetensors");
  }
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "-1", "0,1")), "x"),
                     errc::malformed_file, "'a'", "found -1", "plain digits");
  std::string const digits(5'000'000, '9');
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", digits, "0,1")), "x"),
                     errc::malformed_file, "m.safetensors");
}

TEST(CheckpointHostile, EntriesWithTheWrongForm) {
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", "1,0"))), errc::malformed_file,
                     "[1, 0]");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", "0")), "x"), errc::malformed_file,
                     "1 of them");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", "")), "x"), errc::malformed_file,
                     "0 of them");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", "1", "0,1,1")), "x"),
                     errc::malformed_file, "two integers");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "F7", "1", "0,1")), "x"), errc::malformed_file,
                     "unknown dtype 'F7'");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "f8_e4m3", "1", "0,1")), "x"),
                     errc::malformed_file, "unknown dtype");
  EXPECT_MOE64_ERROR(read_header("{\"a\":1}"), errc::malformed_file, "'a'", "found 1");
  EXPECT_MOE64_ERROR(read_header("{\"a\":null}"), errc::malformed_file, "'a'", "found null");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{}}"), errc::malformed_file, "'a'", "has no dtype");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"dtype\":\"U8\"}}"), errc::malformed_file,
                     "has no shape");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}"), errc::malformed_file,
                     "has no data_offsets");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"dtype\":8}}"), errc::malformed_file,
                     "dtype to be text");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"shape\":2}}"), errc::malformed_file, "shape to be");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"shape\":[[1]]}}"), errc::malformed_file, "shape to be");
  EXPECT_MOE64_ERROR(read_header("{\"a\":{\"data_offsets\":{}}}"), errc::malformed_file,
                     "data_offsets to be");
  std::string const wide = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";  // 16
  EXPECT_NO_THROW(read_header(one(entry_text("a", "U8", wide, "0,1")), "x"));
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "U8", wide + ",1", "0,1")), "x"),
                     errc::malformed_file, "more than 16 dimensions");
}

TEST(CheckpointHostile, KeysThatAppearTwice) {
  std::string const a = entry_text("a", "U8", "1", "0,1");
  EXPECT_MOE64_ERROR(read_header(two(a, a), "x"), errc::malformed_file, "'a'");
  EXPECT_MOE64_ERROR(read_header(two(a, entry_text("a", "U8", "1", "1,2")), "xy"),
                     errc::malformed_file, "'a' is there twice");
  EXPECT_MOE64_ERROR(read_header(two(a, entry_text("\\u0061", "U8", "1", "1,2")), "xy"),
                     errc::malformed_file, "'a' is there twice");
  EXPECT_MOE64_ERROR(
      read_header(two(entry_text("e", "U8", "0", "0,0"), entry_text("e", "U8", "0", "0,0")), ""),
      errc::malformed_file, "'e' is there twice");
  for (std::string_view const field :
       {"\"dtype\":\"U8\"", "\"shape\":[1]", "\"data_offsets\":[0,1]"}) {
    std::string const text = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]," +
                             std::string(field) + "}}";
    EXPECT_MOE64_ERROR(read_header(text, "x"), errc::malformed_file, "'a'", "twice");
  }
}

TEST(CheckpointHostile, ShapesWhoseProductOverflows) {
  struct row {
    std::string_view dtype, shape, offsets;
  };
  for (row const& bad :
       {row{"U8", "2,18446744073709551614", "0,0"}, row{"F32", "2,9223372036854775807", "0,0"},
        row{"U8", "4294967296,4294967296", "0,0"}, row{"U8", "4294967296,0,4294967296", "0,0"},
        row{"U8", "0,4294967296,4294967296", "0,0"}, row{"U8", "4294967296,4294967296,0", "0,0"},
        row{"F64", "1152921504606846976", "0,0"}, row{"F64", "288230376151711744", "0,0"},
        row{"U8", "9223372036854775807", "0,9223372036854775807"},
        row{"F4", "9223372036854775807,2", "0,0"}, row{"U8", "65536,65536,65536,65536,1", "0,0"}}) {
    EXPECT_MOE64_ERROR(read_header(one(entry_text("a", bad.dtype, bad.shape, bad.offsets))),
                       errc::malformed_file, "m.safetensors")
        << bad.shape;
  }
  // The largest tensor that can be said is refused because the file does not have it.
  EXPECT_MOE64_ERROR(
      read_header(one(entry_text("a", "U8", "1152921504606846975", "0,1152921504606846975"))),
      errc::malformed_file, "truncated");
}

TEST(CheckpointHostile, PackedTypesThatDoNotFillBytes) {
  EXPECT_NO_THROW(read_header(one(entry_text("a", "F4", "3,2", "0,3")), "123"));
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "F4", "3", "0,1")), "1"), errc::malformed_file,
                     "F4 [3]", "whole bytes");
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "F4", "3", "0,2")), "12"),
                     errc::malformed_file, "whole bytes");
  EXPECT_NO_THROW(read_header(one(entry_text("a", "F6_E2M3", "4", "0,3")), "123"));
  EXPECT_MOE64_ERROR(read_header(one(entry_text("a", "F6_E3M2", "2", "0,2")), "12"),
                     errc::malformed_file, "whole bytes");
}

TEST(CheckpointHostile, TruncationAtEveryByteIsSeen) {
  std::string const whole =
      safetensors_bytes("{\"__metadata__\":{\"a\":\"b\"}," + entry_text("x", "F32", "2", "0,8") +
                            "," + entry_text("y", "F8_E4M3", "5", "8,13") + "}   ",
                        "0123456789abc");
  EXPECT_NO_THROW(read_bytes(whole));
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_MOE64_ERROR(read_bytes(whole.substr(0, bytes)), errc::malformed_file, "m.safetensors");
  }
  EXPECT_MOE64_ERROR(read_bytes(whole + "z"), errc::malformed_file, "no tensor");
}

}  // namespace
}  // namespace moe64::checkpoint
