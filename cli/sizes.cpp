#include "sizes.hpp"

#include <charconv>
#include <cmath>
#include <string>

namespace moe64::cli {

std::optional<index_t> parse_bytes(std::string_view text) {
  double number = 0.0;
  auto const [end, status] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (status != std::errc{} || !(number >= 0.0)) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr struct {
    std::string_view unit;
    double bytes;
  } units[] = {{"", 1.0},
               {"B", 1.0},
               {"kB", 1e3},
               {"KB", 1e3},
               {"MB", 1e6},
               {"GB", 1e9},
               {"TB", 1e12},
               {"KiB", 1024.0},
               {"MiB", 1048576.0},
               {"GiB", 1073741824.0},
               {"TiB", 1099511627776.0}};
  for (auto const& [word, bytes] : units) {
    if (word != unit) continue;
    double const total = std::floor(number * bytes);
    if (total >= 9.2e18) return std::nullopt;
    return static_cast<index_t>(total);
  }
  return std::nullopt;
}

}  // namespace moe64::cli
