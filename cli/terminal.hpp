#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe64::cli {

/// Text from outside with everything but printable ASCII written as \xNN: a problem line or file
/// name must not be able to move the cursor, change colours or hide itself.
[[nodiscard]] std::string printable(std::string_view text);

/// "1.50 GiB", "12.3 ms", "45.6 GFLOP/s"
[[nodiscard]] std::string human_bytes(double bytes);
[[nodiscard]] std::string human_seconds(double seconds);
[[nodiscard]] std::string human_rate(double per_second, std::string_view unit);
/// "1.2e-03", "0", "inf"
[[nodiscard]] std::string human_error(double error);

/// Rows of cells as aligned columns; the first row is the heading. Numbers are set to the right,
/// but for those of the first column.
[[nodiscard]] std::string table(std::vector<std::vector<std::string>> const& rows);

/// `text` in lines of at most `width` characters, each behind `indent`.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t width,
                                  std::string_view indent);

}  // namespace moe64::cli
