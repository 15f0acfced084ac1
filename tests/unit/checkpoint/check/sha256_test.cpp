#include "checkpoint/files/sha256.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace moe64::test {
namespace {

/// The sum of a text that is added in pieces.
std::string sum_of(std::string_view text, std::size_t piece) {
  checkpoint::sha256 sum;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    std::string_view const part = text.substr(at, piece);
    sum.add(std::as_bytes(std::span(part.data(), part.size())));
  }
  return sum.finish();
}

// the examples of FIPS 180-2, appendix B
TEST(sha256, gives_the_sums_of_the_standard) {
  EXPECT_EQ(sum_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sum_of("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sum_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 64),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sum_of(std::string(1'000'000, 'a'), 4096),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, does_not_depend_on_the_pieces) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 26);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    std::string_view const part = std::string_view(text).substr(0, length);
    std::string const whole = sum_of(part, 1000);
    for (std::size_t const piece : {1U, 7U, 63U, 64U, 65U, 128U}) {
      ASSERT_EQ(sum_of(part, piece), whole) << length << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace moe64::test
