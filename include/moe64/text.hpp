#pragma once

#include "moe64/export.hpp"

#include <string>
#include <string_view>

namespace moe64 {

/// Text from outside as it may stand in a message or on a terminal: UTF-8 as it is, and as \xNN
/// every control character, every character that hides or changes the direction of text, and every
/// byte that is no UTF-8. A file or tensor name cannot move the cursor, change colours or hide a
/// part of itself; letters that look alike are not told apart.
[[nodiscard]] MOE64_API std::string printable(std::string_view text);

}  // namespace moe64
