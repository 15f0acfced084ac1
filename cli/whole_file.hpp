#pragma once

#include <string>
#include <string_view>

namespace moe64::cli {

/// Writes a file that is there whole or not at all: under another name first, then renamed. An old
/// file of that name is replaced. errc::io_failure with the name.
void write_whole_file(std::string const& path, std::string_view text);

}  // namespace moe64::cli
