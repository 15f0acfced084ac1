#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// Text of a file as it may stand in a message: in single quotes, everything but printable ASCII
/// as \xNN, and no longer than `limit` characters of the text.
[[nodiscard]] std::string quoted(std::string_view text, std::size_t limit = 160);

}  // namespace moe64::checkpoint
