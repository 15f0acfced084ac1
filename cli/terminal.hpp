#pragma once

#include "moe64/text.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::cli {

/// printable() of a message of the library: its own ends of lines stay. What comes from files has
/// none left by then.
[[nodiscard]] std::string printable_message(std::string_view text);

/// Columns of a terminal that printable text takes, one for each character.
[[nodiscard]] std::size_t columns(std::string_view text);

/// "1.50 GiB", "12.3 ms", "45.6 GFLOP/s"
[[nodiscard]] std::string human_bytes(double bytes);
[[nodiscard]] std::string human_seconds(double seconds);
[[nodiscard]] std::string human_rate(double per_second, std::string_view unit);
/// "1.2e-03", "0", "inf"
[[nodiscard]] std::string human_error(double error);

/// Rows of cells as aligned columns; the first row is the heading. Numbers are set to the right,
/// but for those of the first column.
[[nodiscard]] std::string table(std::vector<std::vector<std::string>> const& rows);
/// The same within `width` columns: the last column is broken into lines where it is too long.
[[nodiscard]] std::string table(std::vector<std::vector<std::string>> const& rows,
                                std::size_t width);

/// `text` in lines of at most `width` columns, each behind `indent`; a longer word is cut.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width,
                                  std::string_view indent);

}  // namespace moe64::cli
