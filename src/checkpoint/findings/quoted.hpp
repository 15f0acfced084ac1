#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// Text of a file as it may stand in a message: printable() with backslashes doubled, and of a long
/// text only the first `limit` bytes and its length.
[[nodiscard]] std::string escaped(std::string_view text, std::size_t limit = 160);

/// The same in single quotes.
[[nodiscard]] std::string quoted(std::string_view text, std::size_t limit = 160);
// Without these, std::quoted of <iomanip> is the better match for a std::string.
[[nodiscard]] inline std::string quoted(std::string const& text, std::size_t limit = 160) {
  return quoted(std::string_view(text), limit);
}
[[nodiscard]] inline std::string quoted(std::string& text, std::size_t limit = 160) {
  return quoted(std::string_view(text), limit);
}

/// The end of a path that is too long to be shown whole, escaped: file names are at the end.
[[nodiscard]] std::string escaped_path(std::string_view path);

}  // namespace moe64::checkpoint
