#include "checkpoint/json/json.hpp"

#include "support/error_matcher.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace moe64::checkpoint {
namespace {

auto parsed(std::string_view text, json_limits const& limits = {}) {
  return parse_json(text, "config.json", limits);
}

TEST(CheckpointJson, GivesEveryKindWithItsValue) {
  auto const document =
      parsed(R"( {"a": {"b": [1, -2, 2.50, true, false, null, "x\u00e9\n"]}, "": {}, "e": []} )");
  json_value const& root = document->root();
  ASSERT_EQ(root.kind(), json_kind::object);
  EXPECT_EQ(root.size(), 3);
  json_value const& list = root.at("a").at("b");
  ASSERT_EQ(list.size(), 7);
  EXPECT_EQ(list.item(0).integer(), 1);
  EXPECT_EQ(list.item(1).integer(), -2);
  EXPECT_EQ(list.item(2).real(), 2.5);
  EXPECT_EQ(list.item(2).number_text(), "2.50");
  EXPECT_TRUE(list.item(3).boolean());
  EXPECT_FALSE(list.item(4).boolean());
  EXPECT_TRUE(list.item(5).is(json_kind::null));
  EXPECT_EQ(list.item(6).text(), "x\xc3\xa9\n");
  EXPECT_EQ(root.at("").size(), 0);
  EXPECT_EQ(root.at("e").begin(), root.at("e").end());
  EXPECT_EQ(root.find("c"), nullptr);
}

TEST(CheckpointJson, IteratesInFileOrderOverNestedValues) {
  auto const document = parsed(R"({"z":[[1,2],[3]],"y":{"k":{"l":4}},"x":5})");
  std::string keys;
  for (json_value const& member : document->root()) keys += member.key();
  EXPECT_EQ(keys, "zyx");
  EXPECT_EQ(document->root().at("z").item(1).item(0).integer(), 3);
}

TEST(CheckpointJson, KeepsNumbersExactly) {
  auto const document = parsed(
      "[9223372036854775807, -9223372036854775808, 18446744073709551615, "
      "123456789012345678901234567890, -0, 1e2, 1e-400, 0.1]");
  json_value const& list = document->root();
  EXPECT_EQ(list.item(0).integer(), INT64_MAX);
  EXPECT_EQ(list.item(1).integer(), INT64_MIN);
  EXPECT_EQ(list.item(2).number_text(), "18446744073709551615");
  EXPECT_MOE64_ERROR(list.item(2).integer(), errc::malformed_file, "config.json: [2]",
                     "18446744073709551615", "64 bits");
  EXPECT_TRUE(list.item(3).is(json_kind::integer));
  EXPECT_EQ(list.item(3).number_text(), "123456789012345678901234567890");
  EXPECT_EQ(list.item(4).number_text(), "-0");
  EXPECT_TRUE(list.item(5).is(json_kind::real));
  EXPECT_EQ(list.item(5).real(), 100.0);
  EXPECT_MOE64_ERROR(list.item(5).integer(), errc::malformed_file, "[5] is a real",
                     "expected an integer");
  EXPECT_EQ(list.item(6).real(), 0.0);
  EXPECT_EQ(list.item(7).real(), 0.1);
}

TEST(CheckpointJson, RefusalsNameThePath) {
  auto const document =
      parsed(R"({"quantization_config":{"weight_block_size":["128",128]},"a\u001b[31m":7})");
  json_value const& root = document->root();
  json_value const& config = root.at("quantization_config");
  EXPECT_MOE64_ERROR(config.at("weight_block_size").item(0).integer(), errc::malformed_file,
                     "config.json: quantization_config.weight_block_size[0] is text",
                     "expected an integer");
  EXPECT_MOE64_ERROR(config.at("fmt"), errc::malformed_file,
                     "config.json: quantization_config has no member 'fmt'");
  EXPECT_MOE64_ERROR(config.at("weight_block_size").find("x"), errc::malformed_file,
                     "is an array, expected an object");
  EXPECT_MOE64_ERROR(config.at("weight_block_size").item(2), errc::malformed_file, "2 items");
  EXPECT_MOE64_ERROR(root.integer(), errc::malformed_file,
                     "config.json: the document is an object");
  EXPECT_EQ(root.at("a\x1b[31m").path(), "config.json: a\\x1b[31m");
  EXPECT_MOE64_ERROR(root.text(), errc::malformed_file, "expected text");
  EXPECT_MOE64_ERROR(root.boolean(), errc::malformed_file, "expected a boolean");
  EXPECT_MOE64_ERROR(root.number_text(), errc::malformed_file, "expected a number");
  EXPECT_MOE64_ERROR(root.item(0), errc::malformed_file, "expected an array");
}

TEST(CheckpointJson, PathsAndMessagesStayShort) {
  std::string const key(100000, 'k');
  auto const document = parsed("{\"" + key + "\":1}");
  EXPECT_LT(document->root().begin()->path().size(), 200U);
  EXPECT_MOE64_ERROR(parsed("{\"" + key + "\":1,\"" + key + "\":2}"), errc::malformed_file,
                     "twice");
  try {
    static_cast<void>(parsed("\"" + key));
    FAIL();
  } catch (error const& caught) {
    EXPECT_LT(std::string(caught.what()).size(), 400U);
  }
}

TEST(CheckpointJson, RefusesWhatIsNotStrict) {
  for (std::string_view const text : {"",
                                      " ",
                                      "{",
                                      "[",
                                      "{]",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{'a':1}",
                                      "{a:1}",
                                      "[1] 2",
                                      "nul",
                                      "NaN",
                                      "[Infinity]",
                                      "[01]",
                                      "[+1]",
                                      "[.5]",
                                      "[1.]",
                                      "[1e]",
                                      "[-]",
                                      "[1e999]",
                                      "// c\n1",
                                      "[1 /* c */]",
                                      "\"\x01\"",
                                      "\"a\tb\"",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\\ud800\"",
                                      "\"\\ud800\\u0041\"",
                                      "\"\\udc00\"",
                                      "\"\xff\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\xf4\x90\x80\x80\"",
                                      "\"\xe2\x82\"",
                                      "\xef\xbb\xbf{}",
                                      "\xfe\xff"}) {
    EXPECT_MOE64_ERROR(parsed(text), errc::malformed_file, "config.json") << text;
  }
  EXPECT_MOE64_ERROR(parsed(std::string_view("[1]\0", 4)), errc::malformed_file, "config.json");
}

TEST(CheckpointJson, ReadsNumbersThatAreNotFiniteWhereTheyAreAllowed) {
  json_limits const python = {.non_finite = true};
  auto const document = parse_json(
      R"({"a": NaN, "b": [Infinity, -Infinity, 3, "NaN \\\"", true, Infinity], "NaN": null, "c": 0})",
      "config.json", python);
  json_value const& root = document->root();
  EXPECT_TRUE(std::isnan(root.at("a").real()));
  EXPECT_EQ(root.at("b").item(0).real(), HUGE_VAL);
  EXPECT_EQ(root.at("b").item(1).real(), -HUGE_VAL);
  EXPECT_EQ(root.at("b").item(1).number_text(), "-Infinity");
  EXPECT_EQ(root.at("b").item(2).integer(), 3);
  EXPECT_EQ(root.at("b").item(3).text(), "NaN \\\"");
  EXPECT_EQ(root.at("b").item(5).real(), HUGE_VAL);
  EXPECT_TRUE(root.at("NaN").is(json_kind::null));
  EXPECT_EQ(root.at("c").integer(), 0);
  EXPECT_MOE64_ERROR(root.at("a").integer(), errc::malformed_file, "a real", "an integer");
  EXPECT_EQ(parse_json("-Infinity", "x", python)->root().real(), -HUGE_VAL);
  for (std::string_view const text : {"nan", "inf", "+Infinity", "-NaN", "NaNs", "[NaN NaN]",
                                      "{NaN: 1}", "Infinity1", "[1, Infinity", "- Infinity"}) {
    EXPECT_MOE64_ERROR(parse_json(text, "x", python), errc::malformed_file, "[json] x: byte");
  }
}

TEST(CheckpointJson, RefusesKeysThatAppearTwice) {
  EXPECT_MOE64_ERROR(parsed(R"({"a":1,"b":2,"a":1})"), errc::malformed_file, "the document",
                     "'a' twice");
  EXPECT_MOE64_ERROR(parsed(R"({"q":[{"a":1,"\u0061":2}]})"), errc::malformed_file, "q[0]",
                     "'a' twice");
  EXPECT_NO_THROW(parsed(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})"));
}

TEST(CheckpointJson, HoldsItsLimits) {
  EXPECT_NO_THROW(parsed("[[[1]]]", {.depth = 3}));
  EXPECT_MOE64_ERROR(parsed("[[[[1]]]]", {.depth = 3}), errc::malformed_file, "deeper than 3");
  EXPECT_NO_THROW(parsed("[1,2]", {.values = 3}));
  EXPECT_MOE64_ERROR(parsed("[1,2,3]", {.values = 3}), errc::malformed_file, "more than 3 values");
  EXPECT_NO_THROW(parsed("[1,2]", {.bytes = 5}));
  EXPECT_MOE64_ERROR(parsed("[1,22]", {.bytes = 5}), errc::malformed_file, "6 bytes");
  EXPECT_MOE64_ERROR(parsed("1", {.bytes = index_t{1} << 31}), errc::invalid_argument, "2^31");
}

TEST(CheckpointJson, AMillionLevelsAndAMillionKeysAreCheap) {
  EXPECT_MOE64_ERROR(parsed(std::string(1000000, '[')), errc::malformed_file, "deeper than 32");
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  text += "\"k7\":0}";
  EXPECT_MOE64_ERROR(parsed(text), errc::malformed_file, "'k7' twice");
}

}  // namespace
}  // namespace moe64::checkpoint
