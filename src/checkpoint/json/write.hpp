#pragma once

#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// Appends the text as a JSON string, with quotes; errc::invalid_argument when it is not UTF-8.
void append_json_text(std::string& out, std::string_view text);

}  // namespace moe64::checkpoint
