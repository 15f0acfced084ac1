// What text from outside looks like in messages.
#include "moe64/text.hpp"

#include "checkpoint/findings/quoted.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moe64 {
namespace {

TEST(printable, keeps_utf8_and_escapes_what_a_terminal_obeys) {
  EXPECT_EQ(printable("a b\\c ~"), "a b\\c ~");
  EXPECT_EQ(printable("mod\xc3\xa8le \xe6\xa8\xa1 \xf0\x9f\x98\x80"),
            "mod\xc3\xa8le \xe6\xa8\xa1 \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\x1b[2J\x7f\n"), "\\x1b[2J\\x7f\\x0a");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");                    // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");           // right to left
  EXPECT_EQ(printable("\xef\xbb\xbf"), "\\xef\\xbb\\xbf");           // no width
  EXPECT_EQ(printable("\xf3\xa0\x81\xa1"), "\\xf3\\xa0\\x81\\xa1");  // a tag
}

TEST(printable, escapes_characters_that_are_not_seen) {
  EXPECT_EQ(printable("a\xe3\x85\xa4z"), "a\\xe3\\x85\\xa4z");  // a Hangul filler
  EXPECT_EQ(printable("a\xef\xb8\x8fz"), "a\\xef\\xb8\\x8fz");  // a variation selector
  EXPECT_EQ(printable("a\xe2\xa0\x80z"), "a\\xe2\\xa0\\x80z");  // a Braille cell without a dot
}

TEST(printable, escapes_bytes_that_are_no_utf8) {
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a\\xffb");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past the last one
  EXPECT_EQ(printable("\xe6\xa8"), "\\xe6\\xa8");                    // cut short
}

TEST(quoted, cuts_no_character_in_two) {
  std::string const name =
      "ab\xe6\xa8\xa1"
      "cd";
  EXPECT_EQ(checkpoint::quoted(name, 4), "'ab'... (7 bytes)");
  EXPECT_EQ(checkpoint::quoted(name, 5), "'ab\xe6\xa8\xa1'... (7 bytes)");
  EXPECT_EQ(checkpoint::quoted(std::string("\\x41")), "'\\\\x41'");
  std::string const path = "\xe6\xa8\xa1" + std::string(299, 'x');
  EXPECT_EQ(checkpoint::escaped_path(path), "..." + std::string(299, 'x'));
}

}  // namespace
}  // namespace moe64
