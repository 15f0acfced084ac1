#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moe64 {

/// Bytes of the UTF-8 sequence at the start of `text`; 0 where there is none: overlong ones,
/// surrogates and what is past U+10FFFF are none.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

/// What a backslash becomes: doubled, text can be told from an escape.
enum class backslashes { as_they_are, doubled };

/// printable(), appended.
void append_printable(std::string& out, std::string_view text, backslashes how);

}  // namespace moe64
